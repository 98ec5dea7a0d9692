# SPDX-License-Identifier: Apache-2.0
"""What figures share: one colour for each method, and grids of axes."""

from typing import TYPE_CHECKING, Any

from deepbasis_paper.targets.cells import Row, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "snap": "tab:gray", "snap+log": "tab:brown", "log": "tab:green", "dbf": "tab:purple",
    "bdbf": "tab:red", "bdbf, predictive": "tab:orange", "bdbf, correlated": "tab:blue",
    "linear": "tab:olive", "kriging": "tab:cyan",
}  # fmt: skip
TITLES = {"mid": "trained with 5 %", "low": "trained with 500"}


def drawn(regime: str) -> list[Row]:
    """The rows that figures show: without baselines, and of dbf only the paper's."""
    return [row for row in rows(regime, "0") if row.name in COLOURS]


def style(row: Row) -> dict[str, Any]:
    """How to draw a row's line; dashed, if its network sees the image alone."""
    return {
        "color": COLOURS[row.name], "label": row.label, "lw": 1.5,
        "linestyle": "--" if row.rgb else "-",
    }  # fmt: skip


def grid(
    lines: int, columns: int, size: tuple[float, float]
) -> tuple["Figure", list[list["Axes"]]]:
    """Axes of some width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    return figure, [list(line) for line in axes]


def add_legend(figure: "Figure") -> None:
    """One legend below all axes."""
    found: dict[str, Any] = {}
    for ax in figure.axes:
        handles, labels = ax.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", ncols=6, fontsize=8
        )
