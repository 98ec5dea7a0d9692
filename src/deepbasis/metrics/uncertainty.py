# SPDX-License-Identifier: Apache-2.0
"""Calibration and likelihood of error bars.

`mean` and `var` are of the latent, ln(depth / 1 m); the truth is in metres, 0 where not known. The
distribution is a Laplace with 2 b^2 = var unless another is passed.
"""

from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.latent import LAPLACE, ErrorDistribution, is_valid, to_latent
from deepbasis.metrics.valid_pixels import at_truth, check_variance, images
from deepbasis.shapes import Float, Int

# Levels p at which AUCE compares nominal and observed coverage.
LEVELS = [i / 100 for i in range(1, 100)]


class CalibrationCurve(NamedTuple):
    """Nominal level of central intervals, and their observed coverage."""

    level: Float[Tensor, "k"]
    """Nominal level."""
    observed: Float[Tensor, "k"]
    """Observed coverage."""

    @property
    def area(self) -> float:
        """Area between the curve and the diagonal, by trapezoids: AUCE."""
        return float(torch.trapezoid((self.observed - self.level).abs(), self.level))


def coverage(
    low_m: Float[Tensor, "*s"], high_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]
) -> float:
    """Share of the pixels with a true depth whose interval contains it.

    Args:
        low_m: lower bounds in metres.
        high_m: upper bounds in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.

    Returns:
        A fraction between 0 and 1.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite.

    Examples:
        >>> coverage(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]), torch.tensor([1.5, 3.0]))
        0.5
    """
    true, low, high = at_truth(true_m, low_m=low_m, high_m=high_m)
    return float(((low <= true) & (true <= high)).double().mean())


def sharpness(
    low_m: Float[Tensor, "*s"], high_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]
) -> float:
    """Mean width in metres of the intervals at the pixels with a true depth.

    Of two calibrated models, the one with narrower intervals is better.

    Args:
        low_m: lower bounds in metres.
        high_m: upper bounds in metres.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.

    Returns:
        The mean width, in metres.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a prediction is not finite.

    Examples:
        >>> sharpness(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 4.0]), torch.tensor([1.5, 3.0]))
        2.0
    """
    _, low, high = at_truth(true_m, low_m=low_m, high_m=high_m)
    return float((high - low).mean())


def nll(
    mean: Float[Tensor, "*s"],
    var: Float[Tensor, "*s"],
    true_m: Float[Tensor, "*s"],
    *,
    distribution: ErrorDistribution = LAPLACE,
) -> float:
    """Mean negative log-likelihood in the latent, in nats per pixel, of the full density.

    Args:
        mean: predicted mean of log depth.
        var: predicted variance of log depth.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.
        distribution: of the error of log depth.

    Returns:
        The mean, in nats per pixel.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a variance is not positive.

    Examples:
        >>> nll(torch.zeros(1), torch.tensor([2.0]), torch.ones(1))  # b = 1, no error: ln 2
        0.6931471805599453
    """
    error, var = latent_error(mean, var, true_m)
    return float(-distribution.at(is_valid(true_m)).log_density(error, var).mean())


def calibration_curve(
    mean: Float[Tensor, "*s"],
    var: Float[Tensor, "*s"],
    true_m: Float[Tensor, "*s"],
    *,
    distribution: ErrorDistribution = LAPLACE,
) -> CalibrationCurve:
    """Observed coverage of the central intervals of level 0.01 ... 0.99, over all pixels.

    Args:
        mean: predicted mean of log depth.
        var: predicted variance of log depth.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.
        distribution: of the error of log depth.

    Returns:
        Levels and observed coverage.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a variance is not positive.
    """
    error, var = latent_error(mean, var, true_m)
    return curve_from_counts(count_levels(distribution.at(is_valid(true_m)).level(error, var)))


def auce(
    mean: Float[Tensor, "*s"],
    var: Float[Tensor, "*s"],
    true_m: Float[Tensor, "*s"],
    *,
    distribution: ErrorDistribution = LAPLACE,
    per_image: bool = True,
) -> float:
    """Area under the calibration error curve |observed - p|, p = 0.01 ... 0.99, by trapezoids.

    The last two dimensions are an image. With `per_image` it is the mean over images, otherwise
    that of one curve of all pixels; there, images with too wide and too narrow intervals may
    cancel.

    Args:
        mean: predicted mean of log depth.
        var: predicted variance of log depth.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.
        distribution: of the error of log depth.
        per_image: mean over images, rather than one curve of all pixels.

    Returns:
        The area; 0 is perfect.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or a variance is not positive.
    """
    if not per_image:
        return calibration_curve(mean, var, true_m, distribution=distribution).area
    level = torch.zeros_like(true_m, dtype=torch.float64)
    known = is_valid(true_m)
    error, var = latent_error(mean, var, true_m)
    level[known] = distribution.at(known).level(error, var)
    counts = (count_levels(at_truth(true, level=own)[1]) for own, true in images(level, true_m))
    return fmean(curve_from_counts(count).area for count in counts)


def latent_error(
    mean: Float[Tensor, "*s"], var: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Error in the latent, and its variance, at the pixels with a true depth."""
    true, mean, var = at_truth(true_m, mean=mean, var=var)
    check_variance(var)
    return to_latent(true) - mean, var


def count_levels(level: Float[Tensor, "n"]) -> Int[Tensor, "bins"]:
    """Histogram of the levels of the smallest intervals that contain the true depth.

    Counts can be added over images exactly, and a calibration curve needs nothing else.
    """
    edges = torch.tensor(LEVELS, dtype=level.dtype, device=level.device)
    return torch.bincount(torch.bucketize(level, edges), minlength=len(LEVELS) + 1)


def curve_from_counts(counts: Int[Tensor, "bins"]) -> CalibrationCurve:
    """The curve from the counts of `count_levels`."""
    observed = counts.cumsum(0)[:-1] / counts.sum().double()
    level = torch.tensor(LEVELS, dtype=observed.dtype, device=observed.device)
    return CalibrationCurve(level, observed)
