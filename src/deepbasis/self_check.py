# SPDX-License-Identifier: Apache-2.0
"""A check without ground truth: some points are held out and predicted from the others.

Points are held out singly, which represents pixels near points, and in blocks, for gaps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from deepbasis import latent
from deepbasis.arguments import show
from deepbasis.conformal import FEWEST_SCORES, ConformalTable
from deepbasis.data.formats import load_array, write_npy
from deepbasis.layer import Errors
from deepbasis.model import Scene
from deepbasis.points import Points, distance_to_points
from deepbasis.registration import Registration, check_registration
from deepbasis.result import Completion
from deepbasis.shapes import Bool, Float, Int
from deepbasis.stream import Stream

Verdict = Literal["contradicted", "not contradicted", "too few points to tell"]

# Share of the points that a round holds out singly, and about as many in blocks.
HELD_OUT = 0.1
# Sides of the blocks, as parts of the image's longer side, by round; a block with a larger share of
# the points than this is left in.
BLOCKS, LARGEST_BLOCK = (1 / 6, 1 / 10, 1 / 4), 0.2
# Rounds are added until about this many points were held out, up to a limit.
WANTED, ROUNDS = 400, 5
# With fewer held-out points nothing can be said about error bars.
ENOUGH = 20
LEVELS = (0.5, latent.ONE_SIGMA, 0.9, 0.99)
# Coverage is off if it is so by more than SLACK, and by more than chance allows in CONFIDENCE
# of all checks. Errors within a cell of a CELLS x CELLS grid may be alike.
SLACK, CONFIDENCE, CELLS = 0.05, 0.99, 6
# Error bars are contradicted if intervals of these levels or above cover too little. Those below
# are calibrated over many images, too, but in single ones their coverage varies by far more.
DECISIVE = 0.9
# Far from points: more than this many times the usual distance between neighbours.
FAR = 2.0
# Share of points outside their 99 % interval from which wrong points are suspected.
MANY_WRONG = 0.05


# What is known of each held-out point, besides its frame.
COLUMNS = ("depth", "predicted", "error", "half", "distance", "far", "cell")


class Coverage(NamedTuple):
    """Share of the held-out points inside their intervals, with bounds for all other points."""

    share: float
    low: float
    high: float
    """Clopper-Pearson bounds at CONFIDENCE, for the effective number of independent points."""


@dataclass(frozen=True)
class Check:
    """Points that were held out, and what the others predict there."""

    depth: Float[np.ndarray, " n"]
    """As measured, in metres."""
    predicted: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    """Of log depth."""
    half: Float[np.ndarray, "levels n"]
    """Half widths of the predicted intervals of log depth, one row for each level."""
    distance: Float[np.ndarray, " n"]
    """To the nearest point that was not held out, in pixels."""
    far: Float[np.ndarray, " n"]
    """1 for points that are far from all others, 0 for those near one."""
    cell: Float[np.ndarray, " n"]
    """Part of the image that a point is in."""
    frame: Float[np.ndarray, " n"]
    """Number of its frame."""
    registration: Registration | None = None
    """Whether the points belong to the image; None if they are too few, or of many frames."""
    named: float = 0.0
    """Share of the points that are named as outliers."""
    widened: bool = False
    """Whether the intervals of the result were widened by these points."""

    def write(self, path: Path) -> None:
        """Write the points to a file."""
        write_npy(path, self.to_array())

    def to_array(self) -> Float[np.ndarray, "columns n"]:
        """The points as one array."""
        columns = (self.depth, self.predicted, self.error, self.distance, self.far, self.cell)
        return np.stack([*columns, *self.half])

    @classmethod
    def read(cls, path: Path | str) -> "Check":
        """Read what `write` wrote: all but the registration."""
        values = load_array(Path(path))
        if values.ndim != 2 or len(values) != len(COLUMNS) - 1 + len(LEVELS):
            raise ValueError(f"{path} is not a file of held-out points, such as NAME-check.npy")
        return cls.of_array(values)

    @classmethod
    def of_array(cls, values: Float[np.ndarray, "columns n"]) -> "Check":
        """What `to_array` gave: all but the registration."""
        depth, predicted, error, distance, far, cell, *half = values
        return cls(
            depth, predicted, error, np.stack(half), distance, far, cell, np.zeros_like(cell)
        )

    @classmethod
    def join(cls, parts: Sequence["Check"]) -> "Check":
        """One check of the points of several frames."""
        listed = isinstance(parts, Sequence) and len(parts) > 0
        if not listed or not all(isinstance(part, Check) for part in parts):
            raise ValueError(f"the checks to join are {show(parts)}; pass those of some frames")
        frame = np.repeat(np.arange(float(len(parts))), [len(part) for part in parts])
        columns: list[Any] = [
            np.concatenate([getattr(part, name) for part in parts], -1) for name in COLUMNS
        ]
        columns.append(frame)
        return cls(*columns)

    def where(self, chosen: Bool[np.ndarray, " n"]) -> "Check":
        """Some of the points."""
        columns: list[Any] = [getattr(self, name)[..., chosen] for name in (*COLUMNS, "frame")]
        return Check(*columns)

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def mae(self) -> float:
        """Mean absolute error in metres."""
        return float(np.abs(self.predicted - self.depth).mean())

    @property
    def rmse(self) -> float:
        """Root mean squared error in metres."""
        return float(np.sqrt(np.square(self.predicted - self.depth).mean()))

    @property
    def coverage(self) -> list[Coverage]:
        """Share of the points inside their intervals, at each level, with its bounds."""
        cell = (self.frame * (CELLS * CELLS) + self.cell).astype(np.int64)
        return [bound_share(inside, cell) for inside in np.abs(self.error) <= self.half]

    @property
    def wrong(self) -> bool:
        """Whether many points are outliers, or outside of any reasonable interval."""
        found = self.coverage
        tail = 1 - found[-1].high > MANY_WRONG and found[0].share >= LEVELS[0] - SLACK
        return self.named > MANY_WRONG or tail

    @property
    def miscovered(self) -> dict[float, float]:
        """By how much coverage is too high or too low, at the levels where that is significant."""
        found = zip(LEVELS, self.coverage, strict=True)
        off = {level: one.share - level for level, one in found if not one.low <= level <= one.high}
        return {level: excess for level, excess in off.items() if abs(excess) > SLACK}

    @property
    def too_narrow(self) -> list[float]:
        """Levels of DECISIVE or above whose intervals cover too little."""
        return [
            level for level, excess in self.miscovered.items() if level >= DECISIVE and excess < 0
        ]

    @property
    def verdict(self) -> Verdict:
        """Whether the points contradict the error bars, or the image."""
        if self.registration is not None and self.registration.contradicted:
            return "contradicted"
        if len(self) < ENOUGH:
            return "too few points to tell"
        return "contradicted" if self.wrong or self.too_narrow else "not contradicted"

    @property
    def cause(self) -> str | None:
        """The most likely cause of a contradiction."""
        if self.verdict != "contradicted":
            return None
        if self.registration is not None and self.registration.contradicted:
            return self.registration.cause
        if self.wrong:
            share = max(self.named, 1 - self.coverage[-1].share)
            return f"about {share:.0%} of the points look wrong: the others contradict them"
        level = self.too_narrow[0]
        share = self.coverage[LEVELS.index(level)].share
        if self.widened:
            return (
                "the error bars were too narrow for this data, and --rescale has widened them: the "
                f"{level:.0%} interval contained {share:.0%}"
            )
        hint = "; --rescale widens them" if len(self) >= FEWEST_SCORES else ""
        return (
            "the error bars are too narrow for this data: the "
            f"{level:.0%} interval contains {share:.0%}{hint}"
        )

    @property
    def statement(self) -> str:
        """The check in one sentence."""
        n, reg = len(self), self.registration
        if self.verdict == "too few points to tell":
            return f"{self.verdict}: {n} held out, {ENOUGH} are needed to judge the error bars"
        if n < ENOUGH:
            assert reg is not None
            return f"contradicted: {reg.cause} ({reg.points} points)"
        found = f"{n} points held out, MAE {self.mae:.3g} m, {self.describe()}"
        if self.verdict == "contradicted":
            return f"contradicted: {self.cause} ({found})"
        if max(self.miscovered.values(), default=0.0) <= 0:
            return f"not contradicted by {found}"
        widest = max(range(len(LEVELS)), key=lambda i: self.coverage[i].share - LEVELS[i])
        wide = f"the {LEVELS[widest]:.0%} interval contains {self.coverage[widest].share:.0%}"
        return (
            f"not contradicted by {found}; the error bars are wider than they need to be: {wide} "
            "(`deepbasis adapt` narrows them)"
        )

    def describe(self) -> str:
        """Coverage of the 90 % interval, near points and far from them."""
        share, low, high = self.coverage[2]
        text = f"coverage of the 90% interval {share:.0%} ({low:.0%} to {high:.0%})"
        for name, part in self.parts.items():
            if len(part):
                text += f", {part.coverage[2].share:.0%} of the {len(part)} that are {name}"
        return text

    @property
    def parts(self) -> dict[str, "Check"]:
        """Points near others, and far from them."""
        far = self.far > 0
        return {"near points": self.where(~far), "far from points": self.where(far)}

    @property
    def scores(self) -> Float[np.ndarray, " n"]:
        """Absolute errors in units of the predicted half width of the 68.27 % interval."""
        return np.abs(self.error) / self.half[1]

    def table(self) -> ConformalTable:
        """Conformal intervals: for a single frame from its points, for many with each frame as one
        exchangeable group. Refused with too few.

        It widens intervals where needed and never narrows them: points of a sensor resemble each
        other more than the pixels between them.
        """
        many = len(np.unique(self.frame)) > 1
        return ConformalTable.learn(
            self.scores, self.distance, self.frame.astype(np.int64) if many else None
        )

    def report(self) -> dict[str, Any]:
        """All of it in numbers, for a file."""
        levels = [f"{level:.4g}" for level in LEVELS]

        def covered(part: Check) -> dict[str, Any] | None:
            if not len(part):
                return None
            found = dict(zip(levels, (one._asdict() for one in part.coverage), strict=True))
            return {"held_out": len(part), "mae": part.mae, "rmse": part.rmse, "coverage": found}

        parts = {name.replace(" ", "_"): covered(part) for name, part in self.parts.items()}
        registration = None if self.registration is None else self.registration._asdict()
        return {
            "verdict": self.verdict, "cause": self.cause, "statement": self.statement,
            "held_out": len(self), "all": covered(self), **parts,
            "farthest_checked_px": float(self.distance.max()) if len(self) else None,
            "registration": registration,
        }  # fmt: skip


def bound_share(inside: Bool[np.ndarray, " n"], cell: Int[np.ndarray, " n"]) -> Coverage:
    """A share with exact bounds, if points of one cell may be correlated but cells are independent.

    Clopper and Pearson's bounds for the effective number of points (Korn and Graubard, Survey
    Methodology 24, 1998): the number of independent points whose share varies as much.
    """
    if not len(inside):
        return Coverage(math.nan, 0.0, 1.0)
    n, share = len(inside), float(inside.mean())
    _, which = np.unique(cell, return_inverse=True)
    sums = np.bincount(which, inside - share)
    count = len(sums)
    effective = float(n)
    if 0 < share < 1 and count > 1:
        var = count / (count - 1) * np.square(sums).sum() / n**2
        effective = min(n, share * (1 - share) / var) if var > 0 else n
    hits, alpha = share * effective, (1 - CONFIDENCE) / 2
    low = betaincinv(hits, effective - hits + 1, alpha) if hits > 0 else 0.0
    high = betaincinv(hits + 1, effective - hits, 1 - alpha) if hits < effective else 1.0
    return Coverage(share, float(low), float(high))


def check(
    scene: Scene,
    answer: Completion,
    *,
    errors: Errors | None = None,
    robust: bool = True,
    huber: float | None = None,
    seed: int = 0,
) -> Check:
    """Hold out points of a completion, predict them from the others, and try to move them.

    Args:
        scene: the image.
        answer: what `scene.complete` gave; its points are checked.
        errors: error model of the answer.
        robust: whether wrong points are left out, as of the answer.
        huber: as of the answer.
        seed: of the draw.
    """
    _check_pair(scene, answer)
    rows = answer.points
    wrong = {(one.u, one.v) for one in answer.outliers}
    right = np.array([(u, v) not in wrong for u, v in rows[:, :2].tolist()], np.bool_)

    def complete(kept: Bool[np.ndarray, " n"]) -> Completion:
        return scene.complete(rows[kept], errors=errors, robust=robust, huber=huber)

    return _check_points(scene, rows, right, complete, seed)


def check_frame(
    stream: Stream,
    scene: Scene,
    points: ArrayLike | Points | None = None,
    pose: ArrayLike | None = None,
    name: str | None = None,
    *,
    seed: int = 0,
) -> Check:
    """The check of the next frame of a stream, before it is added; the stream is not changed.

    Held-out points are predicted from the other points of the frame and all frames before it. So
    points that are carried over from earlier frames count as used points in the distances.

    Args:
        stream: the sequence up to the frame.
        scene, points, pose, name: of the frame, as in `Stream.add`.
        seed: of the draw.
    """
    if not isinstance(stream, Stream):
        raise ValueError(f"the stream is {show(stream)}; pass a `deepbasis.stream.Stream`")
    _check_scene(scene)
    own = stream.own_points(scene, points)

    def complete(kept: Bool[np.ndarray, " n"]) -> Completion:
        return stream.copy().add(scene, own.where(torch.from_numpy(kept)), pose, name)

    return _check_points(scene, own.rows, stream.judge(scene, own).numpy(), complete, seed)


def _check_points(
    scene: Scene,
    rows: Float[np.ndarray, "n columns"],
    right: Bool[np.ndarray, " n"],
    complete: Callable[[Bool[np.ndarray, " n"]], Completion],
    seed: int,
) -> Check:
    """Hold out points, and try to move those that are right.

    Args:
        scene: the image.
        rows: its points.
        right: which of them do not contradict the others.
        complete: completes the image from some of the points.
        seed: of the draw.
    """
    size = scene.pyramid.size
    spacing = usual_distance(rows)
    height, width = size
    found = [_nothing()]
    for removed, scored in draw_rounds(rows, size, np.random.default_rng(seed)):
        held, other = rows[scored], complete(~removed)
        column, row = np.floor(held[:, :2] + 0.5).astype(int).T
        half = np.stack([other.half_width(level)[row, column] for level in LEVELS])
        half = half.astype(np.float64)
        if held.shape[1] == 4:  # a poor measurement may be off by more than a perfect one
            sigmas = np.array([NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS])
            half = np.hypot(half, sigmas[:, None] * held[:, 3] / held[:, 2])
        z = latent.to_latent(torch.from_numpy(held[:, 2])).numpy()
        distance = distance_to_points(other.points, size)[row, column].astype(np.float64)
        cell = (row * CELLS // height) * CELLS + column * CELLS // width
        found.append(
            Check(
                held[:, 2],
                other.depth[row, column].astype(np.float64),
                z - other.latent_mean[row, column],
                half,
                distance,
                (distance > FAR * spacing).astype(np.float64),
                cell.astype(np.float64),
                np.zeros(len(held)),
            )
        )
    joined = Check.join(found)
    registration = check_registration(scene, rows[right])
    parts = {name: getattr(joined, name) for name in Check.__dataclass_fields__}
    parts |= {"registration": registration, "named": 1 - float(right.mean()) if len(rows) else 0.0}
    return Check(**parts | {"frame": np.zeros(len(joined))})


def _check_scene(scene: object) -> None:
    """Refuse what is not a scene."""
    if not isinstance(scene, Scene):
        raise ValueError(f"the scene is {show(scene)}; pass what `model.prepare(image)` gave")


def _check_pair(scene: Scene, answer: Completion) -> None:
    """Refuse what is not a scene and a completion of it."""
    _check_scene(scene)
    if not isinstance(answer, Completion):
        raise ValueError(
            f"the completion to check is {show(answer)}; pass what `scene.complete(points)` gave"
        )
    if answer.latent_mean.shape != scene.pyramid.size:
        sizes = (" x ".join(map(str, one)) for one in (answer.depth.shape, scene.pyramid.size))
        raise ValueError(
            "the completion is {} pixels (height x width), the scene {}; pass a completion of this "
            "scene".format(*sizes)
        )


def draw_rounds(
    rows: Float[np.ndarray, "n columns"], size: tuple[int, int], rng: np.random.Generator
) -> Iterator[tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]]:
    """Which points each round removes, and which of these it scores: each point once at most."""
    n = len(rows)
    rounds = min(max(math.ceil(WANTED / max(2 * HELD_OUT * n, 1)), 1), ROUNDS)
    order, share = rng.permutation(n), int(HELD_OUT * n)
    done = np.zeros(n, np.bool_)
    for i in range(rounds if share else 0):
        removed = np.zeros(n, np.bool_)
        removed[order[i * share : (i + 1) * share]] = True
        removed |= _draw_blocks(rows, BLOCKS[i % len(BLOCKS)] * max(size), rng, share)
        scored = removed & ~done
        done |= scored
        if scored.any():
            yield removed, scored


def _draw_blocks(
    rows: Float[np.ndarray, "n columns"], side: float, rng: np.random.Generator, wanted: int
) -> Bool[np.ndarray, " n"]:
    """Points in random squares, about as many as wanted."""
    place = np.floor((rows[:, :2] + rng.uniform(0, side, 2)) / side).astype(np.int64)
    _, block, size = np.unique(place, axis=0, return_inverse=True, return_counts=True)
    small = rng.permutation(np.flatnonzero(size <= LARGEST_BLOCK * len(rows)))
    before = np.concatenate([[0], size[small].cumsum()])[:-1]
    return np.isin(block.reshape(-1), small[before < wanted])


def usual_distance(rows: Float[np.ndarray, "n columns"]) -> float:
    """Median distance of a point to the nearest other, in pixels."""
    from scipy.spatial import cKDTree

    if len(rows) < 2:
        return 0.0
    return float(np.median(cKDTree(rows[:, :2]).query(rows[:, :2], 2)[0][:, 1]))


def _nothing() -> Check:
    none = np.zeros(0)
    return Check(none, none, none, np.zeros((len(LEVELS), 0)), none, none, none, none)
