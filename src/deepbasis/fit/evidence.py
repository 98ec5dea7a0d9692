# SPDX-License-Identifier: Apache-2.0
"""Fit with a prior: the precisions alpha and beta are found by maximising the evidence with EM."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.checks import FitPoints, check_points
from deepbasis.fit.linear import Eigenbasis, Posterior, at_precisions, diagonalise, smallest_noise
from deepbasis.fit.prior import Hyperprior, Prior
from deepbasis.fit.robust import ROUNDS, check_huber, huber_weights
from deepbasis.shapes import Bool, Float, Int


class Precisions(NamedTuple):
    """State of EM, image by image."""

    alpha: Float[Tensor, "*b"]
    beta: Float[Tensor, "*b"]
    steps: Int[Tensor, "*b"]
    converged: Bool[Tensor, "*b"]


@dataclass(frozen=True)
class Counts:
    """Number of observations behind each precision, including the hyperprior's, and the squares
    that the hyperprior adds.

    A Gamma of shape s and rate r acts like 2 s observations whose squares sum to 2 r. Without any
    observation, one pseudo-observation keeps the precision at its initial value, 1.
    """

    alpha: float
    alpha_squares: float
    beta: Float[Tensor, "*b"]
    beta_squares: Float[Tensor, "*b"]
    least_noise: Float[Tensor, "*b"]
    nothing: Bool[Tensor, "*b"]  # the noise is unknown: neither points nor a hyperprior

    @classmethod
    def of(cls, points: FitPoints, hyper: Hyperprior, eps: float) -> "Counts":
        """Counts of each image of a batch; `eps` is the rounding error of the targets."""
        beta = points.n + 2 * hyper.beta.shape
        nothing = beta == 0
        return cls(
            points.phi.shape[-1] + 2 * hyper.alpha.shape,
            2 * hyper.alpha.rate,
            beta + nothing,
            2 * hyper.beta.rate + nothing.to(beta),
            points.n * smallest_noise(points, eps),
            nothing,
        )


@torch.no_grad()
def evidence(
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    prior: Prior,
    weight: Float[Tensor, "*b n"] | None = None,
    *,
    steps: int = 8,
    tol: float = 0.01,
    hyperprior: Hyperprior | None = None,
    huber: float | None = None,
) -> Posterior:
    """Posterior of the weights at the precisions of largest evidence. Not differentiable.

    Any number of points is allowed. Without points the posterior is the prior, and the noise is
    that of the hyperprior or, without one, unknown and omitted (beta is infinite), as in the paper.

    Args:
        phi: bases at the points.
        z: log depth of the points.
        prior: the weights' prior.
        weight: relative precision of each point; 0 drops it. All 1 by default.
        steps: maximum number of EM steps. The defaults of `steps` and `tol` are the paper's.
        tol: an image has converged when the relative change of its beta is below this.
        hyperprior: Gamma distributions of alpha and beta, which keep EM stable when there are
            fewer points than bases.
        huber: down-weight residuals beyond this many standard deviations; typical value 1.345.

    Returns:
        The posterior, with precisions, evidence and number of steps of each image.

    Raises:
        ValueError: if shapes disagree, a value is not finite, or an option is out of range.
    """
    if steps < 0 or not tol >= 0:
        raise ValueError(f"`steps` is {steps} and `tol` {tol}; neither may be negative")
    if huber is not None:
        huber = check_huber(huber)
    hyper = hyperprior or Hyperprior()
    if not all(gamma.shape > 0 < gamma.rate or gamma == (0, 0) for gamma in hyper):
        raise ValueError(
            f"{hyper} is invalid: shape and rate must be positive, or both 0 for no Gamma"
        )
    points = check_points(phi, z, weight)
    counts = Counts.of(points, hyper, torch.finfo(phi.dtype).eps)
    eigen = diagonalise(points, prior)
    found = maximise(eigen, counts, _start(points, hyper), steps, tol)
    post = at_precisions(points, prior, eigen, found.alpha, found.beta)
    if huber is not None:
        for _ in range(ROUNDS):
            lowered, clip = huber_weights(points, post, huber)
            eigen = diagonalise(lowered, prior)
            found = maximise(eigen, counts, found, steps, tol, clip)
            post = at_precisions(lowered, prior, eigen, found.alpha, found.beta)
    beta = torch.where(counts.nothing, torch.inf, post.beta)
    return replace(post, beta=beta, steps=found.steps, converged=found.converged).to(phi.dtype)


def maximise(
    eigen: Eigenbasis,
    counts: Counts,
    start: Precisions,
    steps: int,
    tol: float,
    clip: Tensor | float = 1.0,
) -> Precisions:
    """EM from `start`, each image until its own beta converges, independent of its batch."""
    alpha, beta, made, converged = start
    made, converged = torch.zeros_like(made), torch.zeros_like(converged)
    for _ in range(steps):
        new_alpha, new_beta = em_step(eigen, counts, alpha, beta, clip)
        moved = (new_beta - beta).abs() > tol * beta
        alpha = torch.where(converged, alpha, new_alpha)
        beta = torch.where(converged, beta, new_beta)
        made = made + ~converged
        converged = converged | ~moved
        if converged.all():
            break
    return Precisions(alpha, beta, made, converged)


def em_step(
    eigen: Eigenbasis,
    counts: Counts,
    alpha: Float[Tensor, "*b"],
    beta: Float[Tensor, "*b"],
    clip: Tensor | float = 1.0,
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """One re-estimation of alpha and beta: PRML section 9.3.4, and the paper's.

    `clip` is Huber's correction of the squared residuals.
    """
    var = 1 / (alpha[..., None] + beta[..., None] * eigen.lam)
    size = (var + (beta[..., None] * eigen.c * var).square()).sum(-1)
    noise = clip * eigen.squares(alpha[..., None] * var) + (eigen.lam * var).sum(-1)
    noise = torch.maximum(noise, counts.least_noise)
    return counts.alpha / (size + counts.alpha_squares), counts.beta / (noise + counts.beta_squares)


def _start(points: FitPoints, hyper: Hyperprior) -> Precisions:
    """The paper's initial values, alpha = 1 and beta = sqrt(N), or the hyperprior's means."""
    alpha, beta = (
        start if gamma.shape == 0 else torch.full_like(start, gamma.shape / gamma.rate)
        for gamma, start in zip(
            hyper, (torch.ones_like(points.n), points.n.clamp(min=1).sqrt()), strict=True
        )
    )
    return Precisions(alpha, beta, torch.zeros_like(beta, dtype=torch.int64), beta < 0)
