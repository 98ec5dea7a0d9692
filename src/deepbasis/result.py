# SPDX-License-Identifier: Apache-2.0
"""Completion: depth at every pixel with its error bar, and what was decided on the way."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
import torch
from numpy.typing import ArrayLike

from deepbasis import latent
from deepbasis.conformal import ConformalTable
from deepbasis.fit import Posterior
from deepbasis.joint import Joint, Pixel, Quantity, Size
from deepbasis.layer import Fitted, Prediction
from deepbasis.points import Points, distance_to_points
from deepbasis.shapes import Float, Int

# Before anything is known of a point, it is an outlier with this probability, and then its depth
# is anything from 0.1 to 100 m, uniformly in log depth.
OUTLIERS, OUTLIER_RANGE = 0.01, math.log(1000)
# Points this many times deeper or nearer than the model expects are probably in another unit.
UNIT_FACTOR = 20.0
# Share of points outside the image from which something is wrong.
MANY_OUTSIDE = 0.25
# Side of an image in pixels below which the network tells little. On the packaged rooms, reduced
# to 56 rows, depth from the image alone is worse than a constant with the model `indoor`, whose
# 90 % intervals contain 63 %. With 50 points, intervals keep their coverage at any size.
SMALLEST_IMAGE = 64
NO_POINTS = "there are no points: the depth is what the model expects from the image alone"


class Outlier(NamedTuple):
    """A measurement that contradicts the others."""

    u: float
    v: float
    depth: float
    """As measured, in metres."""
    expected: float
    """What all other points predict, in metres."""
    residual: float
    """Log depth measured minus expected: 0.1 is about 10 %."""
    probability: float
    """That it is an outlier."""


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
    """How many were not used, by reason."""
    warnings: tuple[str, ...] = ()
    error_distribution: latent.ErrorDistribution = latent.LAPLACE
    """Distribution of the latent around its mean."""
    fitted: Fitted | None = None
    """The fit of a batch of one image."""
    conformal: ConformalTable | None = None
    """What `std` and `interval` are calibrated by; `latent_var` is as predicted."""

    @classmethod
    def of(cls, prediction: Prediction, points: Points, fitted: Fitted | None) -> "Completion":
        """The completion of one image."""
        here = Prediction(*(part[0, 0].float().cpu() for part in prediction))
        distribution: latent.ErrorDistribution = latent.LAPLACE
        warnings = [*_doubt_size(here.mean.shape), *_doubt_places(points)]
        warnings += [] if len(points) else [NO_POINTS]
        if fitted is not None:
            distribution = fitted.calibrated.distribution(here)
            warnings += _doubt_unit(fitted)
        return cls(
            here.mean.numpy(), here.var.numpy(), points.rows, points.dropped, tuple(warnings),
            distribution, fitted,
        )  # fmt: skip

    def __repr__(self) -> str:
        height, width = self.latent_mean.shape
        low, high = self.depth.min(), self.depth.max()
        said = [f"{height} x {width} pixels (height x width)", f"depth {low:.3g} to {high:.3g} m"]
        said += [f"median std {np.median(self.std):.2g} m", f"{len(self.points)} points"]
        said += [f"{count} {why}" for why, count in self.dropped.items()]
        said += [f"warning: {warning}" for warning in self.warnings]
        return f"Completion({', '.join(said)})"

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
        mean, half = torch.from_numpy(self.latent_mean), torch.from_numpy(self.half_width(level))
        return latent.to_depth(mean - half).numpy(), latent.to_depth(mean + half).numpy()

    def half_width(self, level: float) -> Float[np.ndarray, "h w"]:
        """Half the width of the latent interval of probability `level`: 0.1 is about 10 %."""
        var = torch.from_numpy(self.latent_var)
        own = self.error_distribution.half_width(var, level).numpy()
        if self.conformal is None:
            return own
        std = self.error_distribution.half_width(var, latent.ONE_SIGMA).numpy()
        distance = distance_to_points(self.points, self.latent_var.shape)
        return self.conformal.half_width(own, std, distance, level)

    def with_conformal(self, table: ConformalTable) -> "Completion":
        """The same with the intervals of a conformal table."""
        return replace(self, conformal=table)

    def sample(self, n: int, seed: int = 0) -> Float[np.ndarray, "n h w"]:
        """Draw n depth maps in metres from the joint posterior of all pixels.

        What a sensor would read at each pixel has the distribution of `interval`, and near pixels
        deviate together.
        """
        return self.joint.sample(n, seed).numpy()

    def distance(
        self,
        a: Pixel,
        b: Pixel,
        intrinsics: ArrayLike | None = None,
        *,
        level: float = 0.9,
    ) -> Quantity:
        """Distance in metres between the surfaces at two pixels, with its interval.

        Args:
            a: u and v of a pixel: column and row.
            b: of the other.
            intrinsics: of the camera, 3 x 3, in pixels of this image.
            level: probability of the interval.
        """
        return self.joint.distance(a, b, intrinsics, level)

    def size(
        self, mask: ArrayLike, intrinsics: ArrayLike | None = None, *, level: float = 0.9
    ) -> Size:
        """Mean depth, area, width and height of the pixels of a mask, with their intervals."""
        return self.joint.measure(mask, intrinsics, level)

    @overload
    def probability_closer(self, metres: float) -> Float[np.ndarray, "h w"]: ...

    @overload
    def probability_closer(self, metres: float, mask: ArrayLike) -> float: ...

    def probability_closer(
        self, metres: float, mask: ArrayLike | None = None
    ) -> Float[np.ndarray, "h w"] | float:
        """Probability that a sensor would read less than this many metres.

        Without a mask, that of each pixel; with one, that of any pixel of the mask.
        """
        if mask is None:
            return self.joint.closer(metres).numpy()
        return self.joint.any_closer(metres, mask)

    def next_points(self, k: int) -> Int[np.ndarray, "k 2"]:
        """u and v of k pixels to measure next: those that lower the total variance of depth most.

        They are chosen one after the other, each given those before it, from about 1200 pixels that
        are spread over the image.
        """
        return self.joint.next_points(k).numpy()

    @cached_property
    def joint(self) -> Joint:
        """The posterior of all pixels together."""
        if self.fitted is None:
            raise ValueError("this completion has no fit, so its pixels have no joint distribution")
        mean, var = torch.from_numpy(self.latent_mean), torch.from_numpy(self.latent_var)
        return Joint(self.fitted, mean, var, self.error_distribution)

    @property
    def posterior(self) -> Posterior | None:
        """Of the weights, a batch of one; with correlated errors, given the points' innovations."""
        return None if self.fitted is None else self.fitted.posterior

    @property
    def noise_percent(self) -> float | None:
        """What the fit leaves unexplained at a point of weight 1, in per cent of depth: with
        correlated errors, what the point shares with no neighbour. None if it is not known.
        """
        noise = 0.0 if self.fitted is None else float(self.fitted.noise_var)
        return 100 * math.sqrt(noise) if noise > 0 else None

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Points that are more likely wrong than right, the worst first.

        A point is judged by what all others predict of it: a mixture of the predictive
        distribution and, with a probability of 1 % beforehand, any depth from 0.1 to 100 m.
        """
        if self.fitted is None or not len(self.points):
            return []
        left_out = self.fitted.leave_one_out()
        error, var, _ = left_out
        distribution = self.fitted.calibrated.distribution(left_out)
        right = math.log(1 - OUTLIERS) + distribution.log_density(error, var)
        probability = torch.sigmoid(math.log(OUTLIERS / OUTLIER_RANGE) - right)
        # Where the others say nothing, a point cannot contradict them.
        probability = torch.where(var < OUTLIER_RANGE**2, probability, 0)
        expected = latent.to_depth(latent.to_latent(torch.from_numpy(self.points[:, 2])) - error)
        numbers = zip(*(x.tolist() for x in (expected, error, probability)), strict=True)
        found = [
            Outlier(*point[:3], *judged)
            for point, judged in zip(self.points.tolist(), numbers, strict=True)
            if judged[-1] > 0.5
        ]
        return sorted(found, key=lambda one: -abs(one.residual))


def _doubt_size(size: tuple[int, ...]) -> list[str]:
    """A warning if the image is too small for the network."""
    if min(size) >= SMALLEST_IMAGE:
        return []
    return [
        f"the image is {size[0]} x {size[1]} pixels (height x width); below {SMALLEST_IMAGE} x "
        f"{SMALLEST_IMAGE} the network tells little, and depth relies on the points alone"
    ]


def _doubt_places(points: Points) -> list[str]:
    """A warning if many points fall outside the image."""
    outside = sum(count for why, count in points.dropped.items() if why.startswith("outside"))
    if outside <= MANY_OUTSIDE * (outside + len(points)):
        return []
    return [
        f"{outside} of {outside + len(points)} points fall outside the image; check the order of u "
        "(column) and v (row), the camera's intrinsics and the size of the image"
    ]


def _doubt_unit(fitted: Fitted) -> list[str]:
    """A warning if the points look as if they were in another unit than metres."""
    z, mean = fitted.observed.points.z, fitted.prior.mean
    if not z.numel() or not mean.any():
        return []
    phi = fitted.observed.phi
    expected, measured = float((phi @ mean.to(phi)).median()), float(z.median())
    if abs(measured - expected) < math.log(UNIT_FACTOR):
        return []
    median, alone = (float(latent.to_depth(torch.tensor(x))) for x in (measured, expected))
    unit = "millimetres or centimetres read as metres" if median > alone else "a wrong scale"
    return [
        f"the points lie at {median:.4g} m where the model expects {alone:.3g} m from the image "
        f"alone, a factor of {median / alone:.3g}: this looks like {unit}"
    ]
