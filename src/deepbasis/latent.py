# SPDX-License-Identifier: Apache-2.0
"""Metres and the latent z = ln(depth / 1 m): the only place where log and exp of depth are taken.

A pixel's latent is a Laplace distribution with mean `mean` and variance `var` = 2 b^2. Quantiles
pass through exp unchanged, so the median of depth is exp(mean) and every interval in metres is exp
of the latent interval. (The mean of depth is another number, and larger; we do not report it.)
"""

import math

import torch
from torch import Tensor

from deepbasis.shapes import Bool, Float

# Probability of one standard deviation around the mean of a Gaussian, the usual meaning of "std".
ONE_SIGMA = math.erf(1 / math.sqrt(2))


def measured(depth_m: Float[Tensor, "*s"]) -> Bool[Tensor, "*s"]:
    """Where a depth map in metres holds a measurement: 0, NaN and infinity mean none."""
    return depth_m.isfinite() & (depth_m > 0)


def to_latent(depth_m: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Log depth; 0 where there is no measurement, so that it can be padding."""
    return torch.where(measured(depth_m), depth_m, 1).log()


def to_depth(mean: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Median depth in metres."""
    return mean.exp()


def half_width(var: Float[Tensor, "*s"], level: float) -> Float[Tensor, "*s"]:
    """Half the width of the central latent interval that holds `level` of the probability."""
    if not 0 < level < 1:
        raise ValueError(f"an interval's level is {level}; pass a probability between 0 and 1")
    return (var / 2).sqrt() * -math.log1p(-level)


def interval(
    mean: Float[Tensor, "*s"], var: Float[Tensor, "*s"], level: float
) -> tuple[Float[Tensor, "*s"], Float[Tensor, "*s"]]:
    """Low and high depth in metres between which the truth lies with probability `level`."""
    half = half_width(var, level)
    return to_depth(mean - half), to_depth(mean + half)


def std(mean: Float[Tensor, "*s"], var: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Half the central 68.27 % interval, in metres."""
    low, high = interval(mean, var, ONE_SIGMA)
    return (high - low) / 2
