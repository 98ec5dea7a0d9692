# SPDX-License-Identifier: Apache-2.0
"""What errors that know their neighbours cost, as a share of the network's time, in one run.

Image 320x240, 63 bases, 12 neighbours. The extra cost is that of whitening the points and of asking
from every pixel, less the prediction with independent errors that it takes the place of.
"""

import os
import platform

import torch
from core import HEIGHT, STRIDES, WIDTH, M, make_input, times

from deepbasis import BasisFit
from deepbasis.fit import Kernel, local
from deepbasis.nets import BasisNet


@torch.no_grad()
def compare(points: int, kernel: Kernel) -> None:
    """One row of the table."""
    scales, sparse = make_input(1, points)
    image = torch.randint(256, (1, 3, HEIGHT, WIDTH), dtype=torch.uint8)
    guide = image[0].float() / 255
    net, layer = BasisNet().eval(), BasisFit(M - 1).eval()
    pyramid, at = layer.read(scales, sparse)
    phi, post = pyramid.at(at.row, at.column), layer.posterior(pyramid, at)
    x = local.locate(at.row[0], at.column[0], WIDTH, guide)
    field = local.Field.of(kernel, x, (HEIGHT, WIDTH), guide)
    got = times(
        {
            "network": lambda: net(image),
            "whiten": lambda: local.whiten(kernel, x[None], phi, at.z),
            "field": lambda: local.Field.of(kernel, x, (HEIGHT, WIDTH), guide),
            "predict": lambda: local.predict([field], post, phi, at.z, pyramid.rows),
            "independent": lambda: layer.predict(pyramid, post),
        }
    )
    extra = got["whiten"] + got["field"] + got["predict"] - got["independent"]
    ms = {name: f"{1e3 * seconds:8.1f}" for name, seconds in got.items()}
    print(
        f"{points:6d} | {ms['network']} {ms['whiten']} {ms['field']} {ms['predict']} "
        f"{ms['independent']} | {1e3 * extra:6.1f} {extra / got['network']:6.2f}"
    )


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, torch {torch.__version__}")
    print(f"{WIDTH}x{HEIGHT}, {M} bases at strides {STRIDES}, milliseconds; MobileNetV2, rgb")
    print("points |  network   whiten    field  predict independent | extra  share")
    for points in (500, 3840):
        compare(points, Kernel())


if __name__ == "__main__":
    main()
