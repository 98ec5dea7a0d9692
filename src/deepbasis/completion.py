# SPDX-License-Identifier: Apache-2.0
"""One frame completed: the measurements that went in, the depth that came out, and why."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.fit import Posterior
from deepbasis.fit.outliers import leave_one_out, leave_one_out_locally
from deepbasis.layer import BasisFit
from deepbasis.measurements import Given
from deepbasis.prediction import Explained, Prediction
from deepbasis.shapes import Float, UInt8

# Before anything is known of a point, it is an outlier with this probability, and then its depth
# is anything from 0.1 to 100 m, evenly in the latent.
OUTLIERS, OUTLIER_RANGE = 0.01, math.log(1000)
# Points as much deeper or nearer than the model expects of the image are in another unit.
UNIT_FACTOR = 20.0


class Outlier(NamedTuple):
    """A measurement that contradicts the others."""

    u: int
    v: int
    depth: float
    """As measured, in metres."""
    expected: float
    """What all other points make of it, in metres."""
    residual: float
    """Log depth measured minus expected: 0.1 is about 10 %."""
    probability: float
    """That it is an outlier."""


class LeftOut(NamedTuple):
    """What all others say of each of n points."""

    residual: Float[Tensor, "n"]
    """Log depth measured minus expected."""
    var: Float[Tensor, "n"]
    noise_share: Float[Tensor, "n"]
    """Share of noise in the variance."""


@dataclass(frozen=True)
class Completion:
    """Depth at every pixel with its error bar, and what was decided on the way to it.

    Maps are [height, width], float32. Depth is in metres; the latent is its natural logarithm.
    """

    latent_mean: Float[np.ndarray, "h w"]
    latent_var: Float[np.ndarray, "h w"]
    points: Float[np.ndarray, "n columns"]
    """Measurements used: u, v, metres and, if given, sigma; `complete` takes them again."""
    dropped: dict[str, int]
    """How many were not used, by the reason."""
    warnings: tuple[str, ...] = ()
    posterior: Posterior | None = None
    """Of the weights, a batch of one; None for a network that does not fit."""
    noise_percent: float | None = None
    """What the fit leaves unexplained at a point of weight 1, in per cent of depth: with local
    errors, what the point shares with no neighbour. None if nothing is known of it."""
    shape: latent.Shape = latent.LAPLACE
    """Distribution of the latent around its mean."""
    left_out: Callable[[], LeftOut] | None = None
    """Leave-one-out residuals of the points; they take milliseconds, so on demand."""

    @property
    def depth(self) -> Float[np.ndarray, "h w"]:
        """Median depth in metres."""
        return latent.to_depth(torch.from_numpy(self.latent_mean)).numpy()

    @property
    def std(self) -> Float[np.ndarray, "h w"]:
        """Half the central 68.27 % interval, in metres."""
        low, high = self.interval(latent.ONE_SIGMA)
        return (high - low) / 2

    def interval(self, level: float) -> tuple[Float[np.ndarray, "h w"], Float[np.ndarray, "h w"]]:
        """Depths in metres between which a sensor would read with probability `level`."""
        mean, var = self._maps
        low, high = latent.interval(mean, var, level, self.shape)
        return low[0, 0].numpy(), high[0, 0].numpy()

    def half_width(self, level: float) -> Float[np.ndarray, "h w"]:
        """Half the width of the latent interval of probability `level`: 0.1 is about 10 %."""
        return self.shape.half_width(self._maps[1], level)[0, 0].numpy()

    @property
    def _maps(self) -> tuple[Float[Tensor, "1 1 h w"], Float[Tensor, "1 1 h w"]]:
        mean, var = torch.from_numpy(self.latent_mean), torch.from_numpy(self.latent_var)
        return mean[None, None], var[None, None]

    def rescale(self, factor: float) -> "Completion":
        """The same with every latent standard deviation times a factor."""
        return replace(self, latent_var=self.latent_var * np.float32(factor**2))

    @property
    def alpha(self) -> float | None:
        """Precision of the prior's scale: below 1 where the scene is unlike those of training."""
        return None if self.posterior is None else float(self.posterior.alpha)

    @property
    def beta(self) -> float | None:
        """Noise precision of a point of weight 1; infinite where nothing is known of it."""
        return None if self.posterior is None else float(self.posterior.beta)

    @property
    def steps(self) -> int | None:
        """EM steps made."""
        return None if self.posterior is None else int(self.posterior.steps)

    @property
    def log_evidence(self) -> float | None:
        """ln p(points | alpha, beta); with local errors, of the points' innovations."""
        return None if self.posterior is None else float(self.posterior.log_evidence)

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Points that are more likely wrong than right, the worst first.

        A point is judged by what all others predict of it: a mixture of the predictive
        distribution and, with a probability of 1 % beforehand, any depth from 0.1 to 100 m.
        """
        if self.left_out is None or not len(self.points):
            return []
        error, var, noise_share = self.left_out()
        shape = self.shape
        if isinstance(shape, latent.StudentT):
            shape = replace(shape, noise_share=noise_share)
        right = math.log(1 - OUTLIERS) + shape.log_density(error, var)
        probability = torch.sigmoid(math.log(OUTLIERS / OUTLIER_RANGE) - right)
        expected = latent.to_depth(latent.to_latent(torch.from_numpy(self.points[:, 2])) - error)
        numbers = zip(*(x.tolist() for x in (expected, error, probability)), strict=True)
        found = [
            Outlier(int(point[0]), int(point[1]), point[2], *judged)
            for point, judged in zip(self.points.tolist(), numbers, strict=True)
            if judged[-1] > 0.5
        ]
        return sorted(found, key=lambda one: -abs(one.residual))


def to_pixels(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[Tensor, "1 3 h w"]:
    """An image as networks take it."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(
            f"the image is {image.dtype} {list(image.shape)}; "
            "expected RGB, uint8 [height, width, 3]"
        )
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]


