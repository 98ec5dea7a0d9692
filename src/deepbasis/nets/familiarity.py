# SPDX-License-Identifier: Apache-2.0
"""How much an image resembles those that a network was trained on, by the network's own features.

An image is summed up by the mean of each channel of the encoder's stages, at strides 4 to 32.
Training frames give mean and covariance of these summaries, for each stage. The distance of an
image is the root of the mean over the stages of its squared Mahalanobis distance per channel, so
that each stage counts the same: the first ones know the camera, the last ones the things in the
picture. Scenes differ in many ways that do not matter, so a direction is added in which the
summaries of distorted training frames differ from those of the frames themselves: the linear
discriminant of the two. The distance of an image is compared with those of frames that the
statistics were not measured on.

The prior of an image that is farther away than most of these is wider, up to what was learned from
distorted frames.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from deepbasis.fit import Widening
from deepbasis.nets.known import Known
from deepbasis.shapes import Float

STAGES = 4
# Added to the variance of the features, relative to it: training frames are fewer than would be
# needed to know the directions in which they vary least.
SHRINKAGE = 0.003
# The same for the discriminant, which is a single direction found among all channels.
DISCRIMINANT_SHRINKAGE = 0.1
# Weight of the discriminant in the distance, per standard deviation within a class. Distances of
# the stages have a standard deviation of about 0.15.
DISCRIMINANT_WEIGHT = 0.3
# Smallest standard deviation of a feature, for those that a network never uses.
SMALLEST_STD = 1e-6
# Quantiles of the distances of familiar frames between which the prior is widened more and more.
RAMP = (0.85, 0.95)


class Stage(Known):
    """Mean and covariance of the summaries of one stage."""

    mean: Tensor
    whitener: Tensor
    """W with W W' the inverse of the covariance, divided by the number of channels."""

    def __init__(self) -> None:
        super().__init__("mean", "whitener")

    def learn(self, summaries: Float[Tensor, "n c"]) -> None:
        """From n frames."""
        x = summaries.double()
        mean, std = x.mean(0), x.std(0).clamp(min=SMALLEST_STD)
        y = (x - mean) / std
        values, vectors = torch.linalg.eigh(y.mT @ y / (len(y) - 1))
        size = (values.clamp(min=0) + SHRINKAGE).mul(len(values)).rsqrt()
        self.store(mean=mean, whitener=vectors * size / std[:, None])

    def square(self, summary: Float[Tensor, "b c"]) -> Float[Tensor, "b"]:
        """Squared Mahalanobis distance per channel."""
        return ((summary.to(self.mean) - self.mean) @ self.whitener).square().sum(1)


def discriminant(
    familiar: Float[Tensor, "n f"], distorted: Float[Tensor, "m f"]
) -> Float[Tensor, "f"]:
    """Fisher's linear discriminant, of variance 1 within a class; Bishop, PRML eq. 4.27-4.30."""
    known, other = familiar.double(), distorted.double()
    std = known.std(0).clamp(min=SMALLEST_STD)
    apart = (other.mean(0) - known.mean(0)) / std
    within = torch.cat([known - known.mean(0), other - other.mean(0)]) / std
    cov = within.mT @ within / len(within)
    cov.diagonal().add_(DISCRIMINANT_SHRINKAGE)
    found = torch.linalg.solve(cov, apart)
    return found / std / (apart @ found).sqrt().clamp(min=SMALLEST_STD)


class Familiarity(Known):
    """Which images are familiar to a network; unknown until it is learned or loaded."""

    direction: Tensor | None
    """In which distorted frames differ from familiar ones, times its weight; None in files of
    earlier versions, whose distance is that of the stages."""
    typical: Tensor
    """Distances of familiar frames, in rising order."""
    scale: Tensor
    """Factor on the prior's covariance for images that are not familiar at all."""
    offset_var: Tensor
    """Variance of log depth that all pixels of such an image have in common, in addition."""
    focal: Tensor
    """Of the camera of the training frames, in image widths; 0 if it is not known."""
    focal_power: Tensor
    """Depth without points is to be multiplied by (focal / usual focal)^power with a longer lens:
    1 if the network takes every image for one of the usual camera, 0 if it can tell."""

    def __init__(self) -> None:
        super().__init__("direction", "typical", "scale", "offset_var", "focal", "focal_power")
        self.stages = nn.ModuleList(Stage() for _ in range(STAGES))

    @property
    def known(self) -> bool:
        """Whether it was learned."""
        return self.typical is not None

    def forget(self) -> None:
        """Discard everything learned."""
        for module in (self, *self.stages):
            module.store(**dict.fromkeys(module._buffers))

    def learn_summaries(
        self,
        summaries: Float[Tensor, "n f"],
        distorted: Float[Tensor, "m f"],
        channels: Sequence[int],
    ) -> None:
        """Learn the summaries of some frames, and how those of distorted frames differ."""
        parts = torch.split(summaries, list(channels), 1)
        for stage, part in zip(self.stages, parts, strict=True):
            stage.learn(part)  # type: ignore[operator]
        self.store(direction=DISCRIMINANT_WEIGHT * discriminant(summaries, distorted))

    def distance(self, summary: Float[Tensor, "b f"]) -> Float[Tensor, "b"]:
        """Distance of images; familiar ones are at about 1, and it may be negative."""
        stages: Any = list(self.stages)
        parts = torch.split(summary, [len(stage.mean) for stage in stages], 1)
        squares = [stage.square(part) for stage, part in zip(stages, parts, strict=True)]
        distance = torch.stack(squares).mean(0).sqrt()
        if self.direction is None:
            return distance
        mean = torch.cat([stage.mean for stage in stages])
        return distance + (summary.to(mean) - mean) @ self.direction

    def of(self, summary: Float[Tensor, "1 f"] | None) -> float | None:
        """Familiarity of an image: see `Completion.familiarity`."""
        if not self.known or summary is None:
            return None
        farther = int((self.typical >= self.distance(summary)).sum())
        return (1 + farther) / (1 + len(self.typical))

    def widening(self, summary: Float[Tensor, "b f"] | None) -> Widening | None:
        """How much wider the prior of each image is."""
        if not self.known or summary is None:
            return None
        start, end = self.typical.quantile(self.typical.new_tensor(RAMP))
        share = ((self.distance(summary) - start) / (end - start).clamp(min=1e-9)).clamp(0, 1)
        return Widening(1 + share * (self.scale - 1), share * self.offset_var)

    def depth_factor(self, focal: float) -> float:
        """What depth without points is to be multiplied by, for a focal length in image widths: 1
        for shorter lenses than usual, since crops of the training frames say nothing about them.
        """
        if not self.known or not 0 < self.focal < focal:
            return 1.0
        return float((focal / self.focal) ** self.focal_power)
