# SPDX-License-Identifier: Apache-2.0
"""What the layer returns."""

from typing import NamedTuple

from torch import Tensor

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

    @property
    def noise_share(self) -> Float[Tensor, "*s"]:
        """Share of the variance that is noise."""
        return self.noise_var / self.var


class LeaveOneOut(NamedTuple):
    """What all other points of an image predict at each of its n points."""

    residual: Float[Tensor, "n"]
    """Log depth measured minus predicted."""
    var: Float[Tensor, "n"]
    """Variance of the residual."""
    noise_share: Float[Tensor, "n"]
    """Share of the variance that is noise."""
