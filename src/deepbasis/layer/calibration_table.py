# SPDX-License-Identifier: Apache-2.0
"""Calibration: factors on the variances, and the error distribution, by the number of points.

With thousands of points errors are tiny except at a few edges; with a handful they are nearly
Gaussian, and how far a variance is off changes in between. So a factor and an error distribution
are learned at some numbers of points. Between these, logarithms are interpolated linearly in
ln(1 + points).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.layer.prediction import LeaveOneOut, Prediction
from deepbasis.shapes import Float

# Numbers of points at which a model can store a calibration.
ROWS = 8
# Stands for 0 where a logarithm is taken.
TINY = 1e-6


class CalibrationRow(NamedTuple):
    """Calibration at one number of points; see `latent.StudentT`."""

    points: float
    factor: float
    """On the variance."""
    dof: float
    """Degrees of freedom of the noise; 0 for a Laplace distribution."""
    width: float


# Before anything was learned.
LAPLACE = CalibrationRow(0, 1, 0, 1)


class Calibrated(NamedTuple):
    """The calibration of the images of a batch, each at its own number of points."""

    noise_factor: Float[Tensor, "b 1 1 1"]
    model_factor: Float[Tensor, "b 1 1 1"]
    dof: Float[Tensor, "b 1 1 1"] | None
    """None for a Laplace distribution."""
    width: Float[Tensor, "b 1 1 1"]

    def apply(self, prediction: Prediction) -> Prediction:
        """Multiply the variances by their factors."""
        mean, model_var, noise_var = prediction
        noise, model = self.noise_factor.to(mean), self.model_factor.to(mean)
        return Prediction(mean, model * model_var, noise * noise_var)

    def distribution(self, prediction: Prediction | LeaveOneOut) -> latent.ScaleMixture:
        """Distribution of the errors of a calibrated prediction, pixel by pixel."""
        if self.dof is None:
            return latent.LAPLACE
        if self.dof.numel() == 1:
            return latent.StudentT(float(self.dof), float(self.width), prediction.noise_share)
        return latent.StudentT(self.dof, self.width, prediction.noise_share)


class Calibration(nn.Module):
    """Factors on noise and model variance for all numbers of points, and a table by number."""

    noise_factor: Tensor
    model_factor: Tensor
    points: Tensor
    factor: Tensor
    dof: Tensor
    width: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise_factor", torch.ones(()))
        self.register_buffer("model_factor", torch.ones(()))
        for name in CalibrationRow._fields:
            self.register_buffer(name, torch.zeros(ROWS))
        self.reset()

    def reset(self) -> None:
        """Forget what was learned."""
        self.set_factors(1.0, 1.0)
        self.set_rows([])

    def set_factors(self, noise: float, model: float) -> None:
        """Store the factors on noise and model variance for all numbers of points."""
        if not min(noise, model) > 0:
            raise ValueError(f"calibration factors are {noise} and {model}; both must be > 0")
        self.noise_factor.fill_(noise)
        self.model_factor.fill_(model)

    def set_rows(self, rows: Sequence[CalibrationRow]) -> None:
        """Store the calibration at some numbers of points; without any, forget it."""
        known = sorted(rows) or [LAPLACE]
        if len(known) > ROWS:
            raise ValueError(f"{len(known)} numbers of points are too many; pass at most {ROWS}")
        filled = known + known[-1:] * (ROWS - len(known))
        for name, column in zip(CalibrationRow._fields, zip(*filled, strict=True), strict=True):
            getattr(self, name).copy_(torch.tensor(column))

    def at(self, points: Float[Tensor, "b"]) -> Calibrated:
        """Interpolate between the stored numbers of points; beyond them, take the nearest."""
        place, knots = points.to(self.points).log1p(), self.points.log1p()
        right = torch.searchsorted(knots, place).clamp(1, ROWS - 1)
        span = (knots[right] - knots[right - 1]).clamp(min=TINY)
        step = ((place - knots[right - 1]) / span).clamp(0, 1)

        def between(values: Tensor) -> Tensor:
            logs = values.clamp(min=TINY).log()
            return logs[right - 1].lerp(logs[right], step).exp().view(-1, 1, 1, 1)

        factor = between(self.factor)
        dof = between(self.dof) if self.dof[0] > 0 else None
        noise, model = self.noise_factor * factor, self.model_factor * factor
        return Calibrated(noise, model, dof, between(self.width))
