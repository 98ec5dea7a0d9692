# SPDX-License-Identifier: Apache-2.0
"""Speed of the scaffold beside scipy's interpolator, in one run, at 320x240.

Each time is the median over rounds in which the candidates take turns, so that a busy machine slows
all of them alike. Triangulating alone is shown too: it is what no way of filling can undercut.
"""

import os
import platform
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import scipy
import torch
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import Delaunay
from torch import Tensor

from deepbasis.patterns import parse
from deepbasis_paper.scaffold import scaffold

HEIGHT, WIDTH = 240, 320
ROUNDS = 15


def make_sparse(word: str) -> Tensor:
    """A wavy surface, measured by the pattern of this name."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    depth = (3 + torch.sin(x / 40) + torch.cos(y / 30))[None]
    image = torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8)
    unknown = torch.full((3, 3), torch.nan)
    return parse(word)(depth, image, unknown, torch.Generator().manual_seed(0))


def times(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, run in candidates.items():
            run()
            start = time.perf_counter()
            run()
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(values) for name, values in taken.items()}


def compare(word: str) -> None:
    """One row of the table."""
    sparse = make_sparse(word)
    depth = sparse[0].numpy()
    row, column = depth.nonzero()
    points, values = np.stack([column, row], 1), depth[row, column].astype(float)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    got = times(
        {
            "ours": lambda: scaffold(sparse),
            "scipy": lambda: LinearNDInterpolator(points, values)(x, y),
            "triangulation": lambda: Delaunay(points),
        }
    )
    print(
        f"{word:>8} {len(row):6d} | {got['ours']:6.1f} {got['scipy']:6.1f} "
        f"{got['scipy'] / got['ours']:5.1f}x | {got['triangulation']:6.1f}"
    )


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, scipy {scipy.__version__}")
    print(f"{WIDTH}x{HEIGHT}; milliseconds, and how many times the scaffold is faster than scipy's")
    print("LinearNDInterpolator; the last column is Delaunay alone")
    print(" pattern points |   ours  scipy ratio | Delaunay")
    for word in ("500", "5%", "lidar16"):
        compare(word)


if __name__ == "__main__":
    main()
