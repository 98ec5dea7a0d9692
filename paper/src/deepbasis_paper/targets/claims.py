# SPDX-License-Identifier: Apache-2.0
"""The paper's main claims, as ratios and differences that are computed from any table."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from deepbasis_paper.targets.paper import Key, Numbers

BASELINES = ("snap", "snap+log", "log")
# Other domains that models of a data set are tested on.
DOMAINS = {"vkitti2": ("15-deg", "30-deg", "kitti")}


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


def claims(
    regime: str, numbers: Numbers, ours: str = "bdbf", points: str | None = None
) -> list[Verdict]:
    """Every claim of one half of the paper.

    Args:
        regime: "mid" or "low".
        numbers: a table.
        ours: the row that is put to the test.
        points: those of training; by default the paper's.
    """
    return _mid(numbers, ours, points or "5%") if regime == "mid" else _low(numbers, ours)


def _mid(numbers: Numbers, ours: str, points: str) -> list[Verdict]:
    me, at = (points, "rgbd", ours), f"at {points.replace('%', ' %')}"

    def compare(metric: str, how: Callable[[float, float], float], *others: str) -> float:
        return _against(numbers, metric, how, me, "rgbd", others)

    def over_linear(count: str) -> float:
        return _pair(numbers, "mae", (count, "rgbd", ours), (count, "", "linear"))

    best = [(points, "rgbd", name) for name in BASELINES]
    fewer = _least(numbers, "mae", ("1%", "rgbd", ours), best)
    found = [
        _at_most(f"{at}: MAE over the best baseline's", 0.6, compare("mae", _ratio, *BASELINES)),
        _at_most(f"{at}: NLL less the best baseline's", -1,
                 compare("nll", _difference, *BASELINES)),
        _at_most(f"{at}: AUSE over the lowest of the others'", 1,
                 compare("ause", _ratio, *BASELINES, "dbf")),
        _at_most(f"{at}: AUCE over the best baseline's", 1, compare("auce", _ratio, *BASELINES)),
        _at_most(f"{at}: |ln NEES| over the best baseline's", 1, _consistency(numbers, me, best)),
        _at_most(f"{at}: MAE over that of linear interpolation", 0.9, over_linear(points)),
    ]  # fmt: skip
    if points == "sensor":
        return found
    return [
        *found,
        _at_most("at 1 %: MAE over that of linear interpolation", 1, over_linear("1%")),
        _at_most("MAE at 1 % over the best baseline's at 5 %", 1, fewer),
    ]


def _low(numbers: Numbers, ours: str) -> list[Verdict]:
    found = []
    best = _against(numbers, "mae", _ratio, ("500", "rgbd", ours), "rgbd", BASELINES)
    found.append(_at_most("at 500 points: MAE over the best baseline's", 1, best))
    for metric, how, word, limit in (
        ("mae", _ratio, "over", 1), ("rmse", _ratio, "over", 1), ("ause", _ratio, "over", 1),
        ("nll", _difference, "less", 0),
    ):  # fmt: skip
        rivals = (*BASELINES, "dbf", ours)
        value = _against(numbers, metric, how, ("50", "rgb", ours), "rgbd", rivals)
        claim = f"at 50 points: {metric.upper()} of rgb {word} the best rgbd's"
        found.append(Verdict(claim, f"below {limit}", value, value < limit))
    growth = [
        _pair(numbers, "mae", ("50", given, name), ("500", given, name))
        for given, name in (("rgb", ours), *(("rgbd", name) for name in (*BASELINES, ours)))
    ]
    slower = growth[0] / min(growth[1:]) if not any(map(math.isnan, growth)) else math.nan
    claim = "from 500 to 50 points: growth of the MAE of rgb over the least growth of an rgbd"
    found.append(Verdict(claim, "below 1", slower, slower < 1))
    blind = _against(numbers, "mae", _ratio, ("0", "rgb", ours), "rgb", ("log",))
    claim = "at 0 points: MAE of rgb over that of log rgb"
    return [*found, Verdict(claim, "finite", blind, math.isfinite(blind))]


def shift_claims(data: str, numbers: Numbers, ours: str = "bdbf") -> list[Verdict]:
    """On frames of other domains: MAE over the best baseline's."""
    return [
        _at_most(
            f"trained on {data}, tested on {domain}: MAE over the best baseline's", 1,
            _against(numbers, "mae", _ratio, (domain, "rgbd", ours), "rgbd", BASELINES),
        )
        for domain in DOMAINS.get(data, ())
    ]  # fmt: skip


def runtime_claims(seconds: Mapping[str, float]) -> list[Verdict]:
    """Inference time, in any unit: a fit costs more than a convolution, and less than an ensemble.

    The time of the scaffold is part of all of them.
    """

    def over(name: str, other: str) -> float:
        known = name in seconds and other in seconds
        return seconds[name] / seconds[other] if known else math.nan

    return [
        _at_most("run time of bdbf over that of log", 2, over("bdbf", "log")),
        _at_most("run time of bdbf over that of snap", 1, over("bdbf", "snap")),
    ]


def _at_most(claim: str, limit: float, value: float) -> Verdict:
    return Verdict(claim, f"at most {limit:g}", value, value <= limit)


def _against(
    numbers: Numbers, metric: str, how: Callable[[float, float], float],
    ours: Key, their_input: str, others: tuple[str, ...],
) -> float:  # fmt: skip
    """Ours to the least of the others'; NaN if one is unknown, but for dbf (not always printed)."""
    keys = [(ours[0], their_input, other) for other in others]
    needed = [ours, *(key for key in keys if key[2] != "dbf")]
    if not all(key in numbers for key in needed):
        return math.nan
    return how(numbers[ours][metric], min(numbers[key][metric] for key in keys if key in numbers))


def _least(numbers: Numbers, metric: str, ours: Key, others: list[Key]) -> float:
    """Ours over the least of the others'; NaN if one is unknown."""
    if not all(key in numbers for key in [ours, *others]):
        return math.nan
    return numbers[ours][metric] / min(numbers[key][metric] for key in others)


def _consistency(numbers: Numbers, ours: Key, others: list[Key]) -> float:
    """How far our NEES is from 1, over that of the nearest of the others; the paper draws NEES, but
    prints none.
    """
    if not all("nees" in numbers.get(key, {}) for key in [ours, *others]):
        return math.nan
    mine, *rivals = (abs(math.log(numbers[key]["nees"])) for key in [ours, *others])
    return mine / min(rivals)


def _pair(numbers: Numbers, metric: str, ours: Key, theirs: Key) -> float:
    return _least(numbers, metric, ours, [theirs])


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs


def _difference(ours: float, theirs: float) -> float:
    return ours - theirs
