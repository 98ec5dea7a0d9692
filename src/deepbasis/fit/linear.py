# SPDX-License-Identifier: Apache-2.0
"""Posterior of the weights at given precisions, maximum-likelihood fit, and prediction."""

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from deepbasis.fit.checks import FitPoints, batch_items, check_finite, check_points
from deepbasis.fit.prior import Prior
from deepbasis.shapes import Bool, Float, Int

# Smallest noise variance, so that its inverse is a float32: depth with a relative error of 1e-15.
SMALLEST_NOISE = 1e-30
# Relative jitters that `ml` tries in this order on images whose normal matrix is singular.
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6)


class JitterWarning(UserWarning):
    """Bases were collinear at the points; a small multiple of the identity was added."""


@dataclass(frozen=True)
class Posterior:
    """w ~ N(mean, root root'), with its precisions and how they were found."""

    mean: Float[Tensor, "*b m"]
    """Mean of the weights."""
    root: Float[Tensor, "*b m m"]
    """A root R of their covariance, cov = R R'."""
    alpha: Float[Tensor, "*b"]
    """Prior scale precision; 0 for a maximum-likelihood fit."""
    beta: Float[Tensor, "*b"]
    """Noise precision of a point of weight 1."""
    log_evidence: Float[Tensor, "*b"]
    """ln p(z | alpha, beta); for a maximum-likelihood fit, under the improper prior p(w) = 1."""
    steps: Int[Tensor, "*b"]
    """Number of EM steps; 0 if the precisions were given or have a closed form."""
    converged: Bool[Tensor, "*b"]
    """Whether EM converged within its steps."""
    points: FitPoints = field(repr=False)
    """The fitted points, in float64."""
    exact: "Posterior | None" = field(default=None, repr=False)
    """The same before rounding to the dtype of the input."""

    @property
    def cov(self) -> Float[Tensor, "*b m m"]:
        """Covariance of the weights."""
        return self.root @ self.root.mT

    @property
    def weight(self) -> Float[Tensor, "*b n"]:
        """Final relative precision of each point: as given, times Huber's weight if requested."""
        return self.points.weight.to(self.mean.dtype)

    @cached_property
    def loo_residual(self) -> Float[Tensor, "*b n"]:
        """Each point's z minus its prediction from all *other* points, at the same precisions.

        In closed form: it is the residual e_n divided by 1 - h_n, where the leverage h_n is
        beta weight_n phi_n' cov phi_n (Sherman and Morrison). 0 for a point of weight 0. Not
        differentiable.
        """
        if self.exact is not None:
            return self.exact.loo_residual.to(self.mean.dtype)
        with torch.no_grad():
            spread = torch.linalg.vector_norm(self.points.phi @ self.root, dim=-1)
            leverage = spread.square() * self.points.weight * self.beta[..., None]
            leverage = torch.where(self.points.weight > 0, leverage, 0)  # beta may be infinite
            # A point that alone determines a direction has leverage 1: no other predicts it.
            others = (1 - leverage).clamp(min=torch.finfo(torch.float64).eps)
            return residual(self.points, self.mean) / others

    def to(self, dtype: torch.dtype) -> "Posterior":
        """The same, rounded to another dtype.

        Args:
            dtype: of the result.

        Returns:
            The rounded posterior; `exact` is this one.

        Raises:
            ValueError: if the covariance of the weights overflows in this dtype.
        """
        if dtype == self.mean.dtype:
            return self
        names = ("mean", "root", "alpha", "beta", "log_evidence")
        rounded = {name: getattr(self, name).to(dtype) for name in names}
        if not rounded["root"].square().isfinite().all():
            raise ValueError(f"the weights are too uncertain for {dtype}; pass float64")
        return replace(self, **rounded, exact=self.exact or self)

    def predict(
        self, phi: Float[Tensor, "*b p m"]
    ) -> tuple[Float[Tensor, "*b p"], Float[Tensor, "*b p"], Float[Tensor, "*b p"]]:
        """Latent mean, model variance and noise variance of p pixels; PRML eq. 3.58 and 3.59.

        The variance of log depth at a pixel is the sum of both: uncertainty of the weights, and
        errors that no weights can explain.

        Args:
            phi: bases at the pixels.

        Returns:
            Mean, model variance and noise variance of log depth.

        Raises:
            ValueError: if batch or number of bases differ from those of the fit.
        """
        if phi.shape[:-2] != self.mean.shape[:-1] or phi.shape[-1:] != self.mean.shape[-1:]:
            raise ValueError(
                f"`phi` is {list(phi.shape)}, but the weights are {list(self.mean.shape)}; "
                "expected the same batch and the same number of bases"
            )
        mean = (phi @ self.mean.to(phi.dtype)[..., None])[..., 0]
        model_var = (phi @ self.root.to(phi.dtype)).square().sum(-1)
        return mean, model_var, (1 / self.beta.to(phi.dtype))[..., None].expand_as(mean)


