# SPDX-License-Identifier: Apache-2.0
"""Search for the kernel that predicts unmeasured pixels best.

The likelihood of the points is available too. Its maximum fits the points, not the pixels between
them: real errors are not a Gaussian process, and the likelihood does not know the purpose of the
kernel.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.checks import FitPoints, check_points
from deepbasis.fit.correlated import NEIGHBOURS, predict_at, whiten_at
from deepbasis.fit.evidence import evidence
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.neighbours import Surroundings, earlier
from deepbasis.fit.prior import Prior
from deepbasis.shapes import Float, Int

# Bounds of the search: from a pixel to many images, and from no noise to nothing but noise.
BOUNDS = {
    "length": (1e-3, 30.0),
    "colour": (1e-3, 30.0),
    "nugget": (1e-4, 30.0),
    "rough": (1e-3, 0.5),
}
# First step of the search, in natural logarithms.
FIRST_STEP = 0.5


class FramePoints(NamedTuple):
    """The points of one image: places, bases, log depth and weights."""

    x: Float[Tensor, "n f"]
    """Row and column in image widths, then features."""
    phi: Float[Tensor, "n m"]
    """Bases."""
    z: Float[Tensor, "n"]
    """Log depth."""
    weight: Float[Tensor, "n"] | None = None
    """Relative precision; all 1 by default."""
    pixels: "FramePoints | None" = None
    """Other places of the image, whose depth is known but not used by the fit."""


class _Prepared(NamedTuple):
    """Points and pixels with their neighbours, which do not depend on the kernel."""

    x: Float[Tensor, "n f"]
    points: FitPoints
    near: Int[Tensor, "n k"]
    pixels: FramePoints | None
    near_pixels: Int[Tensor, "p k"]


def log_likelihood(
    kernel: Kernel, frame: FramePoints, prior: Prior, *, k: int = NEIGHBOURS, **options: Any
) -> float:
    """Log density of a frame's points, at the precisions that `fit.evidence` finds.

    Args:
        kernel: of the errors.
        frame: the points; their `pixels` are not used.
        prior: of the weights.
        k: neighbours of a place.
        **options: those of `fit.evidence`.

    Returns:
        The log density, in nats.
    """
    return _log_likelihood(kernel, _prepare(frame, k), prior, options)


def learn_kernel(
    frames: Sequence[FramePoints],
    prior: Prior,
    start: Kernel | None = None,
    *,
    k: int = NEIGHBOURS,
    evaluations: int = 80,
    **options: Any,
) -> Kernel:
    """The kernel that predicts the frames' pixels best or, for frames without pixels, that of
    largest likelihood per point.

    Its smoothness is that of `start`; so is `colour` if places have no features, and `rough` if 0.

    Args:
        frames: points with their places and bases. All frames have equal weight, so pass frames at
            all relevant numbers of points.
        prior: of the weights.
        start: where the search starts.
        k: neighbours of a place.
        evaluations: most kernels to try.
        **options: those of `fit.evidence`.

    Returns:
        The best kernel found.

    Raises:
        ValueError: if no frame has a point.
    """
    return search_kernel(frames, prior, start, k=k, evaluations=evaluations, **options)[0]


def search_kernel(
    frames: Sequence[FramePoints],
    prior: Prior,
    start: Kernel | None = None,
    *,
    k: int = NEIGHBOURS,
    evaluations: int = 80,
    **options: Any,
) -> tuple[Kernel, float]:
    """`learn_kernel`, and the loss of the kernel in nats per pixel or point.

    Args:
        frames: as in `learn_kernel`.
        prior: of the weights.
        start: where the search starts.
        k: neighbours of a place.
        evaluations: most kernels to try.
        **options: those of `fit.evidence`.

    Returns:
        The best kernel found, and its loss.

    Raises:
        ValueError: if no frame has a point.
    """
    from scipy.optimize import minimize  # only training needs it

    kernel = start or Kernel()
    prepared = [_prepare(frame, k) for frame in frames if len(frame.z)]
    if not prepared:
        raise ValueError("no frame has a point, so there is no kernel to learn")
    coloured = any(one.x.shape[1] > 2 for one in prepared)
    fixed = {"colour": not coloured, "rough": kernel.rough == 0}
    names = [name for name in BOUNDS if not fixed.get(name)]

    def mean_loss(logs: Any) -> float:
        tried = replace(kernel, **{n: math.exp(v) for n, v in zip(names, logs, strict=True)})
        found = [_judge(tried, one, prior, options) for one in prepared]
        size, nats = (sum(part) / len(found) for part in zip(*found, strict=True))
        return (math.log(size) if size else 0.0) + nats

    bounds = [[math.log(bound) for bound in BOUNDS[name]] for name in names]
    first = [
        min(max(math.log(getattr(kernel, name) or low), math.log(low)), math.log(high))
        for name, (low, high) in ((name, BOUNDS[name]) for name in names)
    ]
    corners = [first] + [
        [v + FIRST_STEP * (i == j) for j, v in enumerate(first)] for i in range(len(first))
    ]
    found = minimize(
        mean_loss, first, method="Nelder-Mead", bounds=bounds,
        options={"maxfev": evaluations, "initial_simplex": corners, "xatol": 0.02, "fatol": 1e-4},
    )  # fmt: skip
    best = {name: math.exp(value) for name, value in zip(names, found.x, strict=True)}
    return replace(kernel, **best), float(found.fun)


def _prepare(frame: FramePoints, k: int) -> _Prepared:
    points = check_points(frame.phi, frame.z, frame.weight)
    used = points.weight > 0
    kept = FitPoints(points.phi[used], points.z[used], points.weight[used])
    x, pixels = frame.x[used], frame.pixels
    asked = x[:0] if pixels is None else pixels.x
    near = Surroundings(x[:, :2]).of(asked[:, :2], k)
    return _Prepared(x, kept, earlier(x[:, :2], k), pixels, near)


def _judge(
    kernel: Kernel, prepared: _Prepared, prior: Prior, options: dict[str, Any]
) -> tuple[float, float]:
    """Size of the errors of a frame's pixels in units of their std, and nats besides its log.

    A frame without pixels has the negative log density of its points, and no size.
    """
    if prepared.pixels is None:
        return 0.0, -_log_likelihood(kernel, prepared, prior, options) / len(prepared.x)
    return _judge_pixels(kernel, prepared, prepared.pixels, prior, options)


@torch.no_grad()
def _log_likelihood(
    kernel: Kernel, prepared: _Prepared, prior: Prior, options: dict[str, Any]
) -> float:
    innovations = whiten_at(kernel, *prepared[:3])
    post = evidence(innovations.phi, innovations.z, prior, innovations.weight, **options)
    return float(post.log_evidence + innovations.log_jacobian)


@torch.no_grad()
def _judge_pixels(
    kernel: Kernel, prepared: _Prepared, pixels: FramePoints, prior: Prior, options: dict[str, Any]
) -> tuple[float, float]:
    """Mean |error| / std, and the rest of the mean negative log density of a Laplace whose variance
    is the fit's times a factor, the optimal one for all frames together.

    So the size of the errors matters, and whether the variance is large where they are, in all
    frames and for all patterns of points; its overall scale is left to calibration. The loss
    grows by the logarithm of an outlier.
    """
    innovations = whiten_at(kernel, *prepared[:3])
    post = evidence(innovations.phi, innovations.z, prior, innovations.weight, **options)
    weight = torch.ones_like(pixels.z) if pixels.weight is None else pixels.weight
    mean, var = predict_at(
        kernel, prepared.x, prepared.points, prepared.near_pixels,
        (post.mean.double(), post.root.double(), post.beta.double()),
        (pixels.x, pixels.phi, weight),
    )  # fmt: skip
    size = (pixels.z - mean).abs() / var.sqrt()
    return float(size.mean()), float(math.log(2 * math.e) + var.log().mean() / 2)
