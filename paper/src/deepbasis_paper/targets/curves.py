# SPDX-License-Identifier: Apache-2.0
"""The curves whose areas are AUSE and AUCE, of every method at the points of its training."""

from typing import TYPE_CHECKING

from deepbasis_paper.targets.cells import Cell, Row, rows, score
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import TITLES, add_legend, drawn, grid, style
from deepbasis_paper.targets.pages import HEADS, markdown, write_figure, write_page
from deepbasis_paper.targets.plan import REGIMES, trained_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXT = (
    "Left: sparsification error: error minus the oracle's after the least certain pixels are "
    "removed (0 is best; the area is AUSE). Right: observed minus nominal coverage of intervals, "
    "over all pixels (0 is best; negative values mean intervals that are too narrow). Its area is "
    "the last column; AUCE is a mean over images. Curves are of the first seed."
)


def write(plan: Plan, command: str) -> None:
    """Score, draw, and list the areas."""
    tested = {regime: trained_points(plan, regime) for regime in REGIMES}
    cells = {
        (row, points): score(plan, row, points)
        for regime, points in tested.items()
        for row in rows(regime)
    }
    figure, axes = grid(2, 2, (4.6, 3.5))
    for pair, (regime, points) in zip(axes, tested.items(), strict=True):
        for row in drawn(regime):
            draw_sparsification(pair[0], row, cells[row, points])
            draw_calibration(pair[1], row, cells[row, points])
        pair[0].set(title=f"sparsification, {TITLES[regime]}", xlabel="share of pixels removed")
        pair[0].set(ylabel="MAE minus the oracle's (m)")
        pair[1].set(title=f"calibration, {TITLES[regime]}", xlabel="nominal coverage")
        pair[1].set(ylabel="observed minus nominal coverage")
    add_legend(figure)
    shown = write_figure(plan, "curves", figure)
    areas = [
        [points, row.input, row.name, *(cell.show(name) for name in ("ause", "auce", "auce_all"))]
        for (row, points), cell in cells.items()
    ]
    head = ["points", "input", "method", HEADS["ause"], HEADS["auce"], "AUCE, all pixels"]
    write_page(plan, "curves", command, [TEXT, "", shown, "", *markdown(head, areas, 3)], cells)


def draw_sparsification(ax: "Axes", row: Row, cell: Cell) -> "Axes":
    """The sparsification error of the first seed."""
    for one in cell.kept[:1]:
        pairs = zip(one.curves["error"], one.curves["oracle"], strict=True)
        ax.plot(one.curves["removed"], [error - oracle for error, oracle in pairs], **style(row))
    ax.grid(alpha=0.3)
    return ax


def draw_calibration(ax: "Axes", row: Row, cell: Cell) -> "Axes":
    """The calibration error of the first seed, with its sign."""
    for one in cell.kept[:1]:
        pairs = zip(one.curves["observed"], one.curves["level"], strict=True)
        ax.plot(one.curves["level"], [held - promised for held, promised in pairs], **style(row))
    ax.axhline(0, color="black", lw=0.5)
    ax.grid(alpha=0.3)
    return ax