def answer(prediction: Prediction, given: Given, shape: latent.Shape) -> Completion:
    """A completion that is known by its prediction alone, and the shape of its errors."""
    here = Prediction(*(part.float().cpu() for part in prediction))
    none = ("there are no points: the depth is what the model expects of the image alone",)
    points = given.points
    mean, var = here.mean[0, 0].numpy(), here.var[0, 0].numpy()
    warnings = () if len(points) else none
    return Completion(mean, var, points, given.dropped, warnings, shape=shape)


def answer_fit(found: Explained, given: Given, layer: BasisFit) -> Completion:
    """A completion that also tells of its fit."""
    local = found.frame is not None
    here = Prediction(*(part.float().cpu() for part in found.prediction))
    plain = answer(here, given, layer.shape(here, found.posterior.points.n))
    noise = (layer.kernel.nugget if local else 1) / float(found.posterior.beta)
    return replace(
        plain,
        posterior=found.posterior,
        noise_percent=100 * math.sqrt(noise) if noise > 0 else None,
        left_out=partial(_leave_out, found, layer),
        warnings=(*plain.warnings, *_doubt_unit(found, layer)),
    )


def usual_noise(layer: BasisFit) -> float:
    """Variance that the bases leave unexplained at a point, as training found; 0 if it did not."""
    local = layer.errors == "local"
    shape, rate = (layer.local[4:6] if local else layer.hyperprior[1]).tolist()
    return rate / shape * (layer.kernel.nugget if local else 1.0) if shape > 0 else 0.0


def _leave_out(found: Explained, layer: BasisFit) -> LeftOut:
    """Of one image: what all other points leave of each, with calibrated variances."""
    post, weight, kernel = found.posterior, found.points.weight[0].double(), layer.kernel
    factors = layer.factors(post.points.n).flatten().tolist()
    if found.frame is None:
        share = 1 / post.points.weight
        error, model_var = (
            part[0] for part in leave_one_out(post, post.points.phi, post.points.z, share)
        )
        noise = 1 / weight
    else:
        x, phi, z, given, news = found.frame
        trust = news.lower(kernel, given, post.weight)[0].double()
        error, model_var, share = leave_one_out_locally(kernel, post, x[0], phi[0], z[0], trust)
        noise = share + kernel.noise(weight) - kernel.noise(trust)
    noise_var = factors[0] * noise / post.beta.double()
    var = factors[1] * model_var + noise_var
    return LeftOut(error.cpu(), var.cpu(), (noise_var / var).cpu())


def _doubt_unit(found: Explained, layer: BasisFit) -> list[str]:
    """Say so if the points are in another unit than metres, by the look of the image."""
    z = found.points.z
    if not z.numel() or not layer.prior_mean.any():
        return []
    phi = found.posterior.points.phi if found.frame is None else found.frame.phi
    expected = float((phi @ layer.prior_mean.to(phi)).median())
    measured = float(z.median())
    if abs(measured - expected) < math.log(UNIT_FACTOR):
        return []
    median, alone = (float(latent.to_depth(torch.tensor(x))) for x in (measured, expected))
    unit = "millimetres or centimetres taken for metres" if median > alone else "a wrong scale"
    return [
        f"the points lie at {median:.4g} m where the model expects {alone:.3g} m of the image "
        f"alone, a factor of {median / alone:.3g}: this looks like {unit}"
    ]
