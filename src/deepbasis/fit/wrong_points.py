# SPDX-License-Identifier: Apache-2.0
"""Find wrong points of one image: reflections, mismatches, surfaces that the camera does not see.

A point is correct with probability 1 - pi; otherwise it may have any depth. Correct points agree
with their prediction from the others. But a few gross errors inflate the noise until nothing looks
wrong, and a fit with correlated errors follows each of them. So there are two steps.

1. The bases alone are fitted: far fewer weights than points. Least absolute residuals come first,
   then EM, in which each point is compared with its prediction from the others. Points that are
   more likely wrong than correct are suspects.
2. The residuals of each point's neighbours, without suspects, predict its own, as in `correlated`.
   Errors have a t distribution, whose scale is that of the image, or a uniform one: EM finds the
   scale and pi, and points that are more likely wrong than correct are wrong.

Edges and objects that the bases do not explain also cause large errors of correct points. They
differ from wrong points in that they have similar neighbours: a point at the same depth as a
neighbour that is not a suspect may be on that neighbour's surface, and suspects with more similar
neighbours than expected by chance form an object.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.fit.checks import FitPoints, check_finite, check_points
from deepbasis.fit.correlated import NEIGHBOURS, Innovations, bound, whiten_at
from deepbasis.fit.kernel import Kernel
from deepbasis.fit.neighbours import Others, coarse_to_fine
from deepbasis.fit.prior import Prior
from deepbasis.shapes import Bool, Float, Int

Array = npt.NDArray[Any]

# Points of a larger probability of being wrong are left out.
WRONG = 0.5
# Rounds of least absolute residuals, of EM for the bases, and of EM for the neighbours.
LEAST_ABSOLUTE, BASES_EM, EM = 4, 5, 10
# The neighbours are asked this many times, the second time without what was found at first.
PASSES = 2
# At most this many points determine the bases in the first step.
ENOUGH = 1000
# Wrong points are uniform over this range of log depth: a factor of 7.
RANGE = 2.0
# Smallest and largest pi in the first step, and in the second: pi decides how far a point may be
# from its neighbours, which is not to vary too much.
LEAST_WRONG, MOST_WRONG, LEAST_JUDGED, MOST_JUDGED = 0.01, 0.45, 0.03, 0.1
# Degrees of freedom of the errors of right points, where the weights are known.
DOF, MOST_DOF = 1.5, 2.5
# Points are on one surface if they agree up to this in log depth, or in what the bases leave of it.
AGREE = 0.05
# Neighbours that may be on a point's surface, within this distance in image widths; and the
# probability that a right point is on the surface of a neighbour, and not where all predict it.
COMPANY, REACH, EDGE = 8, 0.08, 0.05
# Suspects are an object if so many agreeing neighbours of CLUSTER have a smaller probability.
CLUSTER, CHANCE, LEAST_CLUSTER, SIMILAR = 8, 0.003, 2, 0.2
# No point is wrong whose depth is off by less: about 10 %.
LEAST_ERROR = 0.1
# Largest common factor on all depths that the prior of the weights judges: a factor of 2.7.
UNIT = 1.0
# With fewer points nothing contradicts anything.
FEWEST = 5
# Median of the absolute value of a standard normal variable.
NORMAL_MEDIAN = 0.6745
# Smallest variance of log depth around the bases, and distance from a leverage of 1.
SMALLEST, LEVERAGE = 1e-8, 1e-9


class Places(NamedTuple):
    """Points of one image for `probability_wrong`."""

    x: Float[Tensor, "n f"]
    """As in `correlated.locate`."""
    phi: Float[Tensor, "n m"]
    z: Float[Tensor, "n"]
    amplitude: Float[Tensor, "n"]
    """Size of the correlated errors."""
    weight: Float[Tensor, "n"]
    """Relative precision."""
    noise: Float[Tensor, "n"]
    """Variance of log depth of the measurement itself."""


class OnBases(NamedTuple):
    """A robust fit of the bases."""

    residual: Float[Tensor, "n"]
    root: Float[Tensor, "n m"]
    """The covariance of the predictions is root root'."""
    wrong: Float[Tensor, "n"]
    """Probability that a point is wrong."""


