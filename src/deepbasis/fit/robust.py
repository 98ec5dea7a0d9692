# SPDX-License-Identifier: Apache-2.0
"""Huber's weights: a point far from the rest pulls no harder than one at the threshold.

Huber, Robust Statistics (1981): his weights, and his "proposal 2" for the noise, which
clips the residuals before it squares them, so that no outlier can inflate it.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from deepbasis.fit.checks import Points
from deepbasis.fit.linear import Posterior, residual
from deepbasis.shapes import Float

# As many for every image, so that an image's fit does not depend on its batch.
ROUNDS = 10


def clipped_square(k: float) -> float:
    """E[min(x^2, k^2)] for x ~ N(0, 1): what clipping leaves of the variance of clean points."""
    inside = math.erf(k / math.sqrt(2))
    density = math.exp(-k * k / 2) / math.sqrt(2 * math.pi)
    return inside - 2 * k * density + k * k * (1 - inside)


def huber_weights(points: Points, post: Posterior, k: float) -> tuple[Points, Float[Tensor, "*b"]]:
    """Lower the weights of `points`; also the factor by which clipping corrects their squares.

    A residual is judged against its own spread, e^2 / (1 - leverage) = e * (leave-one-out e), so
    that a point cannot hide by bending the fit towards itself.
    """
    e = residual(points, post.mean)
    spread = (points.weight * post.beta[..., None] * e * post.loo_residual).clamp(min=0).sqrt()
    share = (k / spread).clamp(max=1)  # 1 where the spread is 0: k / 0 is infinite
    squares = (points.weight * share * e.square()).sum(-1)
    clipped = (points.weight * (share * e).square()).sum(-1) / clipped_square(k)
    lowered = replace(points, weight=points.weight * share)
    return lowered, torch.where(squares > 0, clipped / squares, 1)