@dataclass(frozen=True)
class Eigenbasis:
    """Coordinates u, w = m0 + basis u, in which prior and posterior are diagonal.

    The prior is u ~ N(0, I / alpha). The normal matrix is diag(lam) and its right-hand side c, so
    that the posterior of u has precision alpha + beta lam and mean beta c / (alpha + beta lam).
    """

    lam: Float[Tensor, "*b m"]
    c: Float[Tensor, "*b m"]
    basis: Float[Tensor, "*b m m"]
    unexplained: Float[Tensor, "*b"]  # weighted squares that no u explains
    explained: Float[Tensor, "*b m"]  # c^2 / lam: reduction of the squares by the optimal u_i

    def squares(self, prior_share: Float[Tensor, "*b m"]) -> Float[Tensor, "*b"]:
        """Weighted squared residuals of the posterior mean, as a sum of positive terms.

        `prior_share` is alpha / (alpha + beta lam), the weight of the prior in each direction.
        """
        return self.unexplained + (self.explained * prior_share.square()).sum(-1)


def diagonalise(points: FitPoints, prior: Prior) -> Eigenbasis:
    """One symmetric eigendecomposition, after which every EM step costs O(M).

    Directions that the points do not determine, up to rounding, get lam = 0 and keep their prior.
    """
    m = points.phi.shape[-1]
    if prior.mean.shape[-1] != m:
        raise ValueError(f"the prior is for {prior.mean.shape[-1]} bases, but `phi` has {m}")
    root = prior.root.to(points.phi.device)
    r = points.z - (points.phi @ prior.mean.to(points.phi)[..., None])[..., 0]
    gram, right = _normal_equations(points, r)
    lam, turn = torch.linalg.eigh(root.mT @ gram @ root)
    basis = root @ turn
    c = (basis.mT @ right)[..., 0]
    known = lam > m * torch.finfo(lam.dtype).eps * lam[..., -1:].clamp(min=0)
    lam, c = torch.where(known, lam, 0), torch.where(known, c, 0)
    best = c / torch.where(known, lam, 1)
    left = r - (points.phi @ (basis @ best[..., None]))[..., 0]
    return Eigenbasis(lam, c, basis, (points.weight * left.square()).sum(-1), c * best)


def posterior(
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    prior: Prior,
    weight: Float[Tensor, "*b n"] | None = None,
    *,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor,
) -> Posterior:
    """Posterior of the weights at given precisions, PRML eq. 3.50 and 3.51. Not differentiable.

    Args:
        phi: bases at the points.
        z: log depth of the points.
        prior: of the weights.
        weight: relative precision of each point; 0 drops it. All 1 by default.
        alpha: precision of the prior's scale: one number, or one for each image.
        beta: precision of the noise, likewise.

    Returns:
        The posterior, with the log evidence at these precisions.

    Raises:
        ValueError: if shapes disagree, a value is not finite, or a precision is not positive.
    """
    with torch.no_grad():
        points = check_points(phi, z, weight)
        precisions = (to_precision("alpha", alpha, points), to_precision("beta", beta, points))
        return at_precisions(points, prior, diagonalise(points, prior), *precisions).to(phi.dtype)


