# SPDX-License-Identifier: Apache-2.0
"""Error distributions to test with: ours, and any of scipy."""

from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from deepbasis import metrics


@dataclass(frozen=True)
class Scipy:
    """Any symmetric distribution of scipy; the interface asks for no more than this."""

    unit: object

    def at(self, where: Tensor) -> "Scipy":
        return self

    def half_width(self, var: Tensor, level: float) -> Tensor:
        return (var / self.unit.var()).sqrt() * self.unit.ppf((1 + level) / 2)

    def level(self, error: Tensor, var: Tensor) -> Tensor:
        scaled = error.abs() * (self.unit.var() / var).sqrt()
        return torch.as_tensor(1 - 2 * self.unit.sf(scaled.numpy()))

    def log_density(self, error: Tensor, var: Tensor) -> Tensor:
        scale = (self.unit.var() / var).sqrt()
        return torch.as_tensor(self.unit.logpdf((error * scale).numpy())) + scale.log()

    def from_normal(self, score: Tensor, var: Tensor) -> Tensor:
        unit = torch.as_tensor(self.unit.ppf(stats.norm.cdf(score.numpy())))
        return unit * (var / self.unit.var()).sqrt()


DISTRIBUTIONS = {
    "laplace": (metrics.Laplace(), stats.laplace()),
    "gauss": (Scipy(stats.norm()), stats.norm()),
    "student": (Scipy(stats.t(5)), stats.t(5)),
}
