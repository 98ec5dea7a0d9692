# SPDX-License-Identifier: Apache-2.0
"""Huber's weights: a point beyond the threshold has no more influence than one at the threshold.

Huber, Robust Statistics (1981): the weights, and "proposal 2" for the noise variance, which clips
residuals before squaring them, so that outliers cannot inflate it.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from deepbasis.arguments import to_number
from deepbasis.fit.checks import FitPoints
from deepbasis.fit.linear import Posterior, residual
from deepbasis.shapes import Float

# Re-weightings; the same number for every image, so that a fit does not depend on its batch.
ROUNDS = 10
# Standard deviations beyond which no float64 of a Gaussian is found.
NEVER = 40.0


def clipped_square(k: float) -> float:
    """E[min(x^2, k^2)] for x ~ N(0, 1): the variance of clean points after clipping."""
    k = min(k, NEVER)
    inside = math.erf(k / math.sqrt(2))
    density = math.exp(-k * k / 2) / math.sqrt(2 * math.pi)
    return inside - 2 * k * density + k * k * (1 - inside)


def check_huber(huber: float) -> float:
    """The limit of residuals, or a ValueError."""
    wanted = "a positive number of standard deviations"
    number = to_number(huber, "`huber`", wanted)
    if not 0 < number < math.inf:
        raise ValueError(f"`huber` is {number}; pass {wanted}")
    return number


def huber_weights(
    points: FitPoints, post: Posterior, k: float
) -> tuple[FitPoints, Float[Tensor, "*b"]]:
    """Points with Huber's weights, and the factor by which clipping corrects their squares.

    A residual is compared to its own variance, e^2 / (1 - leverage) = e * (leave-one-out e), so
    that a point with a large influence on the fit is not underestimated.
    """
    e = residual(points, post.mean)
    spread = (points.weight * post.beta[..., None] * e * post.loo_residual).clamp(min=0).sqrt()
    share = (k / spread).clamp(max=1)  # 1 where the spread is 0: k / 0 is infinite
    squares = (points.weight * share * e.square()).sum(-1)
    clipped = (points.weight * (share * e).square()).sum(-1) / clipped_square(k)
    lowered = replace(points, weight=points.weight * share)
    return lowered, torch.where(squares > 0, clipped / squares, 1)
