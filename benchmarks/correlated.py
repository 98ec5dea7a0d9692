# SPDX-License-Identifier: Apache-2.0
"""What correlated errors cost, as a fraction of the network's time, in one run.

Image 320x240, 63 bases, 12 neighbours. The extra cost is that of a fit and a prediction of every
pixel, less those with independent errors.
"""

import os
import platform
from dataclasses import replace

import torch
from core import HEIGHT, STRIDES, WIDTH, M, make_input, times

from deepbasis import BasisFit, Points
from deepbasis.layer import Errors
from deepbasis.nets import BasisNet


@torch.no_grad()
def compare(points: int) -> None:
    """One row of the table."""
    scales, sparse = make_input(1, points)
    image = torch.randint(256, (1, 3, HEIGHT, WIDTH), dtype=torch.uint8)
    net, layer = BasisNet().eval(), BasisFit(M - 1).eval()
    guide = image.float() / 255
    observed = layer.observe(scales, Points.from_maps(sparse), (HEIGHT, WIDTH), guide)

    def predict(errors: Errors) -> None:
        _ = layer.fit_details(replace(observed), errors=errors).prediction

    got = times(
        {
            "network": lambda: net(image),
            "correlated": lambda: predict("correlated"),
            "independent": lambda: predict("independent"),
        }
    )
    extra = got["correlated"] - got["independent"]
    ms = {name: f"{1e3 * seconds:11.1f}" for name, seconds in got.items()}
    print(
        f"{points:6d} | {ms['network']} {ms['correlated']} {ms['independent']} | "
        f"{1e3 * extra:6.1f} {extra / got['network']:6.2f}"
    )


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, torch {torch.__version__}")
    print(f"{WIDTH}x{HEIGHT}, {M} bases at strides {STRIDES}, milliseconds; MobileNetV2")
    print("points |     network  correlated independent |  extra  extra / network")
    for points in (500, 3840):
        compare(points)


if __name__ == "__main__":
    main()
