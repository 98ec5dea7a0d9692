# SPDX-License-Identifier: Apache-2.0
"""The shared prior of the weights, and how it is learned from the fits of a training epoch."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from deepbasis.shapes import Float

if TYPE_CHECKING:
    from deepbasis.fit.linear import Posterior

# Relative size up to which a negative eigenvalue of a covariance is attributed to rounding.
PSD_TOLERANCE = 1e-6
# Smallest share of the scatter, in any direction, that the correction for estimation noise keeps.
KEPT_SHARE = 0.01


@dataclass(frozen=True)
class Prior:
    """w ~ N(mean, cov / alpha), shared by all images, or one for each. `cov` may be singular."""

    mean: Float[Tensor, "*b m"]
    """Mean m0."""
    cov: Float[Tensor, "*b m m"]
    """Covariance Sigma0 at alpha = 1."""

    def __post_init__(self) -> None:
        shape = self.mean.shape
        if not shape or self.cov.shape != (*shape, shape[-1]):
            raise ValueError(
                f"the prior's mean is {list(shape)} and its cov {list(self.cov.shape)}; "
                "expected [m] and [m, m]"
            )
        if not (self.mean.isfinite().all() and self.cov.isfinite().all()):
            raise ValueError("the prior holds NaN or infinity; was it learned from failed fits?")
        if not torch.allclose(self.cov, self.cov.mT, atol=PSD_TOLERANCE * self._largest):
            raise ValueError("the prior's cov is not symmetric; pass a covariance matrix")

    @property
    def _largest(self) -> float:
        return float(self.cov.abs().max()) if self.cov.numel() else 0.0

    @cached_property
    def root(self) -> Float[Tensor, "*b m m"]:
        """L0 in float64 with L0 L0' = cov: Cholesky's, or from eigenvectors if cov is singular."""
        cov = self.cov.double()
        root, info = torch.linalg.cholesky_ex(cov)
        if (info == 0).all():
            return root
        values, vectors = torch.linalg.eigh(cov)
        least, largest = values[..., 0], values[..., -1]
        if (least < -PSD_TOLERANCE * largest.abs()).any():
            raise ValueError(
                f"the prior's cov has a negative eigenvalue, {least.min():.3g} (largest "
                f"{largest.max():.3g}); pass a covariance matrix"
            )
        return vectors * values.clamp(min=0).sqrt()[..., None, :]

    def widened(self, by: "Widening") -> "Prior":
        """A prior for each of b images; the first basis is the constant.

        Args:
            by: what to multiply the covariance by, and to add to the constant.

        Returns:
            A prior with a batch dimension.
        """
        cov = by.scale.to(self.cov)[:, None, None] * self.cov
        cov[:, 0, 0] += by.offset_var.to(cov)
        mean = self.mean.repeat(len(cov), 1)
        mean[:, 0] += by.shift
        return Prior(mean, cov)


class Widening(NamedTuple):
    """How much wider than learned the prior of each of b images is."""

    scale: Float[Tensor, "b"]
    """Factor on the covariance."""
    offset_var: Float[Tensor, "b"]
    """Variance of log depth that all pixels of an image have in common, in addition."""
    shift: float = 0.0
    """Log depth that is added to all pixels."""


class Gamma(NamedTuple):
    """Gamma distribution of a precision: mean shape / rate. (0, 0) is uninformative."""

    shape: float = 0.0
    """Half the equivalent number of observations."""
    rate: float = 0.0
    """Half the sum of their squares."""


class Hyperprior(NamedTuple):
    """Prior distributions of the precisions; uninformative by default."""

    alpha: Gamma = Gamma()
    """Of the precision of the prior's scale."""
    beta: Gamma = Gamma()
    """Of the precision of the noise."""


