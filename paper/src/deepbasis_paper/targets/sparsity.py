# SPDX-License-Identifier: Apache-2.0
"""Depth and error bars with fewer and fewer points: NLL against MAE."""

from typing import TYPE_CHECKING

from deepbasis_paper.targets.cells import Cell, Row, rows, score
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import TITLES, add_legend, drawn, grid, style
from deepbasis_paper.targets.pages import sweep, write_figure, write_page
from deepbasis_paper.targets.plan import points_to_test

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SWEEPS = {
    "mid": ("5%", "3%", "1%"),
    "low": ("500", "200", "50"),
}
TEXT = (
    "Top: each line goes from the points of training (the large dot) to the fewest; lower left is "
    "better. Bottom: the same relative to the start; shorter lines mean less change."
)


def write(plan: Plan, command: str) -> None:
    """Score every row along both sweeps, and draw them."""
    sweeps = {regime: points_to_test(plan, regime, points) for regime, points in SWEEPS.items()}
    cells = {
        (row, points): score(plan, row, points)
        for regime, tested in sweeps.items()
        for row in rows(regime)
        for points in tested
    }
    figure, axes = grid(2, 2, (4.6, 3.6))
    for column, regime in enumerate(sweeps):
        for row in drawn(regime):
            line = [cells[row, points] for points in sweeps[regime]]
            draw_line(axes[0][column], row, line)
            draw_line(axes[1][column], row, line, relative=True)
        tested = sweeps[regime]
        axes[0][column].set(title=f"{TITLES[regime]}, tested from {tested[0]} to {tested[-1]}")
        axes[0][column].set(xlabel="MAE (m)", ylabel="NLL (nats a pixel)")
        axes[1][column].set(xlabel="MAE over its start", ylabel="NLL less its start")
    add_legend(figure)
    shown = write_figure(plan, "sparsity", figure)
    lines = [TEXT, "", shown, ""]
    for regime, tested in sweeps.items():
        lines += [f"MAE (m) / NLL, {TITLES[regime]} and tested with:", ""]
        lines += sweep(rows(regime), tested, cells, _show)
    write_page(plan, "sparsity", command, lines, cells)


def draw_line(ax: "Axes", row: Row, line: list[Cell], *, relative: bool = False) -> "Axes":
    """A row along a sweep, if it is there."""
    found = [(cell.mean("mae"), cell.mean("nll")) for cell in line if cell.kept]
    if not found:
        return ax
    first_mae, first_nll = found[0]
    mae = [mae / first_mae if relative else mae for mae, _ in found]
    nll = [nll - first_nll if relative else nll for _, nll in found]
    ax.plot(mae, nll, marker=".", **style(row))
    ax.plot(mae[0], nll[0], marker="o", color=style(row)["color"])
    ax.grid(alpha=0.3)
    return ax


def _show(cell: Cell) -> str:
    return f"{cell.show('mae')} / {cell.show('nll')}" if cell.kept else "missing"
