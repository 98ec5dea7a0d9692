# SPDX-License-Identifier: Apache-2.0
"""Last layers of the methods that the fit is compared with, and their likelihood."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis.nets.network import per_image
from deepbasis.shapes import Bool, Float

# Log variances beyond these are a mistake of the network; exp of them must stay finite.
LOG_VARIANCE = (-20.0, 20.0)


def laplace_nll(
    mean: Float[Tensor, "b 1 h w"],
    var: Float[Tensor, "b 1 h w"],
    z: Float[Tensor, "b 1 h w"],
    known: Bool[Tensor, "b 1 h w"],
) -> Float[Tensor, "b"]:
    """Mean of -ln p(z) over the known pixels of each image; Laplace with 2 b^2 = var."""
    log_b = 0.5 * (var / 2).log()
    return per_image((z - mean).abs() * (-log_b).exp() + log_b + math.log(2), known)


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
