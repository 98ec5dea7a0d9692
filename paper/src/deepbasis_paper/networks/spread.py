# SPDX-License-Identifier: Apache-2.0
"""Variance of networks that are not trained to give one."""

import math

import torch
from torch import Tensor, nn

from deepbasis.calibrate.learn import Draw, sample_pixels
from deepbasis.calibrate.measure import Predicts
from deepbasis.data.sample import Frames
from deepbasis.shapes import Float

# Powers of a doubt among which the best is searched.
POWERS = (0.0, 2.0)


class Spread(nn.Module):
    """Variance of log depth: std = scale * doubt^power.

    The two numbers are learned from the errors of a trained network; until then the std is 1.
    Without doubts, which then are 1 everywhere, the std is the same for all pixels.
    """

    log_scale: Tensor
    power: Tensor

    def __init__(self, *, doubts: bool) -> None:
        super().__init__()
        self.doubts = doubts
        self.register_buffer("log_scale", torch.zeros(()))
        self.register_buffer("power", torch.zeros(()))

    def forward(self, doubt: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Variance of log depth."""
        return (2 * (self.log_scale + self.power * doubt.log())).exp()

    def set(self, scale: float, power: float) -> None:
        """Store the two numbers; (1, 1) makes the std the doubt itself."""
        self.log_scale.fill_(math.log(scale))
        self.power.fill_(power)

    def learn(self, error: Float[Tensor, "n"], doubt: Float[Tensor, "n"]) -> tuple[float, float]:
        """Set scale and power to those of the largest Laplace likelihood, and return them."""
        from scipy.optimize import minimize_scalar

        size, log_doubt = error.abs().double(), doubt.log().double()

        def best_scale(power: float) -> float:
            """It has a closed form: 2 b^2 = var, and b is the mean of |error|."""
            return math.sqrt(2) * float((size * (-power * log_doubt).exp()).mean())

        def loss(power: float) -> float:
            return math.log(best_scale(power)) + power * float(log_doubt.mean())

        power = minimize_scalar(loss, bounds=POWERS, method="bounded").x if self.doubts else 0.0
        self.set(best_scale(power), float(power))
        return best_scale(power), float(power)


def learn_spread(
    network: Predicts, spread: Spread, draw: Draw, frames: Frames
) -> dict[str, object]:
    """Learn scale and power from the errors of a network whose variance is made by `spread`."""
    spread.set(1.0, 1.0)
    groups = sample_pixels(draw, network, frames, "independent")
    error, square, _ = torch.cat([group.rows for group in groups]).unbind(1)
    return {"spread": spread.learn(error, square.sqrt())}
