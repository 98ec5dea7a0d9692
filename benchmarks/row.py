# SPDX-License-Identifier: Apache-2.0
"""One row of pixels of a rendered room, with independent and with correlated errors.

    python benchmarks/row.py --out docs/row.png

The row with the most points, completed by `indoor`, with 90 % intervals.
"""

import argparse
from pathlib import Path

import deepbasis
from deepbasis.data.packaged import packaged
from deepbasis.data.with_points import WithPoints
from deepbasis.latent import is_valid
from deepbasis.patterns import parse
from deepbasis.plots import save
from deepbasis_paper.targets.figures import grid
from deepbasis_paper.targets.neighbours import COLOURS, draw_row


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", default="1%")
    parser.add_argument("--out", type=Path, default=Path("row.png"))
    given = parser.parse_args()
    sample = WithPoints(packaged("rooms"), parse(given.points))[0]
    row = int(is_valid(sample.sparse[0]).sum(1).argmax())
    figure, axes = grid(1, 2, (5.5, 3.6))
    for ax, errors in zip(axes[0], COLOURS, strict=True):
        draw_row(ax, deepbasis.load("indoor"), sample, row, errors)
    axes[0][1].sharey(axes[0][0])
    save(figure, given.out)


if __name__ == "__main__":
    main()
