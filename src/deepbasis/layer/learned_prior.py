# SPDX-License-Identifier: Apache-2.0
"""The learned prior of the weights, as a part of a model's state."""

import torch
from torch import Tensor, nn

from deepbasis import fit
from deepbasis.shapes import Float


class LearnedGamma(nn.Module):
    """Gamma distribution of a precision, as a part of a model's state; (0, 0) until it is set."""

    shape: Tensor
    rate: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shape", torch.zeros(()))
        self.register_buffer("rate", torch.zeros(()))

    @property
    def value(self) -> fit.Gamma:
        """The distribution."""
        return fit.Gamma(float(self.shape), float(self.rate))

    @property
    def usual_variance(self) -> float:
        """1 / mean of the precision; 0 if nothing is known."""
        return float(self.rate / self.shape) if self.shape > 0 else 0.0

    def set(self, gamma: fit.Gamma) -> None:
        """Store a distribution."""
        self.shape.fill_(gamma.shape)
        self.rate.fill_(gamma.rate)

    @torch.no_grad()
    def update_running(self, variance: Float[Tensor, ""], momentum: float) -> None:
        """Move towards the variance of a training batch; the first batch sets it."""
        self.shape.lerp_(torch.ones_like(self.shape), momentum)
        self.rate.lerp_(variance.to(self.rate), momentum)


class PriorCollector:
    """Collects the maximum-likelihood weights of training passes; a prior is learned from them."""

    def __init__(self) -> None:
        self.samples: list[fit.WeightSample] = []

    def add(self, post: fit.Posterior) -> None:
        """Add the weights of a batch."""
        self.samples.append(fit.WeightSample.of(post))

    @property
    def sample(self) -> fit.WeightSample:
        """All weights collected so far."""
        return fit.WeightSample.merge(self.samples)


class LearnedPrior(nn.Module):
    """Prior N(mean, cov / alpha) of m weights, and the Gamma distribution of alpha."""

    mean: Tensor
    cov: Tensor

    def __init__(self, m: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(m))
        self.register_buffer("cov", torch.eye(m))
        self.alpha = LearnedGamma()

    @property
    def value(self) -> fit.Prior:
        """The prior as `fit` takes it; a copy, so that a result does not change with the model."""
        return fit.Prior(self.mean.clone(), self.cov.clone())

    def set(self, prior: fit.Prior, alpha: fit.Gamma | None = None) -> None:
        """Store a prior."""
        if prior.mean.shape != self.mean.shape:
            raise ValueError(
                f"the prior is for {prior.mean.numel()} bases, but the layer has "
                f"{self.mean.numel()}: {self.mean.numel() - 1} channels and the constant"
            )
        self.mean.copy_(prior.mean)
        self.cov.copy_(prior.cov)
        self.alpha.set(alpha or fit.Gamma())

    @torch.no_grad()
    def update_running(self, weights: Float[Tensor, "b m"], momentum: float) -> None:
        """Move the prior towards the weights of a training batch, as batch normalisation does."""
        off = weights.detach() - self.mean
        self.mean.add_(off.mean(0), alpha=momentum)
        self.cov.lerp_(off.mT @ off / len(off), momentum)
