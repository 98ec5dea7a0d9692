# SPDX-License-Identifier: Apache-2.0
"""Error models: assumptions about the residuals of the bases, and the fits that follow from them.

An error model is state, learned after the network: a hyperprior of the noise, its own calibration,
a kernel. `fit` turns the points of a batch into a fitted model, which predicts every pixel and each
point from the others. What was fitted holds all that it needs, so that nothing done to the model
later changes it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.fit import (
    Gamma,
    Hyperprior,
    Kernel,
    Posterior,
    Prior,
    Widening,
    correlated,
    evidence,
)
from deepbasis.fit.doubt import LeftOut, doubt_var
from deepbasis.fit.outliers import leave_one_out, leave_one_out_correlated
from deepbasis.layer.calibration_table import Calibrated, Calibration
from deepbasis.layer.learned_prior import LearnedGamma, LearnedPrior
from deepbasis.layer.prediction import LeaveOneOut, Prediction
from deepbasis.layer.pyramid import Pyramid, project_in_blocks
from deepbasis.points import Points
from deepbasis.shapes import Float, Int

Errors = Literal["independent", "correlated", "paper"]


@dataclass(frozen=True)
class Observed:
    """The points of a batch of images, and the output of the network for these images."""

    pyramid: Pyramid
    points: Points
    guide: Float[Tensor, "b c h w"] | None = None
    """Images in 0..1 or an embedding: errors are correlated where it is similar."""
    amplitude: Float[Tensor, "b 1 h w"] | None = None
    """Size of the correlated errors, relative to other pixels; 1 by default."""
    widening: Widening | None = None
    """How much wider the prior is, since the images are unfamiliar."""

    @cached_property
    def phi(self) -> Float[Tensor, "b n m"]:
        """Bases at the points."""
        return self.pyramid.at(self.points.v, self.points.u)

    def split(self, sizes: Sequence[int]) -> "list[Observed]":
        """The same images, each with a part of the points; bases are read once for all parts."""
        parts = []
        for start, stop in pairwise(accumulate(sizes, initial=0)):
            p, some = self.points, slice(start, stop)
            points = Points(p.u[:, some], p.v[:, some], p.z[:, some], p.weight[:, some])
            parts.append(replace(self, points=points))
            vars(parts[-1])["phi"] = self.phi[:, some]
        return parts

    def reweighted(self, weight: Float[Tensor, "b n"]) -> "Observed":
        """The same points with other weights."""
        other = replace(self, points=replace(self.points, weight=weight))
        known = {"phi": self.phi} | vars(self)
        vars(other).update({name: known[name] for name in ("phi", "s", "x") if name in known})
        return other

    @property
    def z(self) -> Float[Tensor, "b n"]:
        """Log depth of the points."""
        return self.points.z.to(self.phi)

    @property
    def weight(self) -> Float[Tensor, "b n"]:
        """Relative precision of the points."""
        return self.points.weight.to(self.phi)

    @property
    def claimed_weight(self) -> Float[Tensor, "b n"]:
        """The same, and 1 for points of weight 0."""
        return torch.where(self.weight > 0, self.weight, 1)

    @cached_property
    def s(self) -> Float[Tensor, "b n"]:
        """Amplitude at the points."""
        if self.amplitude is None:
            return torch.ones_like(self.weight)
        height, width = self.pyramid.size
        row, column = self.points.pixel
        index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return self.amplitude.flatten(1).gather(1, index)

    @cached_property
    def by_amplitude(self) -> tuple[Tensor, Tensor, Tensor]:
        """Bases, log depth and weight of the points, divided by their amplitude."""
        if self.amplitude is None:
            return self.phi, self.z, self.weight
        s = self.s
        return self.phi / s[..., None], self.z / s, self.weight * s.square()

    @cached_property
    def x(self) -> Float[Tensor, "b n f"]:
        """Places of the points, as kernels take them."""
        points, width = self.points, self.pyramid.size[1]
        guides = [None] * len(points.z) if self.guide is None else list(self.guide)
        places = zip(points.v, points.u, guides, strict=True)
        return torch.stack([correlated.locate(v, u, width, image) for v, u, image in places])


@dataclass(frozen=True)
class Fitted(ABC):
    """A fit of the points of a batch, and the calibration for their numbers."""

    observed: Observed
    posterior: Posterior
    prior: Prior
    calibrated: Calibrated
    wrong: Float[Tensor, "n"] | None = field(default=None, kw_only=True)
    """Probability that each point of one image is wrong, if some were left out because of it."""

    @cached_property
    def prediction(self) -> Prediction:
        """Calibrated prediction of every pixel."""
        found = self.without_doubt
        if self.wrong is None:
            return found
        return found._replace(model_var=found.model_var + self.doubt_var())

    @cached_property
    def without_doubt(self) -> Prediction:
        """The same as if all points that were left out were certainly wrong."""
        return self._calibrate(self.predict())

    def predict_with(self, memory: correlated.Memory | None) -> Prediction:
        """`prediction` of one image, faster if the previous one had nearly the same points.

        Args:
            memory: of the previous predictions of the image.

        Returns:
            The calibrated prediction.
        """
        vars(self)["without_doubt"] = self._calibrate(self.predict(memory))
        return self.prediction

    def _calibrate(self, predicted: Prediction) -> Prediction:
        found = self.calibrated.apply(predicted)
        if not (found.mean.isfinite().all() and found.var.isfinite().all()):
            raise ValueError(
                "the bases hold NaN or infinity, or are too large; check the network's output"
            )
        return found

    @property
    def count(self) -> Float[Tensor, "b"]:
        """Number of points of each image."""
        return self.observed.points.count

    @property
    def distribution(self) -> latent.ScaleMixture:
        """Distribution of the errors of `prediction`."""
        return self.calibrated.distribution(self.prediction)

    def widen(self, factor: float) -> "Fitted":
        """The same with all variances multiplied."""
        noise, model, dof, width = self.calibrated
        return replace(self, calibrated=Calibrated(factor * noise, factor * model, dof, width))

    @property
    @abstractmethod
    def noise_var(self) -> Float[Tensor, "b"]:
        """Variance of log depth that nothing explains at a point of weight 1."""

    @abstractmethod
    def predict(self, memory: correlated.Memory | None = None) -> Prediction:
        """Prediction of every pixel before calibration."""

    def predict_bases(self) -> tuple[Float[Tensor, "b 1 h w"], Float[Tensor, "b 1 h w"]]:
        """Mean and model variance of every pixel by the weights alone."""
        post, pyramid = self.posterior, self.observed.pyramid
        onto = torch.cat([post.mean[..., None], post.root], -1).mT
        mean, model_var = project_in_blocks(pyramid, onto)
        return mean.view(-1, 1, *pyramid.size), model_var.view(-1, 1, *pyramid.size)

    def doubt_var(self) -> Tensor:
        """Variance of every pixel of one image in case points were right that were left out."""
        return torch.zeros_like(self.without_doubt.mean)  # one point hardly moves the weights

    def leave_one_out(self) -> LeaveOneOut:
        """For a batch of one: what all other points predict at each point, calibrated.

        Points of weight 0 predict nothing, and are predicted as if their weight were 1.
        """
        residual, model_var, noise_var = self.predict_left_out()
        factors = self.calibrated
        noise_var = float(factors.noise_factor) * noise_var
        var = float(factors.model_factor) * model_var + noise_var
        return LeaveOneOut(residual.cpu(), var.cpu(), (noise_var / var).cpu())

    @abstractmethod
    def predict_left_out(
        self, which: Int[Tensor, "_"] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residual, model variance and noise variance of points of one image, in float64."""