class Whitened(NamedTuple):
    """Points with their neighbours that are no suspects."""

    near: Int[Tensor, "n k"]
    scaled: FitPoints
    innovations: Innovations


@torch.no_grad()
def probability_wrong(
    kernel: Kernel, prior: Prior, scatter: float, points: Places, *, least_alpha: float = 1.0
) -> Float[Tensor, "n"]:
    """Probability that each point is wrong, in float64; 0 for those off by less than 10 %.

    Args:
        kernel: of correlated errors.
        prior: of the weights.
        scatter: usual variance of log depth around the bases.
        points: all of them have a positive weight.
        least_alpha: the points decide on the precision of the prior, from this to 1.
    """
    wrong = torch.zeros_like(points.z, dtype=torch.float64)
    if len(wrong) < FEWEST:
        return wrong
    bases = fit_bases(points, prior, scatter, least_alpha=least_alpha)
    around = Others(points.x[:, :2], NEIGHBOURS)
    suspect = find_suspects(around.near[:, :CLUSTER], bases.residual, bases.wrong > WRONG)
    whitened, before = None, torch.zeros_like(suspect)
    for _ in range(PASSES):
        # If all were cleared, the result stands: judged by each other, right ones would be lost.
        if not suspect.any() or torch.equal(suspect, before):
            break
        near = around.of(~suspect)
        whitened = whiten(kernel, points, bases, near, whitened)
        wrong, before = judge(points, bases, whitened), suspect
        suspect = find_suspects(around.near[:, :CLUSTER], bases.residual, wrong > WRONG)
    return torch.where(suspect, wrong, wrong.clamp(max=WRONG))


def fit_bases(points: Places, prior: Prior, scatter: float, *, least_alpha: float = 1.0) -> OnBases:
    """A fit of the bases that a large part of wrong points, also of the same sign, moves little.

    Images unlike those of training have larger weights than the prior expects. It would contradict
    correct points, so its precision alpha is estimated, from `least_alpha` to 1.
    """
    checked = check_points(points.phi, points.z, points.weight)
    root, start = prior.root.to(checked.phi), prior.mean.to(checked.phi)
    all_phi, all_z = checked.phi @ root, checked.z - checked.phi @ start
    # A scale that all points share contradicts nothing, however wrong their unit.
    scale = all_z.median()
    all_z = all_z - (scale - scale.clamp(-UNIT, UNIT))
    check_finite(checked, all_phi.mT @ all_phi)
    all_noise = points.noise.double()
    few = len(all_z) <= ENOUGH
    some = slice(None) if few else coarse_to_fine(points.x[:, :2])[:ENOUGH]
    phi, z, extra = all_phi[some], all_z[some], all_noise[some]
    least = torch.tensor(max(scatter, SMALLEST)).to(z)
    residual, var, pi, alpha = z - z.median(), least, 0.1, 1.0
    for _ in range(LEAST_ABSOLUTE):
        right = (1 + residual.square() / (var + extra)).rsqrt()
        mean, chol = solve(phi, z, right / (var + extra), alpha)
        alpha = estimate_alpha(mean, chol, least_alpha)
        residual = z - phi @ mean
    for _ in range(BASES_EM):
        noise, model_var = var + extra, spread(chol, phi).square().sum(-1)
        rest = (1 - right * model_var / noise).clamp(min=LEVERAGE)  # 1 - leverage
        right = 1 - wrong_by(gaussian(residual / rest, noise + model_var / rest), pi)
        pi = min(max(1 - float(right.mean()), LEAST_WRONG), MOST_WRONG)
        size = weighted_median(residual.abs() / rest.sqrt(), right) / NORMAL_MEDIAN
        var = size.square().clamp(min=least)
        mean, chol = solve(phi, z, right / (var + extra), alpha)
        alpha = estimate_alpha(mean, chol, least_alpha)
        residual = z - phi @ mean
    residual, wide = all_z - all_phi @ mean, spread(chol, all_phi)
    if not few:
        var = var + all_noise + wide.square().sum(-1)
        right = 1 - wrong_by(gaussian(residual, var), pi)
    return OnBases(residual, wide, 1 - right)


