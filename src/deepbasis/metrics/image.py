# SPDX-License-Identifier: Apache-2.0
"""One image's share of every metric: a row of sums, and totals that can be added over images."""

from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.calibration import nees
from deepbasis.latent import ONE_SIGMA, Shape, interval, measured, to_depth, to_latent
from deepbasis.metrics.checks import at_truth, check_variance
from deepbasis.metrics.error import ROOTS, TERMS
from deepbasis.metrics.pooled import BINS, histogram, split
from deepbasis.metrics.sparsification import FRACTIONS, Sparsification, both_curves
from deepbasis.metrics.uncertainty import LEVELS, calibration, held
from deepbasis.shapes import Float

# Levels, in per cent, whose coverage and sharpness are told.
COVERED = (50, 68, 90, 95)
# What is summed over pixels; divided by the number of pixels it is a metric, or its square.
SUMS = (
    *TERMS, "nll", "nees", *(f"coverage{p}" for p in COVERED), *(f"sharpness{p}" for p in COVERED),
)  # fmt: skip
# What belongs to the image as a whole.
AREAS = ("ause", "ause_rmse", "auce")
COLUMNS = ("pixels", *SUMS, *AREAS)


class Score(NamedTuple):
    """A row of the table of images, and what is added up over them."""

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


def score(mean: Tensor, var: Tensor, true_m: Tensor, shape: Shape) -> Score:
    """Everything that is ever asked about an image."""
    shape = shape.at(measured(true_m))
    at = _pixels(mean, var, true_m, shape)
    level, error_m = shape.level(at.error, at.var), (at.depth_m - at.true_m).abs()
    counts, pair = held(level), both_curves(at.std_m, error_m)
    areas = [*(curve.area for curve in pair), calibration(counts).area]
    row = [len(level), *_sums(at, level, shape), *areas]
    orders = [histogram(value, error_m) for value in (at.std_m, error_m)]
    totals = {
        "held": counts,
        "counts": torch.stack([count for count, _ in orders]),
        "sums": split(torch.stack([total for _, total in orders])),
        "curves": split(torch.stack([torch.stack(curve[1:]) for curve in pair])),
    }
    return Score(
        torch.tensor(row, dtype=torch.float64), {name: t.cpu() for name, t in totals.items()}
    )


def no_totals() -> dict[str, Tensor]:
    """Totals of no image."""
    return {
        "held": torch.zeros(len(LEVELS) + 1, dtype=torch.int64),
        "counts": torch.zeros(2, BINS, dtype=torch.int64),
        "sums": torch.zeros(2, 2, 2, BINS, dtype=torch.float64),
        "curves": torch.zeros(2, 2, 2, FRACTIONS, dtype=torch.float64),
    }


def finish(table: Float[Tensor, "n columns"]) -> dict[str, Float[Tensor, "n"]]:
    """Metrics of each row: of an image, or of many whose sums were added."""
    column = dict(zip(COLUMNS, table.T, strict=True))
    means = {name: column[name] / column["pixels"] for name in SUMS}
    values = means | {name: means[name].sqrt() for name in ROOTS}
    values |= {name: column[name] for name in AREAS}
    for area, error in (("ause", "mae"), ("ause_rmse", "rmse")):
        whole = torch.where(values[error] > 0, values[error], 1)  # without error, the area is 0
        values[f"{area}_normalised"] = values[area] / whole
    return values


def mean_curve(total: Float[Tensor, "2 fractions"], images: int) -> Sparsification:
    """Mean of the curves of many images: its area is the mean of their areas."""
    removed = torch.arange(FRACTIONS, dtype=total.dtype) / FRACTIONS
    return Sparsification(removed, total[0] / images, total[1] / images)


def _pixels(mean: Tensor, var: Tensor, true_m: Tensor, shape: Shape) -> Pixels:
    true, mean, var = at_truth(true_m, mean=mean, var=var)
    check_variance(var)
    depth, error = to_depth(mean), to_latent(true) - mean
    std, *widths = (_width(mean, var, p, shape) for p in (ONE_SIGMA, *(p / 100 for p in COVERED)))
    if not ((depth > 0) & widths[-1].isfinite()).all():
        raise ValueError("depth or its 95 % interval leaves what float64 can hold; check the fit")
    return Pixels(true, depth, std / 2, error, var, widths)


def _width(mean: Tensor, var: Tensor, level: float, shape: Shape) -> Tensor:
    low, high = interval(mean, var, level, shape)
    return high - low


def _sums(at: Pixels, level: Tensor, shape: Shape) -> list[float]:
    terms = [term(at.depth_m, at.true_m) for term in TERMS.values()]
    terms.append(-shape.log_density(at.error, at.var))
    terms.append(nees(at.error, at.var).expand(len(level)))
    terms += [(level <= p / 100).double() for p in COVERED]
    return torch.stack([term.sum() for term in (*terms, *at.widths_m)]).tolist()
