# SPDX-License-Identifier: Apache-2.0
"""Last layers of the methods that the fit is compared with."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis.shapes import Float

# Log variances beyond these are a mistake of the network; exp of them must stay finite.
LOG_VARIANCE = (-20.0, 20.0)
# Powers of a doubt among which the best is looked for.
POWERS = (0.0, 2.0)


class ConvHead(nn.Module):
    """A 3x3 convolution of all bases at full size: log depth, and perhaps its variance.

    Args:
        channels: bases over all scales.
        variance: whether to predict one; it starts at 1.
        start: log depth that the untrained layer predicts on average.
    """

    def __init__(self, channels: int, *, variance: bool, start: float = 0.0) -> None:
        super().__init__()
        self.variance = variance
        self.conv = nn.Conv2d(channels, 2 if variance else 1, 3, padding=1)
        with torch.no_grad():
            self.conv.bias.zero_()  # type: ignore[union-attr]
            self.conv.weight[1:].zero_()
        self.set_start(start)

    def set_start(self, start: float) -> None:
        """Set the bias of the log depth."""
        with torch.no_grad():
            self.conv.bias[0] = start  # type: ignore[index]

    def forward(
        self, bases: list[Float[Tensor, "b _ _ _"]], size: tuple[int, int]
    ) -> tuple[Float[Tensor, "b 1 h w"], Float[Tensor, "b 1 h w"]]:
        """Mean and variance of log depth at `size`; the variance is 0 if none is predicted."""
        full = [F.interpolate(b, size, mode="bilinear", align_corners=False) for b in bases]
        out = self.conv(torch.cat(full, 1))
        out = out.to(torch.promote_types(out.dtype, torch.float32))  # leaves mixed precision
        mean = out[:, :1]
        if not self.variance:
            return mean, torch.zeros_like(mean)
        return mean, out[:, 1:].clamp(*LOG_VARIANCE).exp()


class Spread(nn.Module):
    """Variance of networks that are not trained to give one: std = scale * doubt^power.

    The two numbers are learned from the errors of a trained network; until then the std is 1.
    Without doubts, which then are 1 everywhere, the std is the same for all pixels.
    """

    numbers: Tensor

    def __init__(self, *, doubts: bool) -> None:
        super().__init__()
        self.doubts = doubts
        self.register_buffer("numbers", torch.zeros(2))  # ln(scale), power

    def forward(self, doubt: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Variance of log depth."""
        return (2 * (self.numbers[0] + self.numbers[1] * doubt.log())).exp()

    def learn(self, error: Float[Tensor, "n"], doubt: Float[Tensor, "n"]) -> tuple[float, float]:
        """Set scale and power to those of the largest Laplace likelihood, and return them."""
        from scipy.optimize import minimize_scalar

        size, log_doubt = error.abs().double(), doubt.log().double()

        def best_scale(power: float) -> Tensor:
            """ln(scale), which has a closed form: 2 b^2 = var, and b is the mean of |error|."""
            return (math.sqrt(2) * (size * (-power * log_doubt).exp()).mean()).log()

        def loss(power: float) -> float:
            return float(best_scale(power) + power * log_doubt.mean())

        power = minimize_scalar(loss, bounds=POWERS, method="bounded").x if self.doubts else 0.0
        self.numbers.copy_(torch.tensor([float(best_scale(power)), power]))
        return float(self.numbers[0].exp()), float(power)
