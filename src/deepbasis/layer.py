# SPDX-License-Identifier: Apache-2.0
"""BasisFit: the drop-in last layer that turns bases and sparse depth into depth with variance."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from deepbasis import counts, fit, latent
from deepbasis.fit import local
from deepbasis.measurements import Measurements, gather_points
from deepbasis.prediction import Explained, Prediction, Whitened
from deepbasis.pyramid import Pyramid, check_scales, project, project_in_blocks
from deepbasis.shapes import Float

# How much of a batch enters the prior that `follow` keeps.
FOLLOW = 0.02

Errors = Literal["independent", "local"]


class BasisFit(nn.Module):
    """The last layer of a depth network: fits its bases to sparse depth, image by image.

    In training mode the fit is maximum likelihood, differentiable, and each image needs at least
    `channels + 1` points. In evaluation mode the fit uses the prior and maximises the evidence, so
    that any number of points will do, also none, and gradients stop here.

    Args:
        channels: bases that the network makes, over all scales; a constant is added to them.
        variance: "predictive" is noise plus model, each times its calibration factor; "paper" is
            the model part alone, times the NEES factor.
        errors: "independent" takes the errors of pixels to be so, as the paper does; "local" lets
            near points tell of them, see `fit.local`.
        steps, tol, huber: see `fit.evidence`.

    Example:
        >>> layer = BasisFit(3).eval()
        >>> sparse = torch.zeros(1, 1, 4, 6)
        >>> sparse[0, 0, 1, 2] = 2.0
        >>> mean, model_var, noise_var = layer(torch.rand(1, 3, 2, 3), sparse)
        >>> mean.shape
        torch.Size([1, 1, 4, 6])
    """

    prior_mean: Tensor
    prior_cov: Tensor
    hyperprior: Tensor
    calibration: Tensor
    local: Tensor
    tails: Tensor

    def __init__(
        self,
        channels: int = 62,
        *,
        variance: Literal["predictive", "paper"] = "predictive",
        errors: Errors = "independent",
        steps: int = 8,
        tol: float = 0.01,
        huber: float | None = None,
    ) -> None:
        super().__init__()
        if variance not in ("predictive", "paper"):
            raise ValueError(f"`variance` is {variance!r}; choose 'predictive' or 'paper'")
        if errors not in ("independent", "local"):
            raise ValueError(f"`errors` is {errors!r}; choose 'independent' or 'local'")
        self.channels, self.variance, self.errors = channels, variance, errors
        self.steps, self.tol, self.huber = steps, tol, huber
        self.gathered: list[fit.WeightSample] | None = None
        """Set it to [] and every training pass adds its weights; `learn_prior` uses them."""
        self.register_buffer("prior_mean", torch.zeros(channels + 1))
        self.register_buffer("prior_cov", torch.eye(channels + 1))
        self.register_buffer("hyperprior", torch.zeros(2, 2))  # alpha, beta: shape and rate
        self.register_buffer("calibration", torch.ones(3))  # noise, model, NEES
        # Of local errors: the kernel's four numbers, beta's shape and rate, noise and model factor.
        plain = fit.Kernel()
        kernel = [plain.length, plain.colour, plain.nugget, plain.smoothness]
        self.register_buffer("local", torch.tensor([*kernel, 0.0, 0.0, 1.0, 1.0]))
        # Of independent and of local errors: a row for each of some numbers of points.
        self.register_buffer("tails", counts.table([]).repeat(2, 1, 1))

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
            guide: image in 0..1; local errors go together where it looks alike.
        """
        return self.explain(bases, sparse, weight, guide).prediction

    def explain(
        self,
        bases: Tensor | Sequence[Tensor],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
        guide: Float[Tensor, "b c h w"] | None = None,
    ) -> Explained:
        """What `forward` does, with all that it found on the way."""
        with torch.autocast(sparse.device.type, enabled=False):
            pyramid, points = self.read(bases, sparse, weight)
            if self.errors == "local" and not self.training:
                return self.predict_locally(pyramid, points, guide)
            post = self.posterior(pyramid, points)
            return Explained(self.predict(pyramid, post), post, points)

    def mean(
        self,
        bases: Tensor | Sequence[Tensor],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> Float[Tensor, "b 1 h w"]:
        """The mean of `forward` without its variance: all that an L1 loss needs, and cheaper."""
        with torch.autocast(sparse.device.type, enabled=False):
            pyramid, points = self.read(bases, sparse, weight)
            return pyramid.combine(self.posterior(pyramid, points).mean)[:, None]

    def read(
        self,
        bases: Tensor | Sequence[Tensor],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> tuple[Pyramid, Measurements]:
        """First third of `forward`: the bases, readable at any pixel, and the measurements."""
        points = gather_points(sparse, weight)
        scales = [bases] if isinstance(bases, Tensor) else list(bases)
        check_scales(scales, len(sparse), self.channels)
        at_least_float32 = torch.promote_types(scales[0].dtype, torch.float32)
        height, width = sparse.shape[-2:]
        return Pyramid([scale.to(at_least_float32) for scale in scales], (height, width)), points

    def posterior(self, pyramid: Pyramid, points: Measurements) -> fit.Posterior:
        """Second third of `forward`: the posterior of the weights."""
        phi = pyramid.at(points.row, points.column)
        z, weight = points.z.to(phi.dtype), points.weight.to(phi.dtype)
        if self.training:
            post = fit.ml(phi, z, weight)
            if self.gathered is not None:
                self.gathered.append(fit.WeightSample.of(post))
            return post
        return self._evidence(phi, z, weight, self.hyperprior[1])

    def _evidence(self, phi: Tensor, z: Tensor, weight: Tensor, beta: Tensor) -> fit.Posterior:
        """Fit with the prior; `beta` is the shape and rate of the noise precision's hyperprior."""
        gammas = (fit.Gamma(*row.tolist()) for row in (self.hyperprior[0], beta))
        return fit.evidence(
            phi, z, fit.Prior(self.prior_mean, self.prior_cov), weight,
            steps=self.steps, tol=self.tol, hyperprior=fit.Hyperprior(*gammas), huber=self.huber,
        )  # fmt: skip

    def predict(self, pyramid: Pyramid, post: fit.Posterior) -> Prediction:
        """Last third of `forward`: mean and variance of every pixel."""
        onto = torch.cat([post.mean[..., None], post.root], -1).mT
        both = project(pyramid, onto) if self.training else project_in_blocks(pyramid, onto)
        mean, model_var = (part.view(-1, 1, *pyramid.size) for part in both)
        if not mean.isfinite().all():
            raise ValueError("the bases hold NaN or infinity; check the network's output")
        noise_var = (1 / post.beta).view(-1, 1, 1, 1).expand_as(mean)
        if self.training:
            return Prediction(mean, model_var, noise_var)
        if self.variance == "paper":
            return Prediction(mean, self.calibration[2] * model_var, torch.zeros_like(mean))
        noise, model = self.factors(post.points.n).to(mean)
        return Prediction(mean, model * model_var, noise * noise_var)

    @torch.no_grad()
    def predict_locally(
        self, pyramid: Pyramid, points: Measurements, guide: Float[Tensor, "b c h w"] | None = None
    ) -> Explained:
        """Fit and prediction in one, with local errors."""
        guides = [None] * pyramid.batch if guide is None else list(guide)
        frame = self.whiten(pyramid, points, guides)
        post = self._evidence(*frame.news[:3], self.local[4:6])
        trust = frame.weight
        if self.huber is not None:
            trust = frame.news.lower(self.kernel, trust, post.weight)
        fields = [
            local.Field.of(self.kernel, x, pyramid.size, image, weight)
            for x, image, weight in zip(frame.x, guides, trust, strict=True)
        ]
        found = local.predict(fields, post, frame.phi, frame.z, pyramid.rows)
        mean, model_var, share = (part.view(-1, 1, *pyramid.size) for part in found)
        noise, model = self.factors(post.points.n).to(mean)
        noise_var = noise * share / post.beta.view(-1, 1, 1, 1)
        return Explained(Prediction(mean, model * model_var, noise_var), post, points, frame)

    def mean_locally(
        self, pyramid: Pyramid, points: Measurements, guide: Float[Tensor, "b c h w"]
    ) -> Float[Tensor, "b 1 h w"]:
        """`mean` with local errors, for training: a flat prior, and gradients reach the bases."""
        frame = self.whiten(pyramid, points, list(guide))
        weights = fit.ml(*frame.news[:3]).mean
        left = frame.z - (frame.phi @ weights[..., None])[..., 0]
        plain, parts = pyramid.combine(weights), []
        for i, image in enumerate(guide):
            field = local.Field.of(self.kernel, frame.x[i], pyramid.size, image, frame.weight[i])
            near, b, _ = field.rows(0, pyramid.size[0])
            known = torch.nn.functional.pad(left[i], (0, field.k))
            parts.append(plain[i] + local.combine(near, b, known[:, None]).view_as(plain[i]))
        return torch.stack(parts)[:, None]

    def shape(self, prediction: Prediction, points: Float[Tensor, "*b"]) -> latent.Shape:
        """How the errors of a prediction from so many points are distributed, pixel by pixel.

        It is a Laplace, as in the paper, with its variance or until `set_tails` was called.
        """
        if self.variance == "paper" and self.errors == "independent":
            return latent.LAPLACE
        return counts.shape(self.tails[int(self.errors == "local")], prediction, points)

    def factors(self, points: Float[Tensor, "b"]) -> Float[Tensor, "2 b 1 1 1"]:
        """Of noise and model variance, for so many points."""
        both = self.local[6:] if self.errors == "local" else self.calibration[:2]
        here, _, _ = counts.at(self.tails[int(self.errors == "local")], points)
        return both.view(2, 1, 1, 1, 1) * here.view(-1, 1, 1, 1)

    def whiten(
        self, pyramid: Pyramid, points: Measurements, guides: Sequence[Tensor | None]
    ) -> Whitened:
        """The measurements, and what is new in each of them given its neighbours."""
        places = zip(points.row, points.column, guides, strict=True)
        width = pyramid.size[1]
        x = torch.stack([local.locate(row, column, width, image) for row, column, image in places])
        phi = pyramid.at(points.row, points.column)
        z, weight = points.z.to(phi.dtype), points.weight.to(phi.dtype)
        return Whitened(x, phi, z, weight, local.whiten(self.kernel, x, phi, z, weight))

    @property
    def kernel(self) -> fit.Kernel:
        """Of local errors."""
        length, colour, nugget, smoothness = self.local[:4].tolist()
        return fit.Kernel(length, colour, nugget, round(2 * smoothness) / 2)

    def set_local(
        self,
        kernel: fit.Kernel,
        beta: fit.Gamma | None = None,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Store the kernel of local errors, what is known of beta, noise and model factor."""
        numbers = [kernel.length, kernel.colour, kernel.nugget, kernel.smoothness]
        self.local.copy_(torch.tensor([*numbers, *(beta or fit.Gamma()), *factors]))

    def set_tails(self, errors: Errors, known: Sequence[counts.Tail]) -> None:
        """Store the calibration of each of some numbers of points; with none, forget it."""
        self.tails[int(errors == "local")] = counts.table(known)

    def set_prior(self, prior: fit.Prior, hyperprior: fit.Hyperprior | None = None) -> None:
        """Store the prior that evaluation uses, in the state dict."""
        if prior.mean.shape != self.prior_mean.shape:
            raise ValueError(
                f"the prior is for {prior.mean.numel()} bases, but the layer has "
                f"{self.prior_mean.numel()}: {self.channels} channels and the constant"
            )
        self.prior_mean.copy_(prior.mean)
        self.prior_cov.copy_(prior.cov)
        self.hyperprior.copy_(torch.tensor(hyperprior or fit.Hyperprior()))

    def learn_prior(self, *, correct: bool = True) -> None:
        """Set prior and hyperprior from what `gathered` holds; see `fit.WeightSample.prior`."""
        sample = fit.WeightSample.merge(self.gathered or [])
        self.set_prior(sample.prior(correct=correct), sample.hyperprior())

    @torch.no_grad()
    def follow(self, post: fit.Posterior) -> None:
        """Move the prior towards the weights of a training batch, as batch normalisation does."""
        off = post.mean.detach() - self.prior_mean
        self.prior_mean.add_(off.mean(0), alpha=FOLLOW)
        self.prior_cov.lerp_(off.mT @ off / len(off), FOLLOW)
        noise = (1 / post.beta.detach()).mean()
        self.hyperprior[1].lerp_(torch.stack([torch.ones_like(noise), noise]), FOLLOW)

    def shrunk(self, pyramid: Pyramid, points: Measurements) -> Float[Tensor, "b m"]:
        """Weights for few points in training: the posterior mean with the prior followed so far."""
        phi = pyramid.at(points.row, points.column)
        z, weight = points.z.to(phi.dtype), points.weight.to(phi.dtype)
        prior = fit.Prior(self.prior_mean, self.prior_cov)
        shape, rate = self.hyperprior[1]
        return fit.shrunk(phi, z, prior, weight, beta=shape / rate)

    def set_calibration(self, *, noise: float = 1.0, model: float = 1.0, nees: float = 1.0) -> None:
        """Store the factors on the noise and model variances, and the paper's NEES factor."""
        if not min(noise, model, nees) > 0:
            raise ValueError(f"calibration factors are {noise}, {model}, {nees}; all must be > 0")
        self.calibration.copy_(torch.tensor([noise, model, nees]))

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return f"{self.channels}, variance={self.variance!r}, errors={self.errors!r}"
