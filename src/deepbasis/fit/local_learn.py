# SPDX-License-Identifier: Apache-2.0
"""Which kernel fits the errors: the likelihood of the points, and its maximum over frames."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.checks import Points, check_points
from deepbasis.fit.evidence import evidence
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.local import NEIGHBOURS, whiten_at
from deepbasis.fit.neighbours import earlier
from deepbasis.fit.prior import Prior
from deepbasis.shapes import Float, Int

# The search stays within these: from a pixel to many images, and noise from none to all there is.
BOUNDS = {"length": (1e-3, 30.0), "colour": (1e-3, 30.0), "nugget": (1e-4, 30.0)}
# Natural logarithm of the first step that the search makes.
FIRST_STEP = 0.5


class Frame(NamedTuple):
    """The points of one image: places, bases, log depth and weights."""

    x: Float[Tensor, "n f"]
    phi: Float[Tensor, "n m"]
    z: Float[Tensor, "n"]
    weight: Float[Tensor, "n"] | None = None


class _Ready(NamedTuple):
    """Points in use, with neighbours: they do not depend on the kernel."""

    x: Float[Tensor, "n f"]
    points: Points
    near: Int[Tensor, "n k"]


def log_likelihood(
    kernel: Kernel, frame: Frame, prior: Prior, *, k: int = NEIGHBOURS, **options: Any
) -> float:
    """Log density of a frame's points, at the precisions that `fit.evidence` finds.

    `options` are those of `fit.evidence`.
    """
    return _score(kernel, _prepare(frame, k), prior, options)


def learn_kernel(
    frames: Sequence[Frame],
    prior: Prior,
    start: Kernel | None = None,
    *,
    k: int = NEIGHBOURS,
    evaluations: int = 80,
    **options: Any,
) -> Kernel:
    """The kernel of largest likelihood per point, averaged over frames: each counts alike, so pass
    frames at all the point counts that matter.

    Its smoothness stays that of `start`, and so does `colour` where places have no features.
    `options` are those of `fit.evidence`.
    """
    from scipy.optimize import minimize  # only training needs it

    kernel = start or Kernel()
    ready = [_prepare(frame, k) for frame in frames if len(frame.z)]
    if not ready:
        raise ValueError("no frame has a point, so there is no kernel to learn")
    coloured = any(one.x.shape[1] > 2 for one in ready)
    names = [name for name in BOUNDS if name != "colour" or coloured]

    def loss(logs: Any) -> float:
        tried = replace(kernel, **{n: math.exp(v) for n, v in zip(names, logs, strict=True)})
        return -sum(_score(tried, one, prior, options) / len(one.x) for one in ready)

    bounds = [[math.log(bound) for bound in BOUNDS[name]] for name in names]
    first = [
        min(max(math.log(getattr(kernel, name) or low), math.log(low)), math.log(high))
        for name, (low, high) in ((name, BOUNDS[name]) for name in names)
    ]
    corners = [first] + [
        [v + FIRST_STEP * (i == j) for j, v in enumerate(first)] for i in range(len(first))
    ]
    found = minimize(
        loss, first, method="Nelder-Mead", bounds=bounds,
        options={"maxfev": evaluations, "initial_simplex": corners, "xatol": 0.02, "fatol": 1e-4},
    )  # fmt: skip
    return replace(kernel, **{n: math.exp(v) for n, v in zip(names, found.x, strict=True)})


def _prepare(frame: Frame, k: int) -> _Ready:
    points = check_points(frame.phi, frame.z, frame.weight)
    used = points.weight > 0
    kept = Points(points.phi[used], points.z[used], points.weight[used])
    return _Ready(frame.x[used], kept, earlier(frame.x[used, :2], k))


@torch.no_grad()
def _score(kernel: Kernel, ready: _Ready, prior: Prior, options: dict[str, Any]) -> float:
    news = whiten_at(kernel, *ready)
    post = evidence(news.phi, news.z, prior, news.weight, **options)
    return float(post.log_evidence + news.log_jacobian)
