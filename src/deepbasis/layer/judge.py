# SPDX-License-Identifier: Apache-2.0
"""Fits without wrong points: the points of one image are judged, then the right ones are fitted."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepbasis.fit import Kernel, Prior
from deepbasis.fit.hidden import find_hidden
from deepbasis.fit.wrong_points import WRONG as WRONG
from deepbasis.fit.wrong_points import Places, probability_wrong
from deepbasis.layer.errors import Fitted, Observed
from deepbasis.shapes import Bool, Float

# Number of points that the calibration of the model counts for, in that of an image.
CALIBRATION_WEIGHT = 50
# Level of the intervals that are calibrated.
LEVEL = 0.9
# If a smaller share of the points was left out, the estimate of the noise lacks next to nothing.
FEW = 0.01


@dataclass(frozen=True)
class Judge:
    """Judges the points of one image by each other; see `fit.wrong_points` and `fit.hidden`."""

    kernel: Kernel
    prior: Prior
    scatter: float
    """Usual variance of log depth around the bases."""

    def __call__(self, observed: Observed) -> Float[Tensor, "n"]:
        """Probability that each point of one image is wrong."""
        sigma = observed.points.sigma
        noise = torch.zeros_like(observed.z) if sigma is None else sigma.to(observed.z).square()
        parts = (observed.x, observed.phi, observed.z, observed.s, observed.claimed_weight, noise)
        points = Places(*(part[0] for part in parts))
        # The widening makes predictions without points calibrated; single weights vary more.
        least = 1.0 if observed.widening is None else float(observed.widening.scale[0]) ** -2
        wrong = probability_wrong(
            self.kernel, self.prior, self.scatter, points, least_alpha=min(least, 1.0)
        )
        return wrong.masked_fill(find_hidden(points.x[:, :2], points.z), 1.0)


def recalibrate(fitted: Fitted, kept: Bool[Tensor, "n"]) -> Fitted:
    """A fit of the kept points of one image, with variances for all correct points.

    Some points that were left out are correct but have large errors, which the noise estimate now
    lacks. So the variances are multiplied by a factor, at least 1, that makes 90 % of the kept
    points lie inside their 90 % intervals, each predicted from the others.
    """
    if (~kept).sum() < FEW * len(kept):
        return fitted
    left_out = fitted.leave_one_out()
    half = fitted.calibrated.distribution(left_out).half_width(left_out.var, LEVEL)
    size = (left_out.residual.abs() / half)[kept.cpu()]
    if not len(size):
        return fitted
    weight = len(size) / (len(size) + CALIBRATION_WEIGHT)
    return fitted.widen(max(float(torch.quantile(size, LEVEL)) ** (2 * weight), 1.0))
