# SPDX-License-Identifier: Apache-2.0
"""Fit with a prior: the precisions alpha and beta are found by maximising the evidence with EM."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.checks import check_points
from deepbasis.fit.linear import Posterior, Whitened, at_precisions, whiten
from deepbasis.fit.prior import Gamma, Hyperprior, Prior
from deepbasis.fit.robust import ROUNDS, huber_weights
from deepbasis.shapes import Bool, Float, Int


class Precisions(NamedTuple):
    """Where EM stands, image by image."""

    alpha: Float[Tensor, "*b"]
    beta: Float[Tensor, "*b"]
    steps: Int[Tensor, "*b"]
    converged: Bool[Tensor, "*b"]


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

    Any number of points, also none: then the posterior is the prior, and the noise is the
    hyperprior's or, without one, not known and left out (beta is infinite), as in the paper.

    Args:
        phi: bases at the points.
        z: log depth of the points.
        prior: the weights' prior.
        weight: relative precision of each point; 0 drops it. All 1 by default.
        steps: most EM steps. The defaults of `steps` and `tol` are the paper's.
        tol: an image is converged when its beta moves by less than this share.
        hyperprior: Gamma distributions of alpha and beta, which keep EM proper when there are
            fewer points than bases.
        huber: clip residuals beyond this many standard deviations (1.345 is customary).
    """
    if steps < 0 or not tol >= 0:
        raise ValueError(f"`steps` is {steps} and `tol` {tol}; neither may be negative")
    if huber is not None and not huber > 0:
        raise ValueError(f"`huber` is {huber}; pass a positive number of standard deviations")
    given = points = check_points(phi, z, weight)
    eps = torch.finfo(phi.dtype).eps
    hyper = hyperprior or Hyperprior()
    white = whiten(points, prior, eps)
    found = maximise(white, _start(white, hyper), hyper, steps, tol)
    post = at_precisions(points, prior, white, found.alpha, found.beta)
    for _ in range(ROUNDS if huber is not None else 0):
        assert huber is not None
        weights, clip = huber_weights(given, post, huber)
        points = given._replace(weight=weights)
        white = whiten(points, prior, eps)
        found = maximise(white, found, hyper, steps, tol, clip)
        post = at_precisions(points, prior, white, found.alpha, found.beta)
    unknown = (white.count == 0) & ~(_tensor(hyper.beta.shape, white.count) > 0)
    beta = torch.where(unknown, torch.inf, post.beta)
    return replace(post, beta=beta, steps=found.steps, converged=found.converged).to(phi.dtype)


def maximise(
    white: Whitened,
    start: Precisions,
    hyper: Hyperprior,
    steps: int,
    tol: float,
    clip: Tensor | float = 1.0,
) -> Precisions:
    """EM from `start`, each image until its own beta stands still; the others do not disturb it."""
    now = Precisions(
        start.alpha, start.beta, torch.zeros_like(start.steps), torch.zeros_like(start.converged)
    )
    for _ in range(steps):
        if now.converged.all():
            break
        alpha, beta = em_step(white, now.alpha, now.beta, hyper, clip)
        moving = ~now.converged
        now = Precisions(
            torch.where(moving, alpha, now.alpha),
            torch.where(moving, beta, now.beta),
            now.steps + moving,
            now.converged | ((beta - now.beta).abs() <= tol * now.beta),
        )
    return now


def em_step(
    white: Whitened,
    alpha: Float[Tensor, "*b"],
    beta: Float[Tensor, "*b"],
    hyper: Hyperprior,
    clip: Tensor | float = 1.0,
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """One re-estimation of alpha and beta, PRML section 9.3.4, with Gamma hyperpriors.

    A hyperprior of shape s and rate r acts like 2 s observations whose squares sum to 2 r.
    """
    precision = alpha[..., None] + beta[..., None] * white.lam
    u = beta[..., None] * white.c / precision
    size = (u.square() + 1 / precision).sum(-1)
    noise = clip * white.squares(alpha, beta) + (white.lam / precision).sum(-1)
    noise = torch.maximum(noise, white.count * white.smallest_noise)
    m = torch.full_like(alpha, white.lam.shape[-1])
    return _precision(m, size, hyper.alpha, alpha), _precision(white.count, noise, hyper.beta, beta)


def _precision(count: Tensor, squares: Tensor, gamma: Gamma, fallback: Tensor) -> Tensor:
    """(count + 2 shape) / (squares + 2 rate), or the fallback where nothing was observed."""
    observations = count + 2 * _tensor(gamma.shape, count)
    total = squares + 2 * _tensor(gamma.rate, count)
    known = (observations > 0) & (total > 0)
    return torch.where(known, observations / torch.where(known, total, 1), fallback)


def _start(white: Whitened, hyper: Hyperprior) -> Precisions:
    """The paper's start, alpha = 1 and beta = sqrt(N); the hyperprior's mean where there is one."""
    none = torch.zeros_like(white.count)
    alpha = _precision(none, none, hyper.alpha, torch.ones_like(none))
    beta = _precision(none, none, hyper.beta, white.count.clamp(min=1).sqrt())
    return Precisions(alpha, beta, none.long(), none.bool())


def _tensor(value: float | Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)