class ErrorModel(nn.Module, ABC):
    """Assumptions about the errors, with the calibration that belongs to them."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = LearnedGamma()
        """Hyperprior of the noise precision beta."""
        self.calibration = Calibration()

    @property
    def usual_noise(self) -> float:
        """Variance that the fit leaves at a point, as training found; 0 if it is not known."""
        return self.noise.usual_variance

    @abstractmethod
    def fit(
        self, observed: Observed, prior: LearnedPrior, *, huber: float | None = None, **em: Any
    ) -> Fitted:
        """Fit the points of a batch.

        Args:
            observed: points and bases.
            prior: of the weights.
            huber: down-weight points beyond this many standard deviations.
            em: `steps` and `tol` of `fit.evidence`.
        """

    def worth(self, observed: Observed, nugget: float | None = None) -> Float[Tensor, "b"]:
        """Equivalent number of exact points, in terms of information about the size of the errors.

        Args:
            observed: points and bases.
            nugget: share of the variance to which weights refer, if the rest is correlated.
        """
        weight = observed.weight
        if nugget is not None:
            own = observed.s.square()
            weight = weight * (own + nugget) / (weight * own + nugget)
        return weight.clamp(max=1).sum(-1)

    def prior_of(self, prior: LearnedPrior, observed: Observed) -> Prior:
        """Prior of the weights for these images; a common offset has its variance after
        calibration.
        """
        if observed.widening is None:
            return prior.value
        factor = self.calibration.at(observed.points.count).model_factor.flatten()
        offset_var = observed.widening.offset_var / factor
        return prior.value.widened(observed.widening._replace(offset_var=offset_var))

    def _evidence(
        self,
        points: tuple[Tensor, Tensor, Tensor],
        prior: Prior,
        alpha: Gamma,
        huber: float | None,
        em: dict[str, Any],
    ) -> Posterior:
        phi, z, weight = points
        hyperprior = Hyperprior(alpha, self.noise.value)
        return evidence(phi, z, prior, weight, hyperprior=hyperprior, huber=huber, **em)


class IndependentFit(Fitted):
    """Errors of different pixels are independent, as in the paper."""

    @property
    def noise_var(self) -> Float[Tensor, "b"]:
        """Variance of log depth that nothing explains at a point of weight 1."""
        return 1 / self.posterior.beta

    def predict(self, memory: correlated.Memory | None = None) -> Prediction:
        """Prediction of every pixel before calibration; PRML eq. 3.58 and 3.59."""
        mean, model_var = self.predict_bases()
        return Prediction(mean, model_var, self.noise_var.view(-1, 1, 1, 1).expand_as(mean))

    def predict_left_out(
        self, which: Int[Tensor, "_"] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residual, model variance and noise variance of points of one image, by default all."""
        post, seen = self.posterior, self.observed
        fitted = post.points.weight
        ratio = 1 / torch.where(fitted > 0, fitted, 1)
        residual, model_var = leave_one_out(post, seen.phi, seen.z, ratio, fitted > 0)
        noise_var = 1 / (seen.claimed_weight.double() * post.beta.double())
        found = residual[0], model_var[0], noise_var[0]
        return found if which is None else (found[0][which], found[1][which], found[2][which])


