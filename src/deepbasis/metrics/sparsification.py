# SPDX-License-Identifier: Apache-2.0
"""Sparsification curves: is the error large where the uncertainty is?

The most uncertain pixels are removed, fraction by fraction, and the remaining ones are scored. An
oracle removes those with the largest error instead. AUSE is the area between the two curves: 0 if
the error increases with the uncertainty, and invariant to increasing maps of the uncertainty.

Conventions differ between papers. Here, floor(k n / fractions) of n pixels are removed after k of
`fractions` steps, k = 0 ... `fractions` - 1; the area is computed with the trapezoidal rule over
that range; pixels of equal uncertainty are removed in equal parts, as if in random order, so the
order of pixels in memory does not matter.
"""

from statistics import fmean
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepbasis.metrics.valid_pixels import at_truth, images
from deepbasis.shapes import Float

Error = Literal["mae", "rmse"]
ERRORS = ("mae", "rmse")
FRACTIONS = 100


class SparsificationCurve(NamedTuple):
    """Error in metres of the remaining pixels, by the share that was removed."""

    removed: Float[Tensor, "k"]
    """Share of the pixels that was removed."""
    error: Float[Tensor, "k"]
    """Error if the most uncertain pixels are removed first."""
    oracle: Float[Tensor, "k"]
    """Error if those with the largest error are removed first."""

    @property
    def area(self) -> float:
        """Area between the two curves: AUSE."""
        return float(torch.trapezoid(self.error - self.oracle, self.removed))

    def normalised(self) -> "SparsificationCurve":
        """Both curves divided by the error of all pixels; errors that are all 0 stay 0."""
        scale = self.oracle[0] if self.oracle[0] > 0 else 1
        return SparsificationCurve(self.removed, self.error / scale, self.oracle / scale)


class Groups(NamedTuple):
    """Pixels in ascending order, with ties in one group: cumulative counts and sums.

    The sums are of the absolute and of the squared error.
    """

    pixels: Float[Tensor, "g"]
    total: Float[Tensor, "2 g"]


def sparsification_curve(
    depth_m: Float[Tensor, "*s"],
    std_m: Float[Tensor, "*s"],
    true_m: Float[Tensor, "*s"],
    *,
    error: Error = "mae",
    fractions: int = FRACTIONS,
    normalised: bool = False,
) -> SparsificationCurve:
    """Curves of all pixels with a true depth; only the order of `std_m` matters.

    Args:
        depth_m: predicted depth in metres.
        std_m: the uncertainty to sort by, for us the standard deviation in metres.
        true_m: true depth in metres, 0 where not known.
        error: "mae" or "rmse", of depth in metres.
        fractions: number of steps.
        normalised: divide by the error of all pixels, so that both curves start at 1.

    Returns:
        The curve by predicted uncertainty, and the oracle's by the error itself.

    Raises:
        ValueError: if no pixel has a true depth, shapes differ, or an option is out of range.
    """
    if fractions < 2:
        raise ValueError(f"`fractions` is {fractions}; a curve needs at least 2 steps")
    true, depth, std = at_truth(true_m, depth_m=depth_m, std_m=std_m)
    curve = both_curves(std, (depth - true).abs(), fractions)[index_of(error)]
    return curve.normalised() if normalised else curve


def ause(
    depth_m: Float[Tensor, "*s"],
    std_m: Float[Tensor, "*s"],
    true_m: Float[Tensor, "*s"],
    *,
    error: Error = "mae",
    fractions: int = FRACTIONS,
    normalised: bool = False,
    per_image: bool = True,
) -> float:
    """Area between the sparsification curve and the oracle's, in metres unless `normalised`.

    The last two dimensions are an image.

    Args:
        depth_m: predicted depth in metres.
        std_m: the uncertainty to sort by; only its order matters.
        true_m: true depth in metres; 0, NaN and infinity where it is not known.
        error: "mae" or "rmse".
        fractions: number of steps.
        normalised: divide by the error of all pixels.
        per_image: mean over images, rather than one curve of all pixels.

    Returns:
        The area; 0 means that uncertainty sorts pixels as their error does.

    Raises:
        ValueError: as in `sparsification_curve`.

    Examples:
        >>> depth, true = torch.tensor([1.0, 2.0, 4.0]), torch.ones(3)
        >>> ause(depth, torch.tensor([0.1, 0.2, 0.3]), true)
        0.0
    """
    tensors = (depth_m, std_m, true_m)
    parts = images(*tensors) if per_image else [tensors]
    return fmean(
        sparsification_curve(
            *part, error=error, fractions=fractions, normalised=normalised
        ).area
        for part in parts
    )  # fmt: skip


def index_of(error: str) -> int:
    """Row of the sums of this error."""
    if error not in ERRORS:
        raise ValueError(f"`error` is {error!r}; choose one of {', '.join(ERRORS)}")
    return ERRORS.index(error)


def both_curves(
    std: Float[Tensor, "n"], error: Float[Tensor, "n"], fractions: int = FRACTIONS
) -> tuple[SparsificationCurve, SparsificationCurve]:
    """The curves of MAE and RMSE, from one sort by uncertainty and one by absolute error."""
    return curves(grouped(std, error), grouped(error, error), fractions)


def grouped(value: Float[Tensor, "n"], error: Float[Tensor, "n"]) -> Groups:
    """Pixels in ascending order of `value`."""
    value, order = value.sort()
    error = error[order]
    total = torch.stack([error, error.square()]).cumsum(-1)
    last = pad(value[1:] != value[:-1], (0, 1), value=True).nonzero()[:, 0]
    return Groups((last + 1).double(), total[:, last])


def curves(
    by_std: Groups, by_error: Groups, fractions: int = FRACTIONS
) -> tuple[SparsificationCurve, SparsificationCurve]:
    """The curves of MAE and RMSE from the pixels in both orders."""
    kept = kept_pixels(by_std, fractions)
    removed = torch.arange(fractions, dtype=kept.dtype, device=kept.device) / fractions
    rest, oracle = rest_error(by_std, kept), rest_error(by_error, kept)
    mae, rmse = (SparsificationCurve(removed, rest[i], oracle[i]) for i in range(2))
    return mae, rmse


def kept_pixels(groups: Groups, fractions: int) -> Float[Tensor, "k"]:
    """Number of pixels that remain after each step: all at the start, at least one at the end."""
    n = int(groups.pixels[-1])
    kept = [n - k * n // fractions for k in range(fractions)]
    return torch.tensor(kept, dtype=torch.float64, device=groups.pixels.device)


def rest_error(groups: Groups, kept: Float[Tensor, "k"]) -> Float[Tensor, "2 k"]:
    """MAE and RMSE of the first `kept` pixels; ties at the end count with equal weight."""
    at = torch.searchsorted(groups.pixels, kept)
    count, total = pad(groups.pixels, (1, 0)), pad(groups.total, (1, 0))
    share = (kept - count[at]) / (count[at + 1] - count[at])
    mean = (total[:, at] + share * (total[:, at + 1] - total[:, at])) / kept
    return torch.stack([mean[0], mean[1].sqrt()])
