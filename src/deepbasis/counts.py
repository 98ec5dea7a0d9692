# SPDX-License-Identifier: Apache-2.0
"""Calibration by the number of points: what two factors for all leave to be put right.

With thousands of points errors are tiny but for a few edges, with a handful they are nearly
Gaussian, and how far a variance is off changes on the way. So a factor and a shape are learned at
some numbers of points; between them their logarithms are interpolated over that of 1 + points.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.prediction import Prediction
from deepbasis.shapes import Float

# Numbers of points at which it can be known.
MOST = 8
# Whose logarithm stands for that of 0.
LEAST = 1e-6


class Tail(NamedTuple):
    """How errors are distributed at one number of points; see `latent.StudentT`."""

    points: float
    factor: float
    """On the variance."""
    dof: float
    """0 for a Laplace."""
    width: float


# Of errors that nothing was learned of.
LAPLACE = Tail(0, 1, 0, 1)


def table(tails: Sequence[Tail]) -> Float[Tensor, "knots 4"]:
    """Some tails as a layer stores them, by the number of points; the last fills up the rest."""
    rows = sorted(tails) or [LAPLACE]
    if len(rows) > MOST:
        raise ValueError(f"{len(rows)} numbers of points are too many; pass at most {MOST}")
    return torch.tensor(rows + rows[-1:] * (MOST - len(rows)), dtype=torch.float32)


def at(
    known: Float[Tensor, "knots 4"], points: Float[Tensor, "*b"]
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """Factor, dof and width for so many points; beyond those known, as at the last of them."""
    place, knots = points.to(known).log1p(), known[:, 0].log1p()
    logs = known[:, 1:].clamp(min=LEAST).log()
    right = torch.searchsorted(knots, place).clamp(1, MOST - 1)
    span = (knots[right] - knots[right - 1]).clamp(min=LEAST)
    step = ((place - knots[right - 1]) / span).clamp(0, 1)[..., None]
    factor, dof, width = logs[right - 1].lerp(logs[right], step).exp().unbind(-1)
    return factor, dof, width


def shape(
    known: Float[Tensor, "knots 4"], prediction: Prediction, points: Float[Tensor, "*b"]
) -> latent.Shape:
    """How the errors of a prediction from so many points are distributed, pixel by pixel."""
    if not known[0, 2]:
        return latent.LAPLACE
    _, dof, width = at(known, points)
    share = prediction.noise_var / prediction.var
    if dof.numel() == 1:
        return latent.StudentT(float(dof), float(width), share)
    return latent.StudentT(dof, width, share)
