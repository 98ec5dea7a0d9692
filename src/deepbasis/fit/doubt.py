# SPDX-License-Identifier: Apache-2.0
"""Variance around points that were left out, in case they were right.

A point that is probably wrong is left out of the fit, but with probability 1 - p it is right. Then
log depth around it is g r more than the other points predict: r is the residual of the point, and g
the share of it that a pixel would take over. Over both cases, the variance of log depth is larger
by p (1 - p) (g r)^2.

g is the covariance of the errors of pixel and point relative to the variance of the point with its
noise, both given the neighbours of the pixel. (The point's own neighbours may be much nearer and
leave it a tiny variance: divided by that, g would be in the thousands.) It is kept between -1 and
1, since corrections are bounded, see `correlated`. It is computed for the blocks of pixels that
would have the point among their neighbours; farther away, other points lie between.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from deepbasis.fit.field import BLOCKS, Field
from deepbasis.fit.kernel import whitener
from deepbasis.shapes import Float, Int

# A point whose p (1 - p) is smaller is certainly wrong.
CERTAIN = 0.05


class LeftOut(NamedTuple):
    """Points that were left out."""

    x: Float[Tensor, "n f"]
    """As in `correlated.locate`."""
    amplitude: Float[Tensor, "n"]
    noise: Float[Tensor, "n"]
    """Variance of the measurement itself, relative to amplitude^2 / beta."""
    residual: Float[Tensor, "n"]
    """Log depth minus what the other points predict."""
    wrong: Float[Tensor, "n"]
    """Probability that the point is wrong."""

    @property
    def var(self) -> Float[Tensor, "n"]:
        """Variance of log depth at the point, over both cases."""
        return self.wrong * (1 - self.wrong) * self.residual.square()


def doubt_var(field: Field, points: LeftOut) -> Float[Tensor, "_"]:
    """Variance of log depth at every pixel, in reading order, in addition to that of the fit.

    Args:
        field: of the points that were not left out.
        points: those that were.

    Returns:
        The additional variance.
    """
    pixels = field.pixels_of(0, field.down, ring=True)
    blend = (field.ramp[:, None] * field.ramp).flatten()
    total = field.places.new_zeros(field.size[0] * field.size[1])
    middle = field.pixel_places[pixels, :2].mean(1)
    reach = vector_norm(field.places[field.near, :2] - middle[:, None], dim=-1).amax(1)
    if len(field.index) <= 2 * field.k:  # all points are neighbours of all blocks
        reach.fill_(torch.inf)
    scaled = field.kernel.scale(points.x).to(middle)
    for i in (points.wrong * (1 - points.wrong) > CERTAIN).nonzero()[:, 0].tolist():
        place = scaled[i : i + 1]
        reached = (vector_norm(place[:, :2] - middle, dim=-1) <= reach).nonzero()[:, 0]
        for some in torch.split(reached, BLOCKS):
            cov, var = left_cov(field, some, place, field.places_of(pixels[some]))
            gain = (cov / (var + points.noise[i].to(var))).clamp(-1, 1) / points.amplitude[i]
            found = points.var[i].to(cov) * gain.square() * blend
            total.index_add_(0, pixels[some].flatten(), found.flatten())
    s = 1 if field.amplitude is None else field.amplitude.flatten().square()
    return s * total / weights(field)


def left_cov(
    field: Field, some: Int[Tensor, "q"], place: Float[Tensor, "1 f"], at: Float[Tensor, "q p f"]
) -> tuple[Float[Tensor, "q p"], Float[Tensor, "q 1"]]:
    """Covariance of the errors at a place and at the pixels of some blocks, and variance at the
    place, given the neighbours of the blocks.
    """
    kernel, near = field.kernel, field.near[some]
    points, one = field.places[near], place.expand(len(some), 1, -1)
    white = whitener(kernel, points, field.noise[near]).to(at)
    known = white @ kernel.correlation(points, one)
    b = white.mT @ known
    cov = kernel.correlation(at, one) - kernel.correlation(at, points) @ b
    return cov[..., 0], (1 - known.square().sum(-2)).clamp(min=0)


def weights(field: Field) -> Float[Tensor, "_"]:
    """Sum of the weights of all blocks at every pixel, in reading order: rows times columns."""
    steps = torch.arange(-field.ring, field.side + field.ring, device=field.ramp.device)
    sums = []
    for count, length in zip((field.down, field.across), field.size, strict=True):
        at = torch.arange(count, device=steps.device)[:, None] * field.side + steps
        total, ramp = field.ramp.new_zeros(length), field.ramp.repeat(count)
        sums.append(total.index_add_(0, at.flatten().clamp(0, length - 1), ramp))
    return (sums[0][:, None] * sums[1]).flatten()
