# SPDX-License-Identifier: Apache-2.0
"""Which kernel fits the errors: the one that foretells pixels best that were not measured.

The likelihood of the points is there too. Its maximum fits the points and not the pixels between
them: real errors are no Gaussian process, and nothing tells it what the kernel is for.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.checks import Points, check_points
from deepbasis.fit.evidence import evidence
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.local import NEIGHBOURS, predict_at, whiten_at
from deepbasis.fit.neighbours import earlier, make_tree, query
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
    pixels: "Frame | None" = None
    """Other places of the image, whose depth is known but not to the fit."""


class _Ready(NamedTuple):
    """Points in use and pixels, with neighbours: they do not depend on the kernel."""

    x: Float[Tensor, "n f"]
    points: Points
    near: Int[Tensor, "n k"]
    pixels: Frame | None
    near_pixels: Int[Tensor, "p k"]


def log_likelihood(
    kernel: Kernel, frame: Frame, prior: Prior, *, k: int = NEIGHBOURS, **options: Any
) -> float:
    """Log density of a frame's points, at the precisions that `fit.evidence` finds.

    `options` are those of `fit.evidence`.
    """
    return _log_likelihood(kernel, _prepare(frame, k), prior, options)


def learn_kernel(
    frames: Sequence[Frame],
    prior: Prior,
    start: Kernel | None = None,
    *,
    k: int = NEIGHBOURS,
    evaluations: int = 80,
    **options: Any,
) -> Kernel:
    """The kernel that foretells the frames' pixels best, or, where they have none, the one of
    largest likelihood per point. Each frame counts alike, so pass frames at all the point counts
    that matter.

    Its smoothness stays that of `start`, and so does `colour` where places have no features.
    `options` are those of `fit.evidence`.
    """
    return search_kernel(frames, prior, start, k=k, evaluations=evaluations, **options)[0]


def search_kernel(
    frames: Sequence[Frame],
    prior: Prior,
    start: Kernel | None = None,
    *,
    k: int = NEIGHBOURS,
    evaluations: int = 80,
    **options: Any,
) -> tuple[Kernel, float]:
    """`learn_kernel`, and how badly it does: nats a pixel or point, the lower the better."""
    from scipy.optimize import minimize  # only training needs it

    kernel = start or Kernel()
    ready = [_prepare(frame, k) for frame in frames if len(frame.z)]
    if not ready:
        raise ValueError("no frame has a point, so there is no kernel to learn")
    coloured = any(one.x.shape[1] > 2 for one in ready)
    names = [name for name in BOUNDS if name != "colour" or coloured]

    def loss(logs: Any) -> float:
        tried = replace(kernel, **{n: math.exp(v) for n, v in zip(names, logs, strict=True)})
        return sum(_surprise(tried, one, prior, options) for one in ready) / len(ready)

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
    best = {name: math.exp(value) for name, value in zip(names, found.x, strict=True)}
    return replace(kernel, **best), float(found.fun)


def _prepare(frame: Frame, k: int) -> _Ready:
    points = check_points(frame.phi, frame.z, frame.weight)
    used = points.weight > 0
    kept = Points(points.phi[used], points.z[used], points.weight[used])
    x, pixels = frame.x[used], frame.pixels
    asked = x[:0] if pixels is None else pixels.x
    tree = make_tree(x[:, :2].double().cpu().numpy())
    near = query(tree, asked[:, :2].double().cpu().numpy(), k, p=2)
    return _Ready(x, kept, earlier(x[:, :2], k), pixels, torch.from_numpy(near).to(x.device))


def _surprise(kernel: Kernel, ready: _Ready, prior: Prior, options: dict[str, Any]) -> float:
    """Mean negative log density of a frame's pixels, or of its points if it has none."""
    if ready.pixels is None:
        return -_log_likelihood(kernel, ready, prior, options) / len(ready.x)
    return _surprise_of_pixels(kernel, ready, ready.pixels, prior, options)


@torch.no_grad()
def _log_likelihood(kernel: Kernel, ready: _Ready, prior: Prior, options: dict[str, Any]) -> float:
    news = whiten_at(kernel, *ready[:3])
    post = evidence(news.phi, news.z, prior, news.weight, **options)
    return float(post.log_evidence + news.log_jacobian)


@torch.no_grad()
def _surprise_of_pixels(
    kernel: Kernel, ready: _Ready, pixels: Frame, prior: Prior, options: dict[str, Any]
) -> float:
    """Of a Laplace whose variance is the fit's times a factor, and the factor is the best one.

    So what counts is how large the errors are, and whether the variance knows which ones; how large
    it is in all is a matter of calibration. An outlier counts no more than its size.
    """
    news = whiten_at(kernel, *ready[:3])
    post = evidence(news.phi, news.z, prior, news.weight, **options)
    mean, var = predict_at(
        kernel, ready.x, ready.points, ready.near_pixels, post, (pixels.x, pixels.phi)
    )
    size = (pixels.z - mean).abs() / var.sqrt()
    return float((2 * math.e * size.mean()).log() + var.log().mean() / 2)
