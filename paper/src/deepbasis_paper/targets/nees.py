# SPDX-License-Identifier: Apache-2.0
"""Consistency: squared error over variance, which should be 1, at every number of points."""

from deepbasis_paper.targets.cells import rows, score
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import TITLES, add_legend, drawn, grid, style
from deepbasis_paper.targets.pages import sweep, write_figure, write_page
from deepbasis_paper.targets.plan import points_to_test

TESTED = {"mid": ("5%", "1%"), "low": ("500", "50", "0")}
TEXT = "NEES, the mean of squared error over variance: 1 is calibrated, above 1 is overconfident."


def write(plan: Plan, command: str) -> None:
    """Score, draw and tabulate."""
    tested = {regime: points_to_test(plan, regime, points) for regime, points in TESTED.items()}
    cells = {
        (row, points): score(plan, row, points)
        for regime in tested
        for points in tested[regime]
        for row in rows(regime, points)
    }
    figure, axes = grid(1, 2, (4.6, 3.8))
    for ax, regime in zip(axes[0], tested, strict=True):
        for row in drawn(regime):
            line = [(p, cells[row, p].mean("nees")) for p in tested[regime] if cells[row, p].kept]
            if line:
                ax.plot(*zip(*line, strict=True), marker="o", **style(row))
        ax.axhline(1, color="black", linestyle="--", lw=0.8)
        ax.set(title=TITLES[regime], xlabel="points", ylabel="NEES (1 is calibrated)", yscale="log")
        ax.grid(alpha=0.3)
    add_legend(figure)
    shown = write_figure(plan, "nees", figure)
    lines = [TEXT, "", shown, ""]
    for regime, points in tested.items():
        lines += [f"NEES, {TITLES[regime]} and tested with:", ""]
        lines += sweep(rows(regime), points, cells, lambda cell: cell.show("nees"))
    write_page(plan, "nees", command, lines, cells)
