# SPDX-License-Identifier: Apache-2.0
"""The paper's main claims, as ratios and differences that are computed from any table."""

import math
from collections.abc import Callable
from typing import NamedTuple

from deepbasis_paper.targets.paper import Numbers

BASELINES = ("snap", "snap+log", "log")


class Verdict(NamedTuple):
    """One claim: its number, what the number should be, and whether it is; NaN if it is unknown."""

    claim: str
    goal: str
    value: float
    met: bool

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "unknown"
        return f"{self.value:.3f}, {'met' if self.met else 'not met'}"


def claims(regime: str, numbers: Numbers, ours: str = "bdbf") -> list[Verdict]:
    """Every claim of one half of the paper; `ours` is the row that is put to the test."""
    return {"mid": _mid, "low": _low}[regime](numbers, ours)


def _mid(numbers: Numbers, ours: str) -> list[Verdict]:
    def compare(metric: str, how: Callable[[float, float], float], *others: str) -> float:
        return _against(numbers, metric, how, ("5%", "rgbd", ours), "rgbd", others)

    mae = compare("mae", _ratio, *BASELINES)
    nll = compare("nll", _difference, *BASELINES)
    ause = compare("ause", _ratio, *BASELINES, "dbf")
    return [
        Verdict("at 5 %: MAE over the best baseline's", "at most 0.6", mae, mae <= 0.6),
        Verdict("at 5 %: NLL less the best baseline's", "at most -1", nll, nll <= -1),
        Verdict("at 5 %: AUSE over the lowest of the others'", "at most 1", ause, ause <= 1),
    ]


def _low(numbers: Numbers, ours: str) -> list[Verdict]:
    found = []
    for metric, how, word, limit in (
        ("mae", _ratio, "over", 1), ("rmse", _ratio, "over", 1), ("ause", _ratio, "over", 1),
        ("nll", _difference, "less", 0),
    ):  # fmt: skip
        rivals = (*BASELINES, "dbf", ours)
        value = _against(numbers, metric, how, ("50", "rgb", ours), "rgbd", rivals)
        claim = f"at 50 points: {metric.upper()} of rgb {word} the best rgbd's"
        found.append(Verdict(claim, f"below {limit}", value, value < limit))
    blind = _against(numbers, "mae", _ratio, ("0", "rgb", ours), "rgb", ("log",))
    claim = "at 0 points: MAE of rgb over that of log rgb"
    return [*found, Verdict(claim, "finite", blind, math.isfinite(blind))]


def _against(
    numbers: Numbers, metric: str, how: Callable[[float, float], float],
    ours: tuple[str, str, str], their_input: str, others: tuple[str, ...],
) -> float:  # fmt: skip
    """Ours to the least of the others'; NaN if one is unknown, but for dbf (not always printed)."""
    keys = [(ours[0], their_input, other) for other in others]
    needed = [ours, *(key for key in keys if key[2] != "dbf")]
    if not all(key in numbers for key in needed):
        return math.nan
    return how(numbers[ours][metric], min(numbers[key][metric] for key in keys if key in numbers))


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs


def _difference(ours: float, theirs: float) -> float:
    return ours - theirs
