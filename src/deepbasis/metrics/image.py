# SPDX-License-Identifier: Apache-2.0
"""Metrics of one image: a row of sums, and totals that can be added over images."""

from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.calibration import nees
from deepbasis.latent import ONE_SIGMA, ErrorDistribution, interval, is_valid, to_depth, to_latent
from deepbasis.metrics.error import ROOTS, TERMS
from deepbasis.metrics.sparsification import FRACTIONS, SparsificationCurve, both_curves
from deepbasis.metrics.uncertainty import LEVELS, count_levels, curve_from_counts
from deepbasis.metrics.valid_pixels import at_truth, check_variance
from deepbasis.shapes import Float

# Levels, in per cent, whose coverage and sharpness are reported.
COVERED = (50, 68, 90, 95)
# Sums over pixels; divided by the number of pixels they are metrics, or their squares.
SUMS = (
    *TERMS, "nll", "nees", *(f"coverage{p}" for p in COVERED), *(f"sharpness{p}" for p in COVERED),
)  # fmt: skip
# Metrics of an image as a whole.
AREAS = ("ause", "ause_rmse", "auce")
COLUMNS = ("pixels", *SUMS, *AREAS)
# Sums of curves are stored as a multiple of COARSE and a remainder below it, a multiple of FINE.
# float64 adds such numbers without rounding, in any order, for up to 2^20 images.
COARSE, FINE = 2.0**-10, 2.0**-44


class DepthOverflow(ValueError):
    """Predicted depth, or its 95 % interval, is too large or too small for float64."""


class ImageScore(NamedTuple):
    """A row of the table of images, and totals that are added over images."""

    row: Float[Tensor, "columns"]
    totals: dict[str, Tensor]


class Pixels(NamedTuple):
    """The scored pixels of one image in float64; `error` and `var` are of the latent."""

    true_m: Float[Tensor, "n"]
    depth_m: Float[Tensor, "n"]
    std_m: Float[Tensor, "n"]
    error: Float[Tensor, "n"]
    var: Float[Tensor, "n"]
    widths_m: list[Float[Tensor, "n"]]


def score(mean: Tensor, var: Tensor, true_m: Tensor, distribution: ErrorDistribution) -> ImageScore:
    """All metrics of an image."""
    distribution = distribution.at(is_valid(true_m))
    at = _pixels(mean, var, true_m, distribution)
    level, error_m = distribution.level(at.error, at.var), (at.depth_m - at.true_m).abs()
    counts, pair = count_levels(level), both_curves(at.std_m, error_m)
    areas = [*(curve.area for curve in pair), curve_from_counts(counts).area]
    row = [len(level), *_sums(at, level, distribution), *areas]
    totals = {
        "levels": counts,
        "curves": split(torch.stack([torch.stack(curve[1:]) for curve in pair])),
    }
    return ImageScore(
        torch.tensor(row, dtype=torch.float64), {name: t.cpu() for name, t in totals.items()}
    )


def no_totals() -> dict[str, Tensor]:
    """Totals before any image was added."""
    return {
        "levels": torch.zeros(len(LEVELS) + 1, dtype=torch.int64),
        "curves": torch.zeros(2, 2, 2, FRACTIONS, dtype=torch.float64),
    }


def finish(table: Float[Tensor, "n columns"]) -> dict[str, Float[Tensor, "n"]]:
    """Metrics of each image."""
    column = dict(zip(COLUMNS, table.T, strict=True))
    means = {name: column[name] / column["pixels"] for name in SUMS}
    values = means | {name: means[name].sqrt() for name in ROOTS}
    values |= {name: column[name] for name in AREAS}
    for area, error in (("ause", "mae"), ("ause_rmse", "rmse")):
        whole = torch.where(values[error] > 0, values[error], 1)  # without error, the area is 0
        values[f"{area}_normalised"] = values[area] / whole
    return values


def mean_curve(total: Float[Tensor, "2 fractions"], images: int) -> SparsificationCurve:
    """Mean of the curves of several images; its area is the mean of their areas."""
    removed = torch.arange(FRACTIONS, dtype=total.dtype) / FRACTIONS
    return SparsificationCurve(removed, total[0] / images, total[1] / images)


def split(value: Float[Tensor, "*s"]) -> Float[Tensor, "2 *s"]:
    """Two parts of each number whose sums over images do not depend on the order, to the bit."""
    coarse = (value / COARSE).round() * COARSE
    return torch.stack([coarse, ((value - coarse) / FINE).round() * FINE])


def _pixels(mean: Tensor, var: Tensor, true_m: Tensor, distribution: ErrorDistribution) -> Pixels:
    true, mean, var = at_truth(true_m, mean=mean, var=var)
    check_variance(var)
    depth, error = to_depth(mean), to_latent(true) - mean
    levels = (ONE_SIGMA, *(p / 100 for p in COVERED))
    std, *widths = (_width(mean, var, level, distribution) for level in levels)
    if not ((depth > 0) & widths[-1].isfinite()).all():
        raise DepthOverflow("depth or its 95 % interval overflows float64; check the fit")
    return Pixels(true, depth, std / 2, error, var, widths)


def _width(mean: Tensor, var: Tensor, level: float, distribution: ErrorDistribution) -> Tensor:
    low, high = interval(mean, var, level, distribution)
    return high - low


def _sums(at: Pixels, level: Tensor, distribution: ErrorDistribution) -> list[float]:
    terms = [term(at.depth_m, at.true_m) for term in TERMS.values()]
    terms.append(-distribution.log_density(at.error, at.var))
    terms.append(nees(at.error, at.var).expand(len(level)))
    terms += [(level <= p / 100).double() for p in COVERED]
    return torch.stack([term.sum() for term in (*terms, *at.widths_m)]).tolist()
