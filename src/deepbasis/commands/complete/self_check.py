# SPDX-License-Identifier: Apache-2.0
"""A check without ground truth: some points are held out and predicted from the others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch

from deepbasis import latent
from deepbasis.commands.complete import Complete
from deepbasis.data.formats import load_array, write_npy
from deepbasis.model import Scene
from deepbasis.result import Completion
from deepbasis.shapes import Float

# Share of the points that is held out.
HELD_OUT = 0.1
# With fewer points nothing can be said about error bars.
ENOUGH = 20
LEVELS = (0.5, latent.ONE_SIGMA, 0.9)
# Error bars are trusted if their coverage is this near to the nominal one, or as near as chance
# puts so many points in 99 of 100 checks. (Chance, if their errors are independent.)
SLACK, CHANCE = 0.05, NormalDist().inv_cdf(0.995)


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

    def write(self, path: Path) -> None:
        """Write the points to a file."""
        write_npy(path, np.stack([self.depth, self.predicted, self.error, *self.half]))

    @classmethod
    def read(cls, path: Path) -> "Check":
        """Read what `write` wrote."""
        depth, predicted, error, *half = load_array(path)
        return cls(depth, predicted, error, np.stack(half))

    @classmethod
    def join(cls, parts: Sequence["Check"]) -> "Check":
        """One check of the points of several frames."""
        columns = ([getattr(part, name) for part in parts] for name in cls.__dataclass_fields__)
        return cls(*(np.concatenate(column, -1) for column in columns))

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
    def coverage(self) -> list[float]:
        """Share of the points inside their intervals, at each level."""
        return (np.abs(self.error) <= self.half).mean(1).tolist()

    @property
    def tolerance(self) -> list[float]:
        """How far coverage may be from its level."""
        chance = (CHANCE * math.sqrt(p * (1 - p) / len(self)) for p in LEVELS)
        return [max(SLACK, spread) for spread in chance]

    @property
    def trusted(self) -> bool | None:
        """Whether the error bars are right on these points; None if they are too few to tell."""
        if len(self) < ENOUGH:
            return None
        found = zip(self.coverage, LEVELS, self.tolerance, strict=True)
        return all(abs(share - level) <= slack for share, level, slack in found)

    @property
    def factor(self) -> float | None:
        """What the std is to be multiplied by so that a new point lies within with its 68.27 %.

        Split conformal prediction: the ceil((n + 1) 68.27 %)-th smallest error, in units of the
        predicted half width, whatever the distribution of the errors.
        """
        rank = math.ceil((len(self) + 1) * latent.ONE_SIGMA)
        if len(self) < ENOUGH:
            return None
        return float(np.sort(np.abs(self.error) / self.half[1])[rank - 1])

    @property
    def verdict(self) -> str:
        """The check in one sentence."""
        n = len(self)
        if self.trusted is None:
            return f"{n} held-out points are too few to judge the error bars; {ENOUGH} are needed"
        shares = ", ".join(
            f"{share:.0%} of the {level:.0%} interval"
            for level, share in zip(LEVELS, self.coverage, strict=True)
        )
        found = f"{n} points held out: MAE {self.mae:.3g} m, coverage {shares}"
        if self.trusted:
            return f"{found}; the error bars can be trusted on this data"
        kind = "too narrow" if self.coverage[1] < LEVELS[1] else "too wide"
        if abs(self.coverage[1] - LEVELS[1]) <= self.tolerance[1]:
            kind = "of another distribution than the errors"
        advice = f"factor {self.factor:.2f}: --rescale"
        return f"{found}; the error bars are {kind} for this data ({advice})"


def hold_out(scene: Scene, answer: Completion, settings: Complete, seed: int = 0) -> Check:
    """Predict a tenth of the points of an answer from the others."""
    order = np.random.default_rng(seed).permutation(len(answer.points))
    held, rest = np.split(answer.points[order], [int(HELD_OUT * len(order))])
    other = scene.complete(rest, errors=settings.errors, huber=settings.huber)
    column, row = np.floor(held[:, :2] + 0.5).astype(int).T
    half = np.stack([other.half_width(level)[row, column] for level in LEVELS])
    if held.shape[1] == 4:  # a poor measurement may be off by more than a perfect one
        sigmas = np.array([NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS])
        half = np.hypot(half, sigmas[:, None] * held[:, 3] / held[:, 2])
    error = latent.to_latent(torch.from_numpy(held[:, 2])).numpy() - other.latent_mean[row, column]
    return Check(held[:, 2], other.depth[row, column].astype(np.float64), error, half)
