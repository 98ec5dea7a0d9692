# SPDX-License-Identifier: Apache-2.0
"""How far error bars can be trusted.

`mean` and `var` are of the latent, ln(depth / 1 m); the truth is in metres, 0 where not known. The
shape is a Laplace with 2 b^2 = var unless another is passed.
"""

from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.latent import LAPLACE, Shape, measured, to_latent
from deepbasis.metrics.checks import at_truth, check_variance, images
from deepbasis.shapes import Float, Int

# The levels p at which AUCE compares promised and observed shares.
LEVELS = [i / 100 for i in range(1, 100)]


class Calibration(NamedTuple):
    """Share of pixels that intervals promise to hold and do hold: equal, if they are right."""

    level: Float[Tensor, "k"]
    observed: Float[Tensor, "k"]

    @property
    def area(self) -> float:
        """Area between the curve and the diagonal, by trapezoids: AUCE."""
        return float(torch.trapezoid((self.observed - self.level).abs(), self.level))


def coverage(
    low_m: Float[Tensor, "*s"], high_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]
) -> float:
    """Share of the pixels with a true depth whose interval holds it.

    >>> coverage(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]), torch.tensor([1.5, 3.0]))
    0.5
    """
    true, low, high = at_truth(true_m, low_m=low_m, high_m=high_m)
    return float(((low <= true) & (true <= high)).double().mean())


def sharpness(
    low_m: Float[Tensor, "*s"], high_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]
) -> float:
    """Mean width in metres of the intervals at the pixels with a true depth.

    Of two models that both cover what they promise, the sharper one knows more.

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
    shape: Shape = LAPLACE,
) -> float:
    """Mean negative log-likelihood in the latent, in nats a pixel: the full density, ln 2 and all.

    >>> nll(torch.zeros(1), torch.tensor([2.0]), torch.ones(1))  # b = 1, no error: ln 2
    0.6931471805599453
    """
    error, var = latent_error(mean, var, true_m)
    return float(-shape.at(measured(true_m)).log_density(error, var).mean())


def calibration_curve(
    mean: Float[Tensor, "*s"],
    var: Float[Tensor, "*s"],
    true_m: Float[Tensor, "*s"],
    *,
    shape: Shape = LAPLACE,
) -> Calibration:
    """Share of all pixels whose central interval of level 0.01 ... 0.99 holds the truth."""
    error, var = latent_error(mean, var, true_m)
    return calibration(held(shape.at(measured(true_m)).level(error, var)))


def auce(
    mean: Float[Tensor, "*s"],
    var: Float[Tensor, "*s"],
    true_m: Float[Tensor, "*s"],
    *,
    shape: Shape = LAPLACE,
    per_image: bool = True,
) -> float:
    """Area under the calibration error curve |observed - p|, p = 0.01 ... 0.99, by trapezoids.

    The last two dimensions are an image. With `per_image` it is the mean over images, otherwise one
    curve of all pixels; there, too wide in one image and too narrow in another may cancel.
    """
    if not per_image:
        return calibration_curve(mean, var, true_m, shape=shape).area
    level = torch.zeros_like(true_m, dtype=torch.float64)
    known = measured(true_m)
    error, var = latent_error(mean, var, true_m)
    level[known] = shape.at(known).level(error, var)
    pairs = images(level, true_m)
    return fmean(calibration(held(at_truth(true, level=own)[1])).area for own, true in pairs)


def latent_error(
    mean: Float[Tensor, "*s"], var: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Error in the latent, and its variance, at the pixels with a true depth."""
    true, mean, var = at_truth(true_m, mean=mean, var=var)
    check_variance(var)
    return to_latent(true) - mean, var


def held(level: Float[Tensor, "n"]) -> Int[Tensor, "bins"]:
    """How many pixels need at least this level to be held, and not yet the one before it.

    All that a calibration curve has to know: counts that can be added over images, exactly.
    """
    edges = torch.tensor(LEVELS, dtype=level.dtype, device=level.device)
    return torch.bincount(torch.bucketize(level, edges), minlength=len(LEVELS) + 1)


def calibration(counts: Int[Tensor, "bins"]) -> Calibration:
    """The curve behind such counts."""
    observed = counts.cumsum(0)[:-1] / counts.sum().double()
    return Calibration(torch.tensor(LEVELS, dtype=observed.dtype, device=observed.device), observed)
