# SPDX-License-Identifier: Apache-2.0
"""What the layer gives back."""

from typing import NamedTuple

from torch import Tensor

from deepbasis import fit
from deepbasis.fit import local
from deepbasis.measurements import Measurements
from deepbasis.shapes import Float


class Prediction(NamedTuple):
    """Log depth at every pixel; its variance is `model_var` + `noise_var`."""

    mean: Float[Tensor, "b 1 h w"]
    model_var: Float[Tensor, "b 1 h w"]
    noise_var: Float[Tensor, "b 1 h w"]

    @property
    def var(self) -> Float[Tensor, "*s"]:
        """Variance of log depth."""
        return self.model_var + self.noise_var


class Whitened(NamedTuple):
    """Measurements with their places and bases, and their innovations under local errors."""

    x: Float[Tensor, "b n f"]
    phi: Float[Tensor, "b n m"]
    z: Float[Tensor, "b n"]
    weight: Float[Tensor, "b n"]
    news: local.Innovations


class Explained(NamedTuple):
    """A prediction, and how it came about."""

    prediction: Prediction
    posterior: fit.Posterior
    points: Measurements
    frame: Whitened | None = None
    """Only with local errors: the posterior is then that of its innovations."""
