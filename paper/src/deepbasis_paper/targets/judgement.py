# SPDX-License-Identifier: Apache-2.0
"""One page with all claims of the paper: its number, ours, and whether it holds.

Nothing is measured here: the numbers are those that other targets wrote to the same folder.
"""

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

from deepbasis_paper.targets.claims import Verdict, claims, runtime_claims, shift_claims
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.pages import markdown, write_page
from deepbasis_paper.targets.paper import METRICS, RUNTIME, Numbers, table
from deepbasis_paper.targets.plan import trained_points

# Targets whose results hold claims, in the order of the page.
SOURCES = ("mid", "low", "shift", "runtime")
TEXT = (
    "Each claim is a ratio or a difference, computed in the same way from the paper's numbers and "
    "from ours. `bdbf` is the paper's recipe (`--recipe paper`). The goal is what the number must "
    "be for the claim to hold. `not printed` means that the paper has no such number, `not "
    "measured` that the page which the claim is computed from does not exist yet or misses a row."
)
LIMITS = "## What limits the claims that do not hold"


def write(plan: Plan, command: str) -> None:
    """Compute all claims from the stored results, and write the page."""
    lines, found = [], []
    for target in SOURCES:
        path = plan.out / f"{plan.data}-{target}.json"
        stored = _load(path)
        for theirs, ours in zip(_paper(plan, target), _ours(plan, target, stored), strict=True):
            values = (None if math.isnan(one.value) else one.value for one in (theirs, ours))
            found.append(dict(zip(("claim", "paper", "ours"), (ours.claim, *values), strict=True)))
            page = f"[{target}]({path.with_suffix('.md').name})" if stored else target
            lines.append(_line(theirs, ours, page))
    head = ["claim", "goal", "paper", "ours", "holds?", "page"]
    notes = plan.out / f"{plan.data}-claims-notes.md"
    limits = [LIMITS, "", notes.read_text().strip(), ""] if notes.exists() else []
    content = [TEXT, "", *markdown(head, lines, len(head)), *limits]
    write_page(plan, "claims", command, content, {}, claims=found)


def _line(theirs: Verdict, ours: Verdict, page: str) -> list[str]:
    paper = "not printed" if math.isnan(theirs.value) else f"{theirs.value:.3f}"
    measured = not math.isnan(ours.value)
    shown = f"{ours.value:.3f}" if measured else "not measured"
    return [
        ours.claim, ours.goal, paper, shown, ("yes" if ours.met else "no") if measured else "-",
        page,
    ]  # fmt: skip


def _load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _paper(plan: Plan, target: str) -> list[Verdict]:
    """The claims, by the paper's numbers."""
    if target == "runtime":
        return runtime_claims(RUNTIME)
    return _claims(plan, target, table(plan.stands_for, target))


def _ours(plan: Plan, target: str, stored: dict[str, Any]) -> list[Verdict]:
    """The claims, by a stored page."""
    if target == "runtime":
        return runtime_claims(stored.get("seconds", {}))
    return _claims(plan, target, numbers_of(stored))


def _claims(plan: Plan, target: str, numbers: Numbers) -> list[Verdict]:
    if target == "shift":
        return shift_claims(plan.stands_for, numbers)
    return claims(target, numbers, points=trained_points(plan, target))


def numbers_of(stored: dict[str, Any]) -> Numbers:
    """The cells of a stored page, in the form of the paper's numbers; means over the seeds."""
    found: Numbers = {}
    for cell in stored.get("cells", []):
        scores = [one["metrics"] for one in cell["scores"]]
        if scores:
            name = ", ".join(filter(None, [cell["method"], cell["reading"]]))
            turned = cell["points"].removesuffix("-left").removesuffix("-right")
            # Of left and right, which the paper does not tell apart, the first is kept.
            found.setdefault(
                (turned, cell["input"], name),
                {
                    metric: fmean(one[metric] for one in scores)
                    for metric in (*METRICS, "nees")
                    if metric in scores[0]
                },
            )
    return found
