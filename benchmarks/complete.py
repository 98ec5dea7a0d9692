# SPDX-License-Identifier: Apache-2.0
"""Where `Completer.complete` spends its time on one frame: network and layer, or around them.

Image 320x240, MobileNetV2. Inside are the network's bases and the layer's fit and prediction
on tensors that are ready; all else is outside: reading points, checks, conversion of arrays.
"""

import os
import platform

import numpy as np
import torch
from core import HEIGHT, WIDTH, times

from deepbasis import Points
from deepbasis.data.images import to_pixels
from deepbasis.layer import Errors
from deepbasis.model import Completer
from deepbasis.nets import Architecture


@torch.no_grad()
def compare(model: Completer, points: int, rows: bool) -> None:
    """One row of the table."""
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
    sparse = np.zeros((HEIGHT, WIDTH), np.float32)
    sparse.flat[rng.permutation(sparse.size)[:points]] = rng.uniform(1, 5, points)
    v, u = sparse.nonzero()
    passed = np.stack([u, v, sparse[v, u]], 1) if rows else sparse
    network = model.network
    pixels, at = to_pixels(image), Points.from_maps(torch.from_numpy(sparse)[None, None])

    def complete() -> None:
        answer = model.complete(image, passed)
        assert answer.depth.shape == answer.std.shape

    got = times(
        {
            "complete": complete,
            "inside": lambda: network.fit.fit_details(network.observe(pixels, at)).prediction,
        }
    )
    outside = got["complete"] - got["inside"]
    form = "rows" if rows else "map"
    print(
        f"{points:6d} {form:>5} {network.fit.errors:>12} | {1e3 * got['complete']:8.1f} "
        f"{1e3 * got['inside']:8.1f} {1e3 * outside:8.1f} {outside / got['complete']:7.1%}"
    )


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, torch {torch.__version__}")
    print(f"{WIDTH}x{HEIGHT}, milliseconds; `complete` with depth and std, and its share outside")
    print("points  form       errors | complete   inside  outside   share")
    ways: tuple[Errors, ...] = ("independent", "correlated")
    for errors in ways:
        model = Completer(Architecture(errors=errors))
        for points, rows in ((500, False), (500, True), (3840, True), (20000, True)):
            compare(model, points, rows)


if __name__ == "__main__":
    main()
