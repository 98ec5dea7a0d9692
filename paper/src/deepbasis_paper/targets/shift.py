# SPDX-License-Identifier: Apache-2.0
"""Models of `mid` on frames of other domains than that of their training."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from deepbasis.data.sources import Source
from deepbasis_paper.targets.cells import Cell, Row, evaluation, rows, score, source_of, split
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.pages import table, write_page
from deepbasis_paper.targets.paper import table as paper_table
from deepbasis_paper.targets.plan import REGIMES, SENSOR, trained_points

# What --shift-root holds, by the data set of training.
ROOTS = {"nyu": "folder", "rooms": "nyu", "roads": "kitti", "vkitti2": "kitti", "kitti": "folder"}
_TURNS = ("15-deg-left", "15-deg-right", "30-deg-left", "30-deg-right")
TURNED = {"roads": (*_TURNS, "fog"), "vkitti2": _TURNS}


class Domain(NamedTuple):
    """Frames to be tested on."""

    name: str
    source: Source
    points: str


def domains(plan: Plan) -> Iterator[Domain]:
    """The domain of training first, then all others that there are frames of."""
    own, points = source_of(plan), trained_points(plan, "mid")
    yield Domain(plan.data, own, points)
    for variant in TURNED.get(plan.data, ()):
        yield Domain(variant, replace(own, variant=variant), points)
    if plan.shift_root is not None:
        kind = ROOTS[plan.data]
        other = replace(own, data=kind, root=plan.shift_root, size=None)
        name = plan.shift_root.resolve().name if kind == "folder" else kind
        yield Domain(name, other, SENSOR.get(kind, REGIMES["mid"]))


def left_out(plan: Plan) -> str:
    """What was not tested, and why."""
    if plan.shift_root is not None:
        return "All domains were tested."
    kind = ROOTS[plan.data].replace("folder", "a folder of other frames")
    return f"Not tested: {kind}, for which --shift-root is needed."


def write(plan: Plan, command: str) -> None:
    """Score every row on every domain."""
    paper = paper_table(plan.stands_for, "shift")
    cells: dict[tuple[Row, str], Cell] = {}
    lines = [
        f"Trained on {plan.data} with points: {trained_points(plan, 'mid')}. {left_out(plan)}",
        "",
    ]
    told = []
    for domain in domains(plan):
        here = {row: score(plan, row, domain.points, domain.source) for row in rows("mid")}
        cells |= {(row, domain.name): cell for row, cell in here.items()}
        count = len(domain.source.open("test"))
        about = f"{count} frames, split {split(domain.source)}, points: {domain.points}"
        lines += [f"## Tested on {domain.name}", "", f"{about}.", ""]
        lines += table(here, paper, domain.name.removesuffix("-left").removesuffix("-right"))
        told += [evaluation(plan, row, domain.points, source=domain.source) for row in here]
    lines += ["## Commands", "", "```text", *(f"$ {line}" for line in told), "```", ""]
    write_page(plan, "shift", command, lines, cells)