@dataclass(frozen=True)
class WeightSample:
    """Maximum-likelihood weights of k images: half a kilobyte each, so an epoch fits in memory.

    Samples of several batches or processes are merged by concatenation: a merged sample equals
    that of a single process.
    """

    weights: Float[Tensor, "k m"]
    """Fitted weights of each image."""
    beta: Float[Tensor, "k"]
    """Their noise precision."""
    noise_cov: Float[Tensor, "m m"]
    """Sum over the images of the weights' estimation covariance."""

    @classmethod
    def of(cls, post: "Posterior") -> "WeightSample":
        """The weights of one image or batch, fitted by `fit.ml`.

        Args:
            post: the fit.

        Returns:
            A sample of one image, or of all images of a batch.
        """
        m = post.mean.shape[-1]
        weights = post.mean.detach().double().reshape(-1, m)
        count = (post.weight > 0).sum(-1).double()
        # The ML noise variance is biased by (N - M) / N; here the unbiased one is needed.
        unbias = count / (count - m).clamp(min=1)
        cov = post.cov.detach().double() * unbias[..., None, None]
        beta = post.beta.detach().double() / unbias
        return cls(weights, beta.flatten(), cov.reshape(-1, m, m).sum(0))

    @classmethod
    def merge(cls, samples: Iterable["WeightSample"]) -> "WeightSample":
        """One sample of all images.

        Args:
            samples: of batches or processes, in any order.

        Returns:
            The merged sample.

        Raises:
            ValueError: if there is none.
        """
        parts = list(samples)
        if not parts:
            raise ValueError("no weights were collected; run the network in training mode first")
        return cls(
            torch.cat([part.weights for part in parts]),
            torch.cat([part.beta for part in parts]),
            torch.stack([part.noise_cov for part in parts]).sum(0),
        )

    def prior(self, *, correct: bool = True) -> Prior:
        """Mean and covariance of the weights.

        Their scatter is the spread of the true weights plus the noise of estimating each; `correct`
        subtracts the latter (but keeps a share of the scatter, so that the result stays positive).
        Without it this is the paper's prior.

        Args:
            correct: subtract the noise of estimation.

        Returns:
            The prior that all images share.

        Raises:
            ValueError: if the sample has fewer than 2 images.
        """
        if len(self.weights) < 2:
            raise ValueError("a prior needs the weights of at least 2 images")
        cov = self._scatter
        if correct:
            values, vectors = self._noise_share
            kept = (1 - values).clamp(min=KEPT_SHARE)
            cov = (vectors * kept) @ vectors.mT
        return Prior(self.weights.mean(0), cov)

    def hyperprior(self) -> Hyperprior:
        """Gamma distributions of alpha and beta over the images, by maximum likelihood.

        The mean of alpha is fixed to 1, since the covariance contains the scale. Neither has more
        weight than M measurements, so that both stay weak.
        """
        k, m = self.weights.shape
        if k < 2:
            raise ValueError("a hyperprior needs the weights of at least 2 images")
        unit = (self.weights - self.weights.mean(0)) @ self._whitener
        alpha = fit_gamma(m / unit.square().sum(-1).clamp(min=1e-300), most=m / 2)
        beta = fit_gamma(self.beta, most=m / 2)
        return Hyperprior(Gamma(alpha.shape, alpha.shape), beta)

    @cached_property
    def _scatter(self) -> Float[Tensor, "m m"]:
        return torch.cov(self.weights.mT).reshape(self.noise_cov.shape)

    @cached_property
    def _whitener(self) -> Float[Tensor, "m m"]:
        """W with W' scatter W = I in the directions in which the weights vary, 0 in the others."""
        values, vectors = torch.linalg.eigh(self._scatter)
        rounding = len(values) * torch.finfo(values.dtype).eps * values[-1].clamp(min=0)
        inverse = torch.where(values > rounding, values.clamp(min=1e-300).rsqrt(), 0)
        return vectors * inverse

    @cached_property
    def _noise_share(self) -> tuple[Float[Tensor, "m"], Float[Tensor, "m m"]]:
        """Shares s and vectors V with scatter = V V', mean estimation covariance = V diag(s) V'."""
        noise = self.noise_cov / len(self.weights)
        values, turn = torch.linalg.eigh(self._whitener.mT @ noise @ self._whitener)
        return values, self._scatter @ self._whitener @ turn


def fit_gamma(x: Float[Tensor, "k"], most: float) -> Gamma:
    """Maximum-likelihood Gamma of positive numbers, its shape at most `most`.

    Args:
        x: the numbers.
        most: largest shape.

    Returns:
        Its shape and rate.
    """
    from scipy.stats import gamma  # slow to import, and only training needs it

    spread = float(x.log().std())
    if spread < 1e-6:  # the likelihood has no maximum if all numbers are equal
        return Gamma(most, most / float(x.mean()))
    shape, _, scale = gamma.fit(x.cpu().numpy(), floc=0)
    shape = min(float(shape), most)
    return Gamma(shape, shape / float(x.mean())) if shape == most else Gamma(shape, 1 / scale)
