# SPDX-License-Identifier: Apache-2.0
"""Sparsification curves of a whole data set in bounded memory: a histogram, not a sort.

Pixels are counted, and their errors summed, in bins of uncertainty and in bins of error. A bin is
1.1 % wide (64 to a factor of two) and they reach from 1 micrometre to 1000 km; what lies beyond is
in the first or last. Pixels of one bin count as ties, so the curves are those of an uncertainty
that was rounded by at most 1.1 %, averaged over the order within bins. The exact curve lies, like
ours, between those that keep nothing and all of the bin they cut: `bound` is the area in between,
and no exact AUSE is further away, but for a micrometre of rounding. It is about a hundredth of the
MAE; the difference itself is far smaller, because within so narrow a bin the errors hardly know the
order of their uncertainties.
"""

import torch
from torch import Tensor

from deepbasis.metrics.sparsification import FRACTIONS, Groups, cut, finish, kept_pixels
from deepbasis.shapes import Float, Int

STEPS_PER_OCTAVE, LOWEST_OCTAVE, HIGHEST_OCTAVE = 64, -20, 20
BINS = STEPS_PER_OCTAVE * (HIGHEST_OCTAVE - LOWEST_OCTAVE)
# Sums are kept as a multiple of COARSE and a rest below it, a multiple of FINE. float64 adds such
# numbers without rounding, in any order, up to 2^43 of them of size 1 and 2^20 images.
COARSE, FINE = 2.0**-10, 2.0**-44


def split(value: Float[Tensor, "*s"]) -> Float[Tensor, "2 *s"]:
    """Two parts of each number that can be added in any order and give the same to the last bit."""
    coarse = (value / COARSE).round() * COARSE
    return torch.stack([coarse, ((value - coarse) / FINE).round() * FINE])


def histogram(
    value: Float[Tensor, "n"], error: Float[Tensor, "n"]
) -> tuple[Int[Tensor, "bins"], Float[Tensor, "2 bins"]]:
    """Pixels, and sums of their absolute and squared errors, in logarithmic bins of `value`."""
    at = (value.log2() - LOWEST_OCTAVE) * STEPS_PER_OCTAVE
    at = at.clamp(0, BINS - 1).long()
    sums = [torch.bincount(at, weight, minlength=BINS) for weight in (error, error.square())]
    return torch.bincount(at, minlength=BINS), torch.stack(sums)


def groups(counts: Int[Tensor, "bins"], parts: Float[Tensor, "2 2 bins"]) -> Groups:
    """The pixels of the bins, those of a bin as ties; `parts` are `split` sums."""
    filled = counts > 0
    total = parts.sum(0)[:, filled].cumsum(-1)
    return Groups(counts[filled].cumsum(0).double(), total)


def bound(by_std: Groups, by_error: Groups, fractions: int = FRACTIONS) -> tuple[float, float]:
    """How far AUSE of MAE and of RMSE may be from the exact ones, in metres."""
    kept = kept_pixels(by_std, fractions)
    area = torch.zeros(2, dtype=kept.dtype)
    for order in (by_std, by_error):
        before, after, share = cut(order, kept)
        gap = finish(after, kept) - finish(before, kept)
        gap = torch.where(share < 1, gap, 0)  # a bin kept whole is exact
        area += torch.trapezoid(gap, dx=1 / fractions)
    mae, rmse = area.tolist()
    return mae, rmse