def solve(
    phi: Float[Tensor, "n m"], z: Float[Tensor, "n"], precision: Float[Tensor, "n"], alpha: float
) -> tuple[Float[Tensor, "m"], Float[Tensor, "m m"]]:
    """Posterior mean of weights whose prior is N(0, I / alpha), and the factor of its precision."""
    weighted = phi * precision[:, None]
    eye = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
    chol = torch.linalg.cholesky(alpha * eye + weighted.mT @ phi)
    return torch.cholesky_solve((weighted.mT @ z)[:, None], chol)[:, 0], chol


def estimate_alpha(mean: Float[Tensor, "m"], chol: Float[Tensor, "m m"], least: float) -> float:
    """Precision of the prior of the weights from their posterior, as `fit.evidence` does."""
    if least >= 1:
        return 1.0
    squares = mean.square().sum() + torch.cholesky_inverse(chol).diagonal().sum()
    return min(max(len(mean) / float(squares), least), 1.0)


def spread(chol: Float[Tensor, "m m"], phi: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Root of the covariance of predictions; `chol` is that of `solve`."""
    return torch.linalg.solve_triangular(chol, phi.mT, upper=False).mT


def wrong_by(density: Any, pi: float) -> Any:
    """Probability that points are wrong, from their density if they are right."""
    return pi / RANGE / ((1 - pi) * density + pi / RANGE)


def whiten(
    kernel: Kernel,
    points: Places,
    bases: OnBases,
    near: Int[Tensor, "n k"],
    before: Whitened | None,
) -> Whitened:
    """Condition each point on its neighbours; again only where these have changed."""
    s = points.amplitude.double()
    values = torch.cat([bases.root, bases.residual[:, None]], -1) / s[:, None]
    scaled = check_points(values[:, :-1], values[:, -1], points.weight * s.square())
    if before is None:
        return Whitened(near, scaled, whiten_at(kernel, points.x, scaled, near))
    new = (near != before.near).any(1).nonzero()[:, 0]
    found = whiten_at(kernel, points.x, scaled, near[new], new)
    parts = zip(before.innovations, found, strict=True)
    return Whitened(near, scaled, Innovations(*(a.index_copy(0, new, b) for a, b in parts)))


def judge(points: Places, bases: OnBases, whitened: Whitened) -> Float[Tensor, "n"]:
    """Probability that each point is wrong, by its neighbours."""
    near, scaled, found = whitened
    s = points.amplitude.double()
    correction = scaled.z - found.z * found.variance_ratio.sqrt()
    known = F.pad(scaled.z, (0, near.shape[1]))
    error = (scaled.z - bound(correction, known[near])) * s
    ratio = found.variance_ratio * s.square()
    model_var = found.phi.square().sum(-1) * ratio
    company = has_company(points, bases.residual, near)
    return mixture(error, ratio, model_var, company)


def mixture(
    error: Float[Tensor, "n"],
    ratio: Float[Tensor, "n"],
    model_var: Float[Tensor, "n"],
    company: Bool[Tensor, "n"],
) -> Float[Tensor, "n"]:
    """EM for the scale of the errors and pi; in numpy, whose operations on few numbers cost less.

    Args:
        error: of the prediction of each point by its neighbours.
        ratio: variance that neighbours leave, up to the scale.
        model_var: variance of the weights.
        company: whether a neighbour agrees with the point.
    """
    off, scale, added = (part.cpu().numpy() for part in (error.abs(), ratio, model_var))
    beside, middle, pi, var = (
        EDGE / (2 * AGREE) * company.cpu().numpy(),
        median_of_t(DOF),
        0.05,
        scale,
    )
    for _ in range(EM):
        # The median of the right points, if the wrong ones are those of the largest error.
        size = quantile(off / np.sqrt(var), 0.5 * (1 - pi)) / middle
        scale = np.maximum(scale * size**2, SMALLEST)
        var = scale + added
        # Gaussian where the weights are uncertain, as in `latent.StudentT`.
        right = student_t(off, var, np.minimum(DOF * var / scale, MOST_DOF))
        wrong = wrong_by(right + beside, pi)
        pi = min(max(float(wrong.mean()), LEAST_JUDGED), MOST_JUDGED)
    return torch.from_numpy(np.where(off > LEAST_ERROR, wrong, 0)).to(error.device)


def has_company(
    points: Places, residual: Float[Tensor, "n"], near: Int[Tensor, "n k"]
) -> Bool[Tensor, "n"]:
    """Whether one of a point's nearest neighbours agrees with it."""
    near, k = near[:, :COMPANY], near.shape[1]
    place = F.pad(points.x[:, :2].double(), (0, 0, 0, k), value=torch.inf)
    close = (place[near] - place[: len(near), None]).norm(dim=-1) < REACH
    return (close & (agree(points.z.double(), near, k) | agree(residual, near, k))).any(-1)


def agree(
    values: Float[Tensor, "n"], near: Int[Tensor, "n k"], missing: int
) -> Bool[Tensor, "n k"]:
    """Which neighbours have about the same value."""
    padded = F.pad(values, (0, missing), value=torch.inf)
    return (padded[near] - values[:, None]).abs() < AGREE


def find_suspects(
    near: Int[Tensor, "n k"], residual: Float[Tensor, "n"], suspect: Bool[Tensor, "n"]
) -> Bool[Tensor, "n"]:
    """Suspects without those that have more suspects of the same residual around them than chance
    explains: objects that the bases do not know.
    """
    from scipy.special import bdtrc

    alike = agree(residual, near, CLUSTER) & F.pad(suspect, (0, CLUSTER))[near]
    count = alike.sum(-1)
    known = residual[suspect].sort().values
    # Of all points, those that are suspects of the same residual.
    above, below = (torch.searchsorted(known, residual + step) for step in (SIMILAR, -SIMILAR))
    share = ((above - below).double() / len(near)).clamp(max=1 - LEVERAGE)
    chance = bdtrc((count - 1).double().cpu().numpy(), CLUSTER, share.cpu().numpy())
    unlikely = torch.from_numpy(chance).to(share) < CHANCE
    return suspect & ~(unlikely & (count >= LEAST_CLUSTER))


def gaussian(error: Float[Tensor, "n"], var: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Density of a normal distribution."""
    return torch.exp(-error.square() / var / 2) / (2 * math.pi * var).sqrt()


def student_t(error: Array, scale2: Array, dof: Array) -> Array:
    """Density of Student's t, whose squared scale is `scale2`."""
    from scipy.special import gammaln

    norm = gammaln((dof + 1) / 2) - gammaln(dof / 2) - np.log(math.pi * dof * scale2) / 2
    density: Array = np.exp(norm - (dof + 1) / 2 * np.log1p(np.square(error) / scale2 / dof))
    return density


def quantile(values: Array, q: float) -> float:
    """The value that the share q is below; linear between values, as in numpy and torch."""
    place = q * (len(values) - 1)
    low = int(place)
    two = np.partition(values, (low, min(low + 1, len(values) - 1)))[low : low + 2]
    return float(two[0] + (place - low) * (two[-1] - two[0]))


def median_of_t(dof: float) -> float:
    """Median of the absolute value of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, 0.75))


def weighted_median(values: Float[Tensor, "n"], weight: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    """The value that half of the weight is below."""
    order = values.argsort()
    below = weight[order].cumsum(0)
    return values[order[(below < below[-1] / 2).sum()]]