def at_precisions(
    points: FitPoints,
    prior: Prior,
    eigen: Eigenbasis,
    alpha: Float[Tensor, "*b"],
    beta: Float[Tensor, "*b"],
) -> Posterior:
    """Posterior at given precisions, in float64."""
    precision = alpha[..., None] + beta[..., None] * eigen.lam
    u = beta[..., None] * eigen.c / precision
    mean = prior.mean.to(eigen.basis) + (eigen.basis @ u[..., None])[..., 0]
    root = eigen.basis * precision.rsqrt()[..., None, :]
    log_evidence = 0.5 * (
        points.n * (beta.log() - math.log(2 * math.pi))
        + u.shape[-1] * alpha.log()
        + log_weight(points)
        - beta * eigen.squares(alpha[..., None] / precision)
        - alpha * u.square().sum(-1)
        - precision.log().sum(-1)
    )
    return _pack(points, mean, root, alpha, beta, log_evidence)


def ml(
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    weight: Float[Tensor, "*b n"] | None = None,
) -> Posterior:
    """Maximum-likelihood fit: the posterior under a flat prior. Differentiable; used in training.

    Each image needs at least as many points as there are bases. All results but the
    leave-one-out residuals are differentiable in `phi`, `z` and `weight`.

    Args:
        phi: bases at the points.
        z: log depth of the points.
        weight: relative precision of each point; 0 drops it. All 1 by default.

    Returns:
        The posterior, with `alpha` 0 and the noise of maximum likelihood.

    Raises:
        ValueError: if an image has fewer points than bases, or bases that are collinear even with
            jitter.
    """
    points = check_points(phi, z, weight)
    n, m = points.n, points.phi.shape[-1]
    if (n < m).any():
        raise ValueError(
            f"a fit without a prior needs at least as many points as bases, {m}, but "
            f"{batch_items(n < m)} has {int(n.min())}; draw more points or use `fit.evidence`"
        )
    gram, right = _normal_equations(points, points.z)
    chol = _cholesky(gram)
    mean = torch.cholesky_solve(right, chol)[..., 0]
    squares = (points.weight * residual(points, mean).square()).sum(-1)
    noise = torch.maximum(squares / n, smallest_noise(points, torch.finfo(phi.dtype).eps))
    eye = torch.eye(m, dtype=chol.dtype, device=chol.device).expand_as(chol)
    root = torch.linalg.solve_triangular(chol.mT, eye, upper=True) * noise.sqrt()[..., None, None]
    log_evidence = 0.5 * (
        (m - n) * (2 * math.pi * noise).log() + log_weight(points) - squares / noise
    ) - chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    flat = torch.zeros_like(n)
    return _pack(points.detach(), mean, root, flat, 1 / noise, log_evidence).to(phi.dtype)


def posterior_mean(
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    prior: Prior,
    weight: Float[Tensor, "*b n"] | None = None,
    *,
    beta: float | Tensor,
) -> Float[Tensor, "*b m"]:
    """Mean of `posterior` at alpha = 1, differentiable: weights for few points, or none.

    Args:
        phi: bases at the points.
        z: log depth of the points.
        prior: of the weights.
        weight: relative precision of each point; 0 drops it. All 1 by default.
        beta: precision of the noise: one number, or one for each image.

    Returns:
        Mean of the weights.
    """
    return posterior_moments(phi, z, prior, weight, beta=beta)[0].to(phi.dtype)


