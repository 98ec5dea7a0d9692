# SPDX-License-Identifier: Apache-2.0
"""The distribution of a latent around its mean, as far as metrics have to know it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.shapes import Float


@runtime_checkable
class Shape(Protocol):
    """A symmetric distribution whose spread is told by its variance, pixel by pixel."""

    def half_width(self, var: Float[Tensor, "*s"], level: float) -> Float[Tensor, "*s"]:
        """Half the width of the central interval that holds `level` of the probability."""
        ...

    def level(self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Probability of the central interval that ends at `error`; inverse of `half_width`."""
        ...

    def log_density(
        self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*s"]:
        """Natural logarithm of the density at `error`."""
        ...


@dataclass(frozen=True)
class Laplace:
    """The paper's shape: density exp(-|error| / b) / (2 b) with 2 b^2 = var."""

    def half_width(self, var: Float[Tensor, "*s"], level: float) -> Float[Tensor, "*s"]:
        """Half the width of the central interval that holds `level` of the probability."""
        return latent.half_width(var, level)

    def level(self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Probability of the central interval that ends at `error`."""
        return -torch.expm1(-error.abs() * (2 / var).sqrt())

    def log_density(
        self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*s"]:
        """Natural logarithm of the density at `error`; ln 2b = ln(2 var) / 2."""
        return -error.abs() * (2 / var).sqrt() - (2 * var).log() / 2


LAPLACE = Laplace()


def interval(
    mean: Float[Tensor, "*s"], var: Float[Tensor, "*s"], level: float, shape: Shape = LAPLACE
) -> tuple[Float[Tensor, "*s"], Float[Tensor, "*s"]]:
    """Low and high depth in metres between which the truth lies with probability `level`."""
    half = shape.half_width(var, level)
    return latent.to_depth(mean - half), latent.to_depth(mean + half)
