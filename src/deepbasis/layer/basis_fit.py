# SPDX-License-Identifier: Apache-2.0
"""BasisFit: the drop-in last layer that turns bases and sparse depth into depth with variance."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from deepbasis import fit
from deepbasis.layer.errors import Correlated, ErrorModel, Errors, Fitted, Independent, Observed
from deepbasis.layer.errors import Paper as PaperErrors
from deepbasis.layer.judge import WRONG, Judge, recalibrate
from deepbasis.layer.learned_prior import LearnedPrior, PriorCollector
from deepbasis.layer.prediction import Prediction
from deepbasis.layer.pyramid import Pyramid, check_scales, project
from deepbasis.points import Points
from deepbasis.shapes import Float

# Weight of a batch in the running prior.
MOMENTUM = 0.02


class BasisFit(nn.Module):
    """The last layer of a depth network: fits its bases to sparse depth, image by image.

    In training mode the fit is maximum likelihood, differentiable, and each image needs at least
    `channels + 1` points. In evaluation mode the fit uses the prior and maximises the evidence, so
    that any number of points works, including none; it is not differentiable.

    Args:
        channels: number of bases of the network, over all scales; a constant is added to them.
        errors: the default error model. "independent": errors of pixels are independent;
            "correlated": errors of near and similar pixels are similar; "paper": independent, and
            the variance is the paper's, without the noise.
        steps: maximum number of EM steps, see `fit.evidence`.
        tol: relative change of beta at which EM stops.

    Examples:
        >>> layer = BasisFit(3).eval()
        >>> sparse = torch.zeros(1, 1, 4, 6)
        >>> sparse[0, 0, 1, 2] = 2.0
        >>> mean, model_var, noise_var = layer(torch.rand(1, 3, 2, 3), sparse)
        >>> mean.shape
        torch.Size([1, 1, 4, 6])
    """

    def __init__(
        self,
        channels: int = 62,
        *,
        errors: Errors = "independent",
        steps: int = 8,
        tol: float = 0.01,
    ) -> None:
        super().__init__()
        self.channels, self.errors = channels, check_errors(errors)
        self.em = {"steps": steps, "tol": tol}
        self.prior = LearnedPrior(channels + 1)
        self.models = nn.ModuleDict(
            {"independent": Independent(), "correlated": Correlated(), "paper": PaperErrors()}
        )
        self.collector: PriorCollector | None = None
        """Collects the weights of training passes; see `collect_weights`."""

    def forward(
        self,
        bases: Tensor | Sequence[Tensor],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
        guide: Float[Tensor, "b c h w"] | None = None,
    ) -> Prediction:
        """Log depth and its variance at every pixel of `sparse`.

        Args:
            bases: b c h w tensors at any strides, or one of them.
            sparse: depth in metres; 0, NaN and infinity mean no measurement.
            weight: relative precision of each measurement, 1 by default.
            guide: image in 0..1; errors are correlated where it is similar.

        Returns:
            Mean, model variance and noise variance of log depth.

        Raises:
            ValueError: if shapes disagree; in training, if an image has too few points.
        """
        with torch.autocast(sparse.device.type, enabled=False):
            points = Points.from_maps(sparse, weight)
            observed = self.observe(bases, points, (sparse.shape[2], sparse.shape[3]), guide)
            if self.training:
                return self.predict_ml(observed)
            return self.fit_details(observed).prediction

    def observe(
        self,
        bases: Tensor | Sequence[Tensor],
        points: Points,
        size: tuple[int, int],
        guide: Float[Tensor, "b c h w"] | None = None,
        amplitude: Float[Tensor, "b 1 h w"] | None = None,
    ) -> Observed:
        """First part of `forward`: bases that can be read anywhere, and the points.

        Args:
            bases: as in `forward`.
            points: of each image.
            size: height and width of the images.
            guide: image in 0..1, or features that correlated errors follow.
            amplitude: size of correlated errors at each pixel, relative to the usual.

        Returns:
            What error models fit.

        Raises:
            ValueError: if shapes disagree, or there is no image or no pixel.
        """
        scales = [bases] if isinstance(bases, Tensor) else list(bases)
        check_scales(scales, len(points.z), self.channels)
        if not len(points.z) or min(size) < 1:
            raise ValueError(
                f"there are {len(points.z)} images of {size[0]} x {size[1]} pixels (height x "
                "width); pass at least one image with at least one pixel"
            )
        at_least_float32 = torch.promote_types(scales[0].dtype, torch.float32)
        pyramid = Pyramid([s.to(at_least_float32) for s in scales], size)
        return Observed(pyramid, points, guide, amplitude)

    def fit_ml(self, observed: Observed) -> fit.Posterior:
        """Maximum-likelihood fit of training; differentiable.

        Args:
            observed: of `observe`.

        Returns:
            The posterior of the weights.
        """
        post = fit.ml(observed.phi, observed.z, observed.weight)
        if self.collector is not None:
            self.collector.add(post)
        return post

    def predict_ml(self, observed: Observed) -> Prediction:
        """Prediction of training, without prior and calibration; differentiable.

        Args:
            observed: of `observe`.

        Returns:
            Mean, model variance and noise variance of log depth.
        """
        post, pyramid = self.fit_ml(observed), observed.pyramid
        both = project(pyramid, torch.cat([post.mean[..., None], post.root], -1).mT)
        mean, model_var = (part.view(-1, 1, *pyramid.size) for part in both)
        return Prediction(mean, model_var, (1 / post.beta).view(-1, 1, 1, 1).expand_as(mean))

    def fit_details(
        self,
        observed: Observed,
        *,
        errors: Errors | None = None,
        huber: float | None = None,
        prior: LearnedPrior | None = None,
    ) -> Fitted:
        """Fit of evaluation, with all that was found; its `prediction` is that of `forward`.

        Args:
            observed: of `observe`.
            errors: error model; by default the layer's own.
            huber: down-weight residuals beyond this many standard deviations; typical value 1.345.
            prior: in place of the layer's own.

        Returns:
            The fit, with prediction, posterior and leave-one-out residuals.
        """
        known = self.prior if prior is None else prior
        return self.error_model(errors).fit(observed, known, huber=huber, **self.em)

    def fit_without_wrong(
        self,
        observed: Observed,
        wrong: Float[Tensor, "n"],
        *,
        errors: Errors | None = None,
        huber: float | None = None,
    ) -> Fitted:
        """`fit_details` of one image without the points that are probably wrong: these get the
        weight 0, and the variance around them allows for the chance that they were right.

        Args:
            observed: of one image.
            wrong: probability that each point is wrong, as from `judge`.
            errors: error model; by default the layer's own.
            huber: as in `fit_details`.

        Returns:
            The fit of the others.
        """
        out = wrong > WRONG
        if not out.any():
            return self.fit_details(observed, errors=errors, huber=huber)
        kept = observed.reweighted(torch.where(out, 0, observed.weight))
        fitted = recalibrate(self.fit_details(kept, errors=errors, huber=huber), ~out)
        return replace(fitted, wrong=wrong)

    @property
    def judge(self) -> Judge:
        """Finds wrong points."""
        scatter = self.error_model("independent").noise.usual_variance
        return Judge(self.correlated.kernel, self.prior.value, scatter)

    def error_model(self, errors: Errors | None = None) -> ErrorModel:
        """One of the error models, by default the layer's own.

        Args:
            errors: "independent", "correlated" or "paper".

        Returns:
            The error model, with its calibration.

        Raises:
            ValueError: if there is no such error model.
        """
        model: Any = self.models[self.errors if errors is None else check_errors(errors)]
        return model

    @property
    def correlated(self) -> Correlated:
        """The model of correlated errors."""
        model: Any = self.models["correlated"]
        return model

    def collect_weights(self) -> None:
        """Start collecting the weights of training passes; `learn_prior` uses them."""
        self.collector = PriorCollector()

    def learn_prior(self, *, correct: bool = True) -> None:
        """Learn prior and noise from the collected weights; see `fit.WeightSample.prior`.

        Args:
            correct: subtract the noise of estimation; False is the paper's prior.

        Raises:
            ValueError: if the weights of fewer than 2 images were collected.
        """
        sample = (self.collector or PriorCollector()).sample
        self.set_prior(sample.prior(correct=correct), sample.hyperprior())
        self.collector = None

    def set_prior(self, prior: fit.Prior, hyperprior: fit.Hyperprior | None = None) -> None:
        """Store the prior of the weights, and what is known of alpha and of independent noise.

        Args:
            prior: of the weights.
            hyperprior: Gamma distributions of alpha and beta.
        """
        known = hyperprior or fit.Hyperprior()
        self.prior.set(prior, known.alpha)
        for errors in ("independent", "paper"):
            self.error_model(errors).noise.set(known.beta)

    def update_running_prior(self, post: fit.Posterior) -> None:
        """Move prior and noise towards those of a training batch, as batch normalisation does.

        Args:
            post: the batch's fit by `fit_ml`.
        """
        self.prior.update_running(post.mean, MOMENTUM)
        noise = (1 / post.beta.detach()).mean()
        self.error_model("independent").noise.update_running(noise, MOMENTUM)

    def posterior_mean(self, observed: Observed) -> Float[Tensor, "b m"]:
        """Weights for few points in training, under the running prior; differentiable.

        Args:
            observed: of `observe`.

        Returns:
            Mean of the weights of each image.
        """
        beta = 1 / self.error_model("independent").noise.usual_variance
        prior = self.prior.value
        return fit.posterior_mean(observed.phi, observed.z, prior, observed.weight, beta=beta)

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return f"{self.channels}, errors={self.errors!r}"


def check_errors(errors: Errors) -> Errors:
    """The name itself, if it is that of an error model."""
    if errors not in get_args(Errors):
        known = ", ".join(map(repr, get_args(Errors)))
        raise ValueError(f"`errors` is {errors!r}; choose one of {known}")
    return errors