def posterior_moments(
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    prior: Prior,
    weight: Float[Tensor, "*b n"] | None = None,
    *,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor,
) -> tuple[Float[Tensor, "*b m"], Float[Tensor, "*b m m"]]:
    """Mean and root of `posterior` in float64, differentiable in `phi`, `z` and `weight`.

    Args:
        phi: bases at the points.
        z: log depth of the points.
        prior: of the weights.
        weight: relative precision of each point; 0 drops it. All 1 by default.
        alpha: precision of the prior's scale: one number, or one for each image.
        beta: precision of the noise, likewise.

    Returns:
        Mean m and root R of the weights' distribution N(m, R R').
    """
    points = check_points(phi, z, weight)
    start, root = prior.mean.to(points.phi), prior.root.to(points.phi)
    gram, right = _normal_equations(points, points.z - points.phi @ start)
    eye = torch.eye(len(start), dtype=root.dtype, device=root.device)
    a, b = (
        to_precision(name, value, points)[..., None, None]
        for name, value in (("alpha", alpha), ("beta", beta))
    )
    chol = _cholesky(a * eye + b * (root.mT @ gram @ root))
    u = torch.cholesky_solve(b * (root.mT @ right), chol)
    inverse = torch.linalg.solve_triangular(chol.mT, eye.expand_as(chol), upper=True)
    return start + (root @ u)[..., 0], root @ inverse


def to_precision(name: str, value: float | Tensor, points: FitPoints) -> Float[Tensor, "*b"]:
    """A precision of each image in float64, from one number or one for each."""
    given = torch.as_tensor(value, dtype=points.z.dtype, device=points.z.device)
    if not ((given > 0).all() and given.isfinite().all()):
        raise ValueError(f"`{name}` is a precision: pass a positive, finite number")
    try:
        return given.expand(points.n.shape)
    except RuntimeError as error:
        raise ValueError(
            f"`{name}` is {list(given.shape)}; pass one number, or one for each image of a batch "
            f"of {list(points.n.shape)}"
        ) from error


def residual(points: FitPoints, mean: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n"]:
    """z minus the prediction by these weights."""
    return points.z - (points.phi @ mean[..., None])[..., 0]


def log_weight(points: FitPoints) -> Float[Tensor, "*b"]:
    """Sum of ln weight over the points in use."""
    return torch.where(points.weight > 0, points.weight, 1).log().sum(-1)


def smallest_noise(points: FitPoints, eps: float) -> Float[Tensor, "*b"]:
    """Noise variance due to the rounding error `eps` of the targets alone."""
    if points.z.shape[-1] == 0:
        return torch.full_like(points.n, SMALLEST_NOISE)
    size = (points.weight.sqrt() * points.z).detach().abs().amax(-1)
    return (eps * size).square() + SMALLEST_NOISE


def _pack(
    points: FitPoints,
    mean: Float[Tensor, "*b m"],
    root: Float[Tensor, "*b m m"],
    alpha: Float[Tensor, "*b"],
    beta: Float[Tensor, "*b"],
    log_evidence: Float[Tensor, "*b"],
) -> Posterior:
    steps = torch.zeros_like(alpha, dtype=torch.int64)
    return Posterior(mean, root, alpha, beta, log_evidence, steps, steps == 0, points)


def _normal_equations(
    points: FitPoints, target: Float[Tensor, "*b n"]
) -> tuple[Float[Tensor, "*b m m"], Float[Tensor, "*b m 1"]]:
    """Phi' Omega Phi and Phi' Omega target."""
    gram, right = points.weighted.mT @ points.phi, points.weighted.mT @ target[..., None]
    check_finite(points, gram, right)
    return gram, right


def _cholesky(gram: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """Cholesky factor; only where it fails, a multiple of the identity is added."""
    chol, info = torch.linalg.cholesky_ex(gram)
    for jitter in JITTERS:
        failed = info > 0
        if not failed.any():
            return chol
        warnings.warn(
            f"the bases are collinear at the points of {batch_items(failed)}: "
            f"{jitter:.0e} of the mean diagonal was added to the normal matrix",
            JitterWarning,
            stacklevel=3,
        )
        size = gram.diagonal(dim1=-2, dim2=-1).mean(-1).detach().clamp(min=SMALLEST_NOISE)
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        added = (jitter * size * failed)[..., None, None] * eye
        chol, info = torch.linalg.cholesky_ex(gram + added)
    if (info > 0).any():
        raise ValueError(
            f"the bases of {batch_items(info > 0)} are collinear at the points even with a jitter "
            f"of {JITTERS[-1]:.0e}; give more points, fewer bases, or use `fit.evidence`"
        )
    return chol
