# SPDX-License-Identifier: Apache-2.0
"""Normalised convolutions: averages of what is known, and how much that was.

Eldesokey, Felsberg and Khan, "Propagating Confidences through CNNs for Sparse Data Regression",
2018: their unguided network for sparse depth. Kernels are not negative, by a softplus. We leave
out its 13 biases, so that every depth is an average of measured ones whatever the unit: of its
480 parameters 468 remain.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.shapes import Float

# Of the softplus: the larger, the nearer it is to max(0, x).
SHARPNESS = 10.0
# Scales, each of half the size of the one before.
SCALES = 4


class NormConv(nn.Module):
    """A normalised convolution: conv(c x) / conv(c), of confidence conv(c) / sum of the kernel."""

    def __init__(self, into: int, out: int, size: int) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.rand(out, into, size, size))

    @property
    def kernel(self) -> Float[Tensor, "out into k k"]:
        """Not negative."""
        return F.softplus(self.raw, beta=SHARPNESS)

    def forward(
        self, x: Float[Tensor, "b c h w"], confidence: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b d h w"], Float[Tensor, "b d h w"]]:
        """Values and their confidences; where there is no confidence the value is 0."""
        kernel, pad = self.kernel, self.raw.shape[-1] // 2
        weight = F.conv2d(confidence, kernel, padding=pad)
        total = F.conv2d(confidence * x, kernel, padding=pad)
        known = weight > 0
        value = torch.where(known, total / torch.where(known, weight, 1), 0)
        return value, weight / kernel.sum((1, 2, 3))[:, None, None]


def shrink(x: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
    """Half the size: of each four pixels the most confident, with a quarter of its confidence."""
    best, index = F.max_pool2d(confidence, 2, ceil_mode=True, return_indices=True)
    return x.flatten(2).gather(2, index.flatten(2)).view_as(best), best / 4


def grow(pair: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat pixels up to the size of `like`."""
    x, confidence = (F.interpolate(part, like.shape[2:], mode="nearest") for part in pair)
    return x, confidence


class NCNN(nn.Module):
    """Sparse depth to dense depth with a confidence from 0 to 1; it does not see the image.

    Four scales share two of the layers; three others join a scale to the next finer one.
    """

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        self.enter = NormConv(1, channels, 5)
        self.second = NormConv(channels, channels, 5)
        self.third = NormConv(channels, channels, 5)
        self.join = nn.ModuleList(NormConv(2 * channels, channels, 3) for _ in range(SCALES - 1))
        self.leave = NormConv(channels, 1, 1)

    def forward(
        self,
        sparse: Float[Tensor, "b 1 h w"],
        confidence: Float[Tensor, "b 1 h w"] | None = None,
    ) -> tuple[Float[Tensor, "b 1 h w"], Float[Tensor, "b 1 h w"]]:
        """Depth in metres, 0 where no measurement reaches, and confidence.

        `confidence` is that of the measurements, by default 1.
        """
        valid = latent.is_valid(sparse)
        trust = valid.to(sparse.dtype) if confidence is None else confidence
        here = self.enter(torch.where(valid, sparse, 0), trust)
        scales = [self.third(*self.second(*here))]
        for number in range(1, SCALES):
            here = self.second(*shrink(*scales[-1]))
            scales.append(self.third(*here) if number == 1 else here)
        found = scales.pop()
        for join, finer in zip(self.join, reversed(scales), strict=True):
            coarser = grow(found, finer[0])
            found = join(*(torch.cat(parts, 1) for parts in zip(finer, coarser, strict=True)))
        depth, reached = self.leave(*found)
        return depth, reached