class Independent(ErrorModel):
    """Errors of different pixels are independent; the variance is noise plus model."""

    def fit(
        self, observed: Observed, prior: LearnedPrior, *, huber: float | None = None, **em: Any
    ) -> IndependentFit:
        """Fit the points of a batch."""
        known = self.prior_of(prior, observed)
        points = observed.phi, observed.z, observed.weight
        post = self._evidence(points, known, prior.alpha.value, huber, em)
        return IndependentFit(observed, post, known, self.calibration.at(self.worth(observed)))


class PaperFit(IndependentFit):
    """The paper's variance: that of the model alone."""

    def predict(self, memory: correlated.Memory | None = None) -> Prediction:
        """Prediction of every pixel before calibration, without the noise variance."""
        mean, model_var, _ = super().predict()
        return Prediction(mean, model_var, torch.zeros_like(mean))


class Paper(Independent):
    """The paper's error bars: model variance times one factor, Laplace errors, no noise term."""

    def fit(
        self, observed: Observed, prior: LearnedPrior, *, huber: float | None = None, **em: Any
    ) -> PaperFit:
        """Fit the points of a batch."""
        found = super().fit(observed, prior, huber=huber, **em)
        return PaperFit(found.observed, found.posterior, found.prior, found.calibrated)


@dataclass(frozen=True)
class CorrelatedFit(Fitted):
    """Errors are a Gaussian process; the posterior is that of the points' innovations."""

    kernel: Kernel
    innovations: correlated.Innovations

    @property
    def noise_var(self) -> Float[Tensor, "b"]:
        """Variance of log depth that a point of weight 1 shares with no neighbour."""
        return self.kernel.nugget / self.posterior.beta

    @cached_property
    def trust(self) -> Float[Tensor, "b n"]:
        """Weights of the points after Huber's, divided by their amplitude."""
        weight = self.observed.by_amplitude[2]
        return self.innovations.lower(self.kernel, weight, self.posterior.weight)

    @cached_property
    def fields(self) -> list[correlated.Field]:
        """The points of each image, prepared for prediction at any pixel."""
        seen = self.observed
        missing = [None] * len(seen.x)
        guides, amplitudes = (
            missing if x is None else list(x) for x in (seen.guide, seen.amplitude)
        )
        return [
            correlated.Field.of(self.kernel, x, seen.pyramid.size, image, weight, amplitude)
            for x, image, weight, amplitude in zip(
                seen.x, guides, self.trust, amplitudes, strict=True
            )
        ]

    @torch.no_grad()
    def predict(self, memory: correlated.Memory | None = None) -> Prediction:
        """Prediction of every pixel before calibration; see `fit.correlated`."""
        seen, post = self.observed, self.posterior
        size = seen.pyramid.size
        if (seen.points.weight > 0).any():
            phi, z, _ = seen.by_amplitude
            read = seen.pyramid.pixels
            found = correlated.predict(self.fields, post, phi, z, read, memory=memory)
            mean, model_var, ratio = (part.view(-1, 1, *size) for part in found)
        else:
            mean, model_var = self.predict_bases()
            s = torch.ones_like(mean) if seen.amplitude is None else seen.amplitude.to(mean)
            ratio = s.square() + self.kernel.nugget
        return Prediction(mean, model_var, ratio / post.beta.view(-1, 1, 1, 1))

    @torch.no_grad()
    def doubt_var(self) -> Tensor:
        """Variance of every pixel of one image in case points were right that were left out."""
        seen = self.observed
        out = seen.weight[0] == 0
        if self.wrong is None or not out.any() or out.all():
            return super().doubt_var()
        which = out.nonzero()[:, 0]
        residual, _, _ = self.predict_left_out(which)
        s = seen.s[0, which].double()
        noise = self.kernel.noise(seen.claimed_weight[0, which] * s.square())
        points = LeftOut(seen.x[0, which], s, noise, residual, self.wrong[which])
        return doubt_var(self.fields[0], points).view_as(self.without_doubt.mean)

    def predict_left_out(
        self, which: Int[Tensor, "_"] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residual, model variance and noise variance of points of one image, by default all."""
        seen, kernel = self.observed, self.kernel
        phi, z, _ = (part[0] for part in seen.by_amplitude)
        trust, s = self.trust[0].double(), seen.s[0].double()
        claimed, used = seen.claimed_weight[0].double() * s.square(), trust > 0
        trust = torch.where(used, trust, claimed)
        residual, model_var, ratio = leave_one_out_correlated(
            kernel, self.posterior, seen.x[0], phi, z, trust, used, which
        )
        if which is not None:
            claimed, trust, s = claimed[which], trust[which], s[which]
        noise = ratio + kernel.noise(claimed) - kernel.noise(trust)
        noise_var = noise / self.posterior.beta.double()
        return residual * s, model_var * s.square(), noise_var * s.square()


class Correlated(ErrorModel):
    """Errors of near and similar pixels are correlated: a Gaussian process."""

    length: Tensor
    colour: Tensor
    nugget: Tensor
    smoothness: Tensor
    rough: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in (one.name for one in fields(Kernel)):
            self.register_buffer(name, torch.zeros(()))
        self.set_kernel(Kernel())

    @property
    def kernel(self) -> Kernel:
        """Covariance of the errors."""
        numbers = {one.name: float(getattr(self, one.name)) for one in fields(Kernel)}
        return Kernel(**numbers | {"smoothness": round(2 * numbers["smoothness"]) / 2})

    def set_kernel(self, kernel: Kernel) -> None:
        """Store a kernel."""
        for one in fields(Kernel):
            getattr(self, one.name).fill_(getattr(kernel, one.name))

    @property
    def usual_noise(self) -> float:
        """Variance that a point shares with no neighbour, as training found."""
        return float(self.nugget) * self.noise.usual_variance

    @torch.no_grad()
    def fit(
        self, observed: Observed, prior: LearnedPrior, *, huber: float | None = None, **em: Any
    ) -> CorrelatedFit:
        """Fit the innovations of the points of a batch."""
        kernel = self.kernel
        innovations = correlated.whiten(kernel, observed.x, *observed.by_amplitude)
        known = self.prior_of(prior, observed)
        post = self._evidence(innovations[:3], known, prior.alpha.value, huber, em)
        calibrated = self.calibration.at(self.worth(observed, float(self.nugget)))
        return CorrelatedFit(observed, post, known, calibrated, kernel, innovations)
