# SPDX-License-Identifier: Apache-2.0
"""Errors of depth over the pixels whose true depth is known.

Every function takes the predicted and the true depth in metres and averages over all pixels given;
for the mean over images call it for each image, or use `Tally`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deepbasis.metrics.valid_pixels import at_truth, check_positive
from deepbasis.shapes import Float

# Inverse depth is in 1/km, as in KITTI's benchmark.
METRES_PER_KM = 1000.0
# Factor between prediction and truth that delta 1 allows; delta k allows its k-th power.
DELTA_FACTOR = 1.25

# What a metric averages over pixels, given predicted and true depth.
TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mae": lambda depth, true: (depth - true).abs(),
    "rmse": lambda depth, true: (depth - true).square(),
    "rel": lambda depth, true: (depth - true).abs() / true,
    "delta1": lambda depth, true: _within(depth, true, 1),
    "delta2": lambda depth, true: _within(depth, true, 2),
    "delta3": lambda depth, true: _within(depth, true, 3),
    "imae": lambda depth, true: METRES_PER_KM * (1 / depth - 1 / true).abs(),
    "irmse": lambda depth, true: METRES_PER_KM**2 * (1 / depth - 1 / true).square(),
}
# Metrics that are the root of their average.
ROOTS = ("rmse", "irmse")


def mae(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]) -> float:
    """Mean absolute error in metres.

    Args:
        depth_m: predicted depth in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.

    Returns:
        The mean, in metres.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite.

    Examples:
        >>> mae(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 4.0, 0.0]))  # 0 m: not measured
        1.5
    """
    return _score("mae", depth_m, true_m)


def rmse(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]) -> float:
    """Root mean squared error in metres.

    Args:
        depth_m: predicted depth in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.

    Returns:
        The root of the mean, in metres.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite.
    """
    return _score("rmse", depth_m, true_m)


def rel(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]) -> float:
    """Mean of the absolute error divided by the true depth.

    Args:
        depth_m: predicted depth in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.

    Returns:
        The mean, as a fraction.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite.

    Examples:
        >>> rel(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0]))
        0.375
    """
    return _score("rel", depth_m, true_m)


def delta(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"], k: int = 1) -> float:
    """Percentage of the pixels whose depth is off by a factor below 1.25^k, `k` = 1, 2 or 3.

    Args:
        depth_m: predicted depth in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.
        k: power of the factor: 1, 2 or 3.

    Returns:
        A percentage.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite; or
            if `k` is another number.

    Examples:
        >>> delta(torch.tensor([1.2, 1.5]), torch.tensor([1.0, 1.0])), delta(
        ...     torch.tensor([1.2, 1.5]), torch.tensor([1.0, 1.0]), 2
        ... )
        (50.0, 100.0)
    """
    if k not in (1, 2, 3):
        raise ValueError(f"`k` is {k}; delta is defined for 1, 2 and 3")
    return _score(f"delta{k}", depth_m, true_m)


def imae(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]) -> float:
    """Mean absolute error of inverse depth, in 1/km.

    Args:
        depth_m: predicted depth in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.

    Returns:
        The mean, in 1/km.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite.

    Examples:
        >>> imae(torch.tensor([4.0]), torch.tensor([2.0]))
        250.0
    """
    return _score("imae", depth_m, true_m)


def irmse(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]) -> float:
    """Root mean squared error of inverse depth, in 1/km.

    Args:
        depth_m: predicted depth in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.

    Returns:
        The root of the mean, in 1/km.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite.
    """
    return _score("irmse", depth_m, true_m)


def _score(name: str, depth_m: Tensor, true_m: Tensor) -> float:
    true, depth = at_truth(true_m, depth_m=depth_m)
    if name not in ("mae", "rmse", "rel"):
        check_positive("depth_m", depth, "ratios and inverse depth need depths above 0")
    mean = TERMS[name](depth, true).mean()
    return float(mean.sqrt() if name in ROOTS else mean)


def _within(depth: Tensor, true: Tensor, k: int) -> Tensor:
    ratio = torch.maximum(depth / true, true / depth)
    return 100 * (ratio < DELTA_FACTOR**k).double()
