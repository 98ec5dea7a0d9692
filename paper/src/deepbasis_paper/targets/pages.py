# SPDX-License-Identifier: Apache-2.0
"""Pages of results: tables of cells, what is missing, and the commands that reproduce them."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import deepbasis
from deepbasis.data.files import atomic_write
from deepbasis.evaluation import commit
from deepbasis.metrics import CONVENTIONS
from deepbasis.plots import save
from deepbasis_paper.targets.cells import Cell, Row, evaluation, source_of, split
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.paper import METRICS, Numbers
from deepbasis_paper.targets.plan import Training, command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = {
    "mae": "MAE (m)", "rmse": "RMSE (m)", "delta1": "δ1 (%)", "ause": "AUSE (m)", "auce": "AUCE",
    "nll": "NLL", "nees": "NEES",
}  # fmt: skip
STAND_IN = (
    "**Rendered roads stand in for Virtual KITTI 2 here; numbers of the paper are those of Virtual "
    "KITTI 2.**"
)
Cells = Mapping[tuple[Row, str], Cell]
"""By row and points."""


def table(cells: Mapping[Row, Cell], paper: Numbers, key: str) -> list[str]:
    """Our numbers, the best of each column bold, and after a slash the paper's.

    The paper's are found under `key`: the points, or another domain.
    """
    lines = []
    for row, cell in cells.items():
        theirs = paper.get((key, row.input, row.name), {})
        shown = (_show(cells, cell, name, theirs.get(name)) for name in METRICS)
        lines.append([row.input, row.name, *shown])
    return markdown(["input", "method", *(HEADS[name] for name in METRICS)], lines)


def sweep(
    rows: Iterable[Row], points: Sequence[str], cells: Cells, show: Callable[[Cell], str]
) -> list[str]:
    """One number of every row at every pattern; "-" where there is none."""
    lines = [
        [row.input, row.name, *(show(cells[row, p]) if (row, p) in cells else "-" for p in points)]
        for row in rows
    ]
    return markdown(["input", "method", *points], lines)


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 2) -> list[str]:
    """A table; the columns after the `left` first ones are numbers."""
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    rows = ([cell.replace("|", r"\|") for cell in line] for line in (head, marks, *lines))
    return [*(f"| {' | '.join(row)} |" for row in rows), ""]


def _show(cells: Mapping[Row, Cell], cell: Cell, metric: str, theirs: float | None) -> str:
    digits = 2 if metric == "delta1" else 3
    text = cell.show(metric, digits)
    if cell.kept:
        sign = -1 if metric == "delta1" else 1
        best = min(sign * other.mean(metric) for other in cells.values() if other.kept)
        text = f"**{text}**" if sign * cell.mean(metric) == best else text
    return text if theirs is None else f"{text} / {theirs:.{digits}f}"


def again(plan: Plan, rows: Sequence[Row], points: Sequence[str]) -> list[str]:
    """The commands that score and that train each row."""
    trainings = dict.fromkeys(training for row in rows for training in row.trainings(plan))
    return [
        "## Commands", "",
        "Each row by itself, in minutes; pass one pattern of points for one cell:", "", "```text",
        *(f"$ {evaluation(plan, row, *points)}" for row in rows), "```", "",
        "The trainings:", "", *_commands(trainings), "",
    ]  # fmt: skip


def _commands(trainings: Iterable[Training]) -> list[str]:
    words = [shlex.join(["deepbasis-paper", *command(training.config)]) for training in trainings]
    return ["```text", *(f"$ {line}" for line in words), "```"]


def write_page(
    plan: Plan,
    target: str,
    command: str,
    lines: Sequence[str],
    cells: Cells,
    missing: Iterable[Training] = (),
    commits: Iterable[str] = (),
    **more: Any,
) -> None:
    """Write OUT/DATA-TARGET.md, to be read, and .json, with every number.

    What is `missing`, besides what the cells miss, is listed with the commands that train it.
    `commits` are the code of scores that are not in cells.
    """
    source = source_of(plan)
    count = len(source.open("test"))
    of_cells = {one.commit for cell in cells.values() for one in cell.kept}
    codes = sorted(of_cells.union(commits) or {commit()})
    told = f"{count} test frames, split {split(source)}, code {', '.join(codes)}"
    about = {
        "command": command, "version": deepbasis.__version__, "commit": commit(),
        "data": asdict(source), "frames": count, "split": split(source),
        "convention": CONVENTIONS["images"], "cells": [_plain(*item) for item in cells.items()],
        **more,
    }  # fmt: skip
    gone = dict.fromkeys([*missing, *(one for cell in cells.values() for one in cell.missing)])
    absent = ["## Missing", "", "Not trained yet:", "", *_commands(gone), ""] if gone else []
    foot = [*absent, f"{told}; {CONVENTIONS['images']}.", "", "```text", f"$ {command}", "```", ""]
    path = plan.out / f"{plan.data}-{target}"
    stand_in = [STAND_IN, ""] if plan.stands_for != plan.data else []
    page = "\n".join([f"# {plan.data}: {target}", "", *stand_in, *lines, "", *foot])
    for suffix, text in (("json", json.dumps(about, indent=1, default=str) + "\n"), ("md", page)):
        with atomic_write(path.with_name(f"{path.name}.{suffix}")) as file:
            file.write(text.encode())
    print(f"page    {path}.md")


def _plain(key: tuple[Row, str], cell: Cell) -> dict[str, Any]:
    """A cell as JSON; without the curves, which are in its own file."""
    row, points = key
    return asdict(row) | {
        "points": points,
        "scores": [asdict(one.score) | {"commit": one.commit} for one in cell.kept],
        "missing": [training.name for training in cell.missing],
    }


def write_figure(plan: Plan, name: str, figure: "Figure") -> str:
    """Write OUT/DATA-NAME.png and return the line that shows it."""
    path = plan.out / f"{plan.data}-{name}.png"
    save(figure, path)
    print(f"figure  {path}")
    return f"![{name}]({path.name})"
