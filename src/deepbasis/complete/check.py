# SPDX-License-Identifier: Apache-2.0
"""A check without ground truth: some points are held back and predicted from the others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

from deepbasis import latent
from deepbasis.completion import Completion
from deepbasis.model import Completer
from deepbasis.shapes import Float, UInt8

# Share of the points that is held back.
HELD_BACK = 0.1
# Fewer points than this tell nothing of error bars.
ENOUGH = 20
LEVELS = (0.5, latent.ONE_SIGMA, 0.9)
# Error bars are trusted if their coverage is this near to the nominal one, or as near as chance
# puts so many points in 99 of 100 checks. (Chance, if their errors are independent.)
SLACK, CHANCE = 0.05, NormalDist().inv_cdf(0.995)


@dataclass(frozen=True)
class Check:
    """Points that were held back, and what the others made of them."""

    depth: Float[np.ndarray, " n"]
    """As measured, in metres."""
    predicted: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]
    """Of log depth."""
    half: Float[np.ndarray, "levels n"]
    """Half widths of the predicted intervals of log depth, one row for each level."""

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
        """Share of the points that lie in their intervals, at each level."""
        return (np.abs(self.error) <= self.half).mean(1).tolist()

    @property
    def tolerance(self) -> list[float]:
        """How far coverage may be from its level."""
        chance = (CHANCE * math.sqrt(p * (1 - p) / len(self)) for p in LEVELS)
        return [max(SLACK, spread) for spread in chance]

    @property
    def trusted(self) -> bool | None:
        """Whether the error bars hold on these points; None if they are too few to tell."""
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
            return f"{n} points held back are too few to judge error bars by; {ENOUGH} would do"
        shares = ", ".join(
            f"{level:.0%} hold {share:.0%}"
            for level, share in zip(LEVELS, self.coverage, strict=True)
        )
        found = f"of {n} points held back, MAE {self.mae:.3g} m, intervals of {shares}"
        if self.trusted:
            return f"{found}: error bars can be trusted on this data"
        kind = "too narrow" if self.coverage[1] < LEVELS[1] else "too wide"
        if abs(self.coverage[1] - LEVELS[1]) <= self.tolerance[1]:
            kind = "of another shape than the errors"
        return f"{found}: error bars are {kind} for this data (factor {self.factor:.2f}: --rescale)"


def hold_back(
    model: Completer, image: UInt8[np.ndarray, "h w 3"], answer: Completion, seed: int = 0
) -> Check | None:
    """Predict a tenth of the points of an answer from the others; None if there are not ten."""
    order = np.random.default_rng(seed).permutation(len(answer.points))
    held, rest = np.split(answer.points[order], [int(HELD_BACK * len(order))])
    if not len(held):
        return None
    other = model.complete(image, rest)
    column, row = held[:, 0].astype(int), held[:, 1].astype(int)
    half = np.stack([other.half_width(level)[row, column] for level in LEVELS])
    if held.shape[1] == 4:  # a poor measurement may be off by more than a perfect one
        sigmas = np.array([NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS])
        half = np.hypot(half, sigmas[:, None] * held[:, 3] / held[:, 2])
    error = latent.to_latent(torch.from_numpy(held[:, 2])).numpy() - other.latent_mean[row, column]
    return Check(held[:, 2], other.depth[row, column].astype(np.float64), error, half)
