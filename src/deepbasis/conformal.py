# SPDX-License-Identifier: Apache-2.0
"""Split conformal intervals: coverage with a guarantee, for any distribution of the errors.

A score is the absolute error of log depth at a point that the fit did not use, divided by the
predicted half width of the 68.27 % interval there. If a new score is exchangeable with n known
ones, it is at most their ceil((n + 1) level)-th smallest with probability `level` or more, and with
less than level + 1 / (n + 1) if no two are equal (Vovk et al., Algorithmic Learning in a Random
World, 2005; Lei et al., JASA 113, 2018). Errors in one frame resemble each other. For many frames,
frames, not points, are therefore taken as exchangeable: each has the same weight, and so has an
unseen one of infinite scores (Lee, Barber and Willett, Distribution-free inference with
hierarchical data, 2023).

Scores are kept apart by the distance to the nearest used point, so that the guarantee holds near
points and far from them.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepbasis.data.files import atomic_write, find_file
from deepbasis.data.limits import read_text
from deepbasis.shapes import Float, Int

# Upper bounds in pixels of the distances that are kept apart, if each has enough points.
DISTANCES = (2.0, 5.0, 12.0, 30.0)
# A distance with fewer scores is joined with the next; with fewer than that in all, or with fewer
# exchangeable groups than the 90 % interval needs, there is no table.
FEWEST_SCORES, FEWEST_GROUPS = 40, 9
# Levels that a table holds; one between them is rounded up.
LEVELS = np.arange(1, 200) / 200
# Levels are compared with this tolerance, so that 0.9 is 180 / 200.
ROUNDING = 1e-9
FORMAT = 1


def quantile(
    scores: Float[np.ndarray, " n"], level: float, group: Int[np.ndarray, " n"] | None = None
) -> float:
    """The smallest score that a new one does not exceed with probability `level`.

    Args:
        scores: at least one.
        level: probability.
        group: frame of each score; by default each score is a group of its own.

    Returns:
        The score; infinity if there are too few groups for this level.
    """
    order = np.argsort(scores, kind="stable")
    return _read(scores[order], _weights(len(scores), group)[order].cumsum(), level)


def _weights(n: int, group: Int[np.ndarray, " n"] | None) -> Float[np.ndarray, " n"]:
    """Probability of each score; what is missing to 1 is that of the unseen group."""
    if group is None:
        return np.full(n, 1 / (n + 1))
    _, which, size = np.unique(group, return_inverse=True, return_counts=True)
    return 1 / (size[which] * (len(size) + 1.0))


def _read(
    ordered: Float[np.ndarray, " n"], cumulative: Float[np.ndarray, " n"], level: float
) -> float:
    place = int(np.searchsorted(cumulative, level - ROUNDING))
    return float(ordered[place]) if place < len(ordered) else math.inf


@dataclass(frozen=True)
class ConformalTable:
    """Half widths of intervals by level and distance, in units of the predicted std of log depth.

    `Completion.with_conformal` applies it.
    """

    distances: tuple[float, ...]
    """Upper bounds in pixels of the distances to the nearest point; the last is infinite."""
    factors: Float[np.ndarray, "distances levels"]
    """One column for each of `LEVELS`; infinite if there were too few groups."""
    scores: tuple[int, ...]
    """Number of scores at each distance."""
    groups: int
    """What is exchangeable, and how many there were: frames, or points of a single frame."""
    reach: float
    """Largest distance of a score; beyond it, intervals are at least as wide as predicted."""
    narrows: bool = False
    """Whether intervals may be narrower than predicted; else they are only widened."""

    @classmethod
    def learn(
        cls,
        scores: Float[np.ndarray, " n"],
        distance: Float[np.ndarray, " n"],
        group: Int[np.ndarray, " n"] | None = None,
        *,
        narrows: bool = False,
    ) -> "ConformalTable":
        """A table from the scores of points that the fits did not use.

        Args:
            scores: absolute error divided by the predicted half width of the 68.27 % interval.
            distance: to the nearest used point, in pixels.
            group: frame of each score; None for a single frame.
            narrows: whether the scores represent all pixels so well that intervals may become
                narrower than predicted.
        """
        groups = len(scores) if group is None else len(np.unique(group))
        if len(scores) < FEWEST_SCORES or groups < FEWEST_GROUPS:
            what = "" if group is None else f" of {groups} frames"
            also = "" if group is None else f" of {FEWEST_GROUPS} frames"
            raise ValueError(
                f"{len(scores)} held-out points{what} are too few for conformal intervals; "
                f"{FEWEST_SCORES}{also} are needed"
            )
        bounds, factors, counts = [], [], []
        for bound, inside in _bins(distance, group):
            order = np.argsort(scores[inside], kind="stable")
            ordered = scores[inside][order]
            weights = _weights(len(ordered), None if group is None else group[inside])
            cumulative = weights[order].cumsum()
            factors.append([_read(ordered, cumulative, level) for level in LEVELS])
            bounds.append(bound)
            counts.append(len(ordered))
        reach = float(distance.max(initial=0))
        return cls(tuple(bounds), np.array(factors), tuple(counts), groups, reach, narrows)

    def half_width(
        self,
        own: Float[np.ndarray, "*s"],
        std: Float[np.ndarray, "*s"],
        distance: Float[np.ndarray, "*s"],
        level: float,
    ) -> Float[np.ndarray, "*s"]:
        """Half widths of the intervals of some pixels.

        Args:
            own: as predicted, at this level.
            std: as predicted, at 68.27 %.
            distance: to the nearest point, in pixels.
            level: probability.
        """
        column = int(np.searchsorted(LEVELS, level - ROUNDING))
        factors = self.factors[:, column] if column < len(LEVELS) else np.array([math.inf])
        if not np.isfinite(factors).all():
            raise ValueError(
                f"an interval of level {level:g} cannot be guaranteed with {self.groups} frames or "
                f"points; at most {self.largest_level:g} can, or collect more"
            )
        half = factors[np.searchsorted(self.distances, distance)] * std
        free = self.narrows & (distance <= self.reach)
        return np.where(free, half, np.maximum(half, own)).astype(std.dtype)

    @property
    def largest_level(self) -> float:
        """The largest level that there were enough groups for."""
        return float(LEVELS[np.isfinite(self.factors).all(0)].max(initial=0))

    def save(self, path: Path | str) -> None:
        """Write the table to a small JSON file."""
        rows = [[_to_json(x) for x in row] for row in self.factors]
        content = {
            "format": FORMAT, "distances": [_to_json(x) for x in self.distances],
            "scores": list(self.scores), "groups": self.groups, "reach": _to_json(self.reach),
            "narrows": self.narrows,
            "levels": LEVELS.tolist(), "factors": rows,
        }  # fmt: skip
        with atomic_write(Path(path)) as file:
            file.write(json.dumps(content).encode())

    @classmethod
    def load(cls, path: Path | str) -> "ConformalTable":
        """Read what `save` wrote."""
        find_file(Path(path))
        try:
            found = json.loads(read_text(Path(path)))
            if found["format"] != FORMAT or found["levels"] != LEVELS.tolist():
                raise ValueError("its format is not supported")
            factors = np.array([[_from_json(x) for x in row] for row in found["factors"]])
            distances = tuple(map(_from_json, found["distances"]))
            _check(distances, factors)
            scores = tuple(map(int, found["scores"]))
            groups, reach = int(found["groups"]), _from_json(found["reach"])
            if len(scores) != len(distances) or groups < 1 or not reach >= 0:
                raise ValueError("its numbers are not those of a table")
            return cls(distances, factors, scores, groups, reach, bool(found["narrows"]))
        except OSError as error:
            raise ValueError(f"cannot read {path} ({error.strerror})") from error
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise ValueError(
                f"{path} is not a conformal table that this version of deepbasis wrote"
            ) from error


def _bins(
    distance: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"] | None
) -> list[tuple[float, Any]]:
    """Upper bounds of distances with enough scores each, and the scores that belong to them."""
    found: list[tuple[float, Any]] = []
    inside = np.zeros(len(distance), np.bool_)
    start = -math.inf
    for bound in (*DISTANCES, math.inf):
        inside = (distance > start) & (distance <= bound)
        groups = inside.sum() if group is None else len(np.unique(group[inside]))
        if inside.sum() >= FEWEST_SCORES and groups >= FEWEST_GROUPS:
            found.append((bound, inside))
            start = bound
    if not found:
        return [(math.inf, np.ones(len(distance), np.bool_))]
    # What is left beyond the last is joined with it.
    start = found[-2][0] if len(found) > 1 else -math.inf
    found[-1] = math.inf, distance > start
    return found


def _check(distances: tuple[float, ...], factors: Float[np.ndarray, "*s"]) -> None:
    shape = (len(distances), len(LEVELS))
    good = factors.shape == shape and (factors >= 0).all()
    good = good and (factors[:, 1:] >= factors[:, :-1]).all()
    if not (good and list(distances) == sorted(set(distances)) and distances[-1] == math.inf):
        raise ValueError("its numbers are not those of a table")


def _to_json(value: float) -> float | None:
    """JSON has no infinity."""
    return float(value) if math.isfinite(value) else None


def _from_json(value: float | None) -> float:
    return math.inf if value is None else float(value)
