# SPDX-License-Identifier: Apache-2.0
"""Completion: depth at every pixel with its error bar, and details of the fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from deepbasis import latent
from deepbasis.arguments import show
from deepbasis.conformal import ConformalTable
from deepbasis.fit import Posterior
from deepbasis.joint import Joint, Pixel, Quantity, Size
from deepbasis.layer import Fitted, Prediction
from deepbasis.layer.judge import WRONG, Judge
from deepbasis.points import SAME_PIXEL, Points, distance_to_points
from deepbasis.shapes import Bool, Float, Int

# Points this many times deeper or nearer than the model expects are probably in another unit.
UNIT_FACTOR = 20.0
# Share of points outside the image from which something is wrong. If u and v are swapped, a quarter
# of the points of a 4:3 image are outside. Of a point cloud most may be, so it is not counted.
MANY_OUTSIDE = 0.1
# Side of an image in pixels below which the network tells little. On the packaged rooms, reduced
# to 56 rows, depth from the image alone is worse than a constant with the model `indoor`, whose
# 90 % intervals contain 63 %. With 50 points, intervals keep their coverage at any size.
SMALLEST_IMAGE = 64
# Of log depth: what no sensor measures is not predicted either.
LATENT_LIMITS = math.log(latent.LEAST_DEPTH), math.log(latent.LARGEST_DEPTH)
# An image is unfamiliar if a smaller share of familiar ones looks as unusual. With a few points it
# does not matter: on all scenes that were tried, intervals then keep their coverage.
UNFAMILIAR, FEW_POINTS = 0.05, 20
NO_POINTS = "there are no points: the depth is what the model expects from the image alone"


class Outlier(NamedTuple):
    """A measurement that contradicts the others."""

    u: float
    """Column."""
    v: float
    """Row."""
    depth: float
    """As measured, in metres."""
    expected: float
    """Predicted from all other points that were not left out, in metres."""
    residual: float
    """Log depth measured minus expected: 0.1 is about 10 %."""
    probability: float
    """Probability that it is wrong."""


@dataclass(frozen=True)
class Completion:
    """Depth at every pixel with its error bar, and details of the fit.

    Maps are [height, width], float32. Depth is in metres; the latent is its natural logarithm.
    """

    latent_mean: Float[np.ndarray, "h w"]
    """Mean of log depth."""
    latent_var: Float[np.ndarray, "h w"]
    """Variance of log depth."""
    points: Float[np.ndarray, "n columns"]
    """Measurements used: u, v, metres and, if given, sigma; `complete` takes them again."""
    dropped: dict[str, int]
    """How many were not used, by reason."""
    warnings: tuple[str, ...] = ()
    """Problems found with the points, the image or the camera."""
    error_distribution: latent.ScaleMixture = latent.LAPLACE
    """Distribution of the latent around its mean."""
    fitted: Fitted | None = None
    """The fit of a batch of one image; points that were left out have the weight 0."""
    judged: Float[Tensor, "n"] | Judge | None = None
    """Probability that each point is wrong, or what computes it."""
    conformal: ConformalTable | None = None
    """What `std` and `interval` are calibrated by; `latent_var` is as predicted."""
    familiarity: float | None = None
    """Share of frames like those of training that look at least as unusual to the network as this
    image: about uniform from 0 to 1 for such frames, near 0 for others. None if the model has not
    learned it."""

    @classmethod
    def of(
        cls,
        prediction: Prediction,
        points: Points,
        fitted: Fitted | None,
        judged: Float[Tensor, "n"] | Judge | None = None,
        familiarity: float | None = None,
        doubts: Sequence[str] = (),
    ) -> "Completion":
        """The completion of one image.

        Args:
            prediction: of a batch of one image.
            points: that were used.
            fitted: the fit, if there is one.
            judged: probability that each point is wrong, or what computes it.
            familiarity: of the image.
            doubts: warnings about the camera.

        Returns:
            The completion.
        """
        here = Prediction(*(part[0, 0].float().cpu() for part in prediction))
        distribution: latent.ScaleMixture = latent.LAPLACE
        warnings = [*_doubt_size(here.mean.shape), *_doubt_places(points)]
        warnings += [] if len(points) else [NO_POINTS]
        warnings += _doubt_scene(familiarity, len(points))
        if fitted is not None:
            distribution = fitted.calibrated.distribution(here)
            warnings += _doubt_unit(fitted)
        warnings += doubts
        return cls(
            here.mean.numpy(), here.var.numpy(), points.rows, points.dropped, tuple(warnings),
            distribution, fitted, judged, familiarity=familiarity,
        )  # fmt: skip

    def __repr__(self) -> str:
        height, width = self.latent_mean.shape
        low, high = self.depth.min(), self.depth.max()
        said = [f"{height} x {width} pixels (height x width)", f"depth {low:.3g} to {high:.3g} m"]
        left_out = int(self.left_out.sum())
        said += [f"median std {np.median(self.std):.2g} m", f"{len(self.points) - left_out} points"]
        said += [f"{left_out} points left out as wrong"] if left_out else []
        said += [f"{count} {why}" for why, count in self.dropped.items()]
        said += [f"warning: {warning}" for warning in self.warnings]
        return f"Completion({', '.join(said)})"

    @property
    def depth(self) -> Float[np.ndarray, "h w"]:
        """Median depth in metres."""
        return _to_metres(torch.from_numpy(self.latent_mean)).numpy()

    @property
    def std(self) -> Float[np.ndarray, "h w"]:
        """Half the central 68.27 % interval, in metres."""
        low, high = self.interval(latent.ONE_SIGMA)
        return (high - low) / 2

    def interval(self, level: float) -> tuple[Float[np.ndarray, "h w"], Float[np.ndarray, "h w"]]:
        """Depths in metres between which a sensor reading lies with probability `level`.

        Args:
            level: the probability, such as 0.9.

        Returns:
            Lower and upper bound, [height, width].

        Raises:
            ValueError: if the level is not a probability.
        """
        mean, half = torch.from_numpy(self.latent_mean), torch.from_numpy(self.half_width(level))
        return _to_metres(mean - half).numpy(), _to_metres(mean + half).numpy()

    def half_width(self, level: float) -> Float[np.ndarray, "h w"]:
        """Half the width of the latent interval of probability `level`: 0.1 is about 10 %.

        Args:
            level: the probability, such as 0.9.

        Returns:
            A map.

        Raises:
            ValueError: if the level is not a probability.
        """
        var = torch.from_numpy(self.latent_var)
        own = self.error_distribution.half_width(var, level).numpy()
        if self.conformal is None:
            return own
        std = self.error_distribution.half_width(var, latent.ONE_SIGMA).numpy()
        distance = distance_to_points(self.points[~self.left_out], self.latent_var.shape)
        return self.conformal.half_width(own, std, distance, level)

    def with_conformal(self, table: ConformalTable) -> "Completion":
        """The same with the intervals of a conformal table.

        Samples, distances, sizes, probabilities and next points keep the error bars of the model.

        Args:
            table: learned from held-out points.

        Returns:
            A new completion.

        Raises:
            ValueError: if it is not a table.
        """
        if not isinstance(table, ConformalTable):
            raise ValueError(
                f"the table is {show(table)}; pass a `ConformalTable`, as `ConformalTable.load` "
                "reads it from a file, and `table()` of a check makes it"
            )
        return replace(self, conformal=table)

    def sample(self, n: int, seed: int = 0) -> Float[np.ndarray, "n h w"]:
        """Draw n depth maps in metres from the joint posterior of all pixels.

        The values of each pixel, readings of a sensor, have the distribution of `interval`; errors
        of neighbouring pixels are correlated.

        Args:
            n: number of maps.
            seed: of the draw.

        Returns:
            The maps.

        Raises:
            ValueError: if `n` is less than 1, or the completion has no fit.
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

        Returns:
            Median, std and interval, in metres.

        Raises:
            ValueError: if the pixels are outside the image or the same, or the intrinsics are
                missing or their principal point is not inside the image.
        """
        return self.joint.distance(a, b, intrinsics, level)

    def size(
        self, mask: ArrayLike, intrinsics: ArrayLike | None = None, *, level: float = 0.9
    ) -> Size:
        """Mean depth, area, width and height of the pixels of a mask, with their intervals.

        Args:
            mask: [height, width], true for the pixels of the region.
            intrinsics: of the camera, 3 x 3, in pixels of this image.
            level: probability of the interval.

        Returns:
            The four quantities.

        Raises:
            ValueError: if the mask is empty or of another size, or the intrinsics are missing or
                their principal point is not inside the image.
        """
        return self.joint.measure(mask, intrinsics, level)

    @overload
    def probability_closer(self, metres: float) -> Float[np.ndarray, "h w"]: ...

    @overload
    def probability_closer(self, metres: float, mask: ArrayLike) -> float: ...

    def probability_closer(
        self, metres: float, mask: ArrayLike | None = None
    ) -> Float[np.ndarray, "h w"] | float:
        """Probability of being closer than this many metres.

        Args:
            metres: the distance.
            mask: [height, width], true for the pixels of a region.

        Returns:
            Without a mask, the probability of each pixel that a sensor would read less; with one,
            the probability that any surface in the region is closer.

        Raises:
            ValueError: if the mask is empty or of another size.
        """
        if mask is None:
            return self.joint.closer(metres).numpy()
        return self.joint.any_closer(metres, mask)

    def next_points(self, k: int) -> Int[np.ndarray, "k 2"]:
        """u and v of k pixels to measure next: those that lower the total variance of depth most.

        They are chosen one after the other, each given those before it, from about 1200 pixels that
        are spread over the image.

        Args:
            k: number of pixels.

        Returns:
            Column and row of each.

        Raises:
            ValueError: if `k` is less than 1 or too large for the image.
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
        """Noise of a point of weight 1, in per cent of depth; with correlated errors, only the part
        that is not correlated with neighbours. None if it is not known.
        """
        noise = 0.0 if self.fitted is None else float(self.fitted.noise_var)
        return 100 * math.sqrt(noise) if noise > 0 else None

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Points that are more likely wrong than correct, the worst first; a robust fit leaves them
        out. See `fit.wrong_points`.
        """
        if self.fitted is None or self.judged is None:
            return []
        judged = self.judged
        chance = judged(self.fitted.observed) if isinstance(judged, Judge) else judged
        wrong = chance.cpu() > WRONG
        if not wrong.any():
            return []
        rows = torch.from_numpy(self.points)[wrong]
        if self.left_out.any():
            column, row = (rows[:, :2] + 0.5).floor().long().unbind(1)
            error = latent.to_latent(rows[:, 2]) - torch.from_numpy(self.latent_mean)[row, column]
        else:
            error = self.fitted.leave_one_out().residual[wrong]
        measured = latent.to_latent(rows[:, 2])
        # What the others predict may be anything for a point that alone determines a weight.
        predicted = (measured - error).clamp(*LATENT_LIMITS)
        expected, error = latent.to_depth(predicted), measured - predicted
        columns = (*rows[:, :3].unbind(1), expected, error, chance.cpu()[wrong])
        found = [Outlier(*one) for one in zip(*(x.tolist() for x in columns), strict=True)]
        return sorted(found, key=lambda one: -abs(one.residual))

    @property
    def left_out(self) -> Bool[np.ndarray, " n"]:
        """Which of the points the fit left out."""
        if self.fitted is None:
            return np.zeros(len(self.points), np.bool_)
        return (self.fitted.observed.weight[0] == 0).cpu().numpy()


def _to_metres(mean: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """Finite depth, however far a network with useless bases extrapolates."""
    return latent.to_depth(mean.clamp(*LATENT_LIMITS))


def _doubt_size(size: tuple[int, ...]) -> list[str]:
    """A warning if the image is too small for the network."""
    if min(size) >= SMALLEST_IMAGE:
        return []
    return [
        f"the image is {size[0]} x {size[1]} pixels (height x width); below {SMALLEST_IMAGE} x "
        f"{SMALLEST_IMAGE} the network helps little, and depth relies on the points alone"
    ]


def _doubt_scene(familiarity: float | None, points: int) -> list[str]:
    """A warning if such images are unfamiliar to the model, and there are few points."""
    if familiarity is None or familiarity >= UNFAMILIAR or points >= FEW_POINTS:
        return []
    return [
        "the image does not resemble those that the model was trained on, so the depth may be far "
        f"off: measure {FEW_POINTS} points or more, choose another model (`deepbasis models`), or "
        "adapt one (`deepbasis adapt`)"
    ]


def _doubt_places(points: Points) -> list[str]:
    """A warning if many points fall outside the image."""
    shared = points.dropped.get(SAME_PIXEL, 0)
    if shared > len(points) and points.rows[:, :2].max(initial=0) <= 1:
        return [
            f"all {shared + len(points)} points lie on the first pixels of the image: u and v are "
            "columns and rows in pixels, not shares from 0 to 1"
        ]
    outside = points.dropped.get("outside the image", 0)
    if outside <= MANY_OUTSIDE * (outside + len(points)):
        return []
    return [
        f"{outside} of {outside + len(points)} points fall{'s' * (outside == 1)} outside the "
        "image; check the order of u (column) and v (row), the camera's intrinsics and the size of "
        "the image"
    ]


def _doubt_unit(fitted: Fitted) -> list[str]:
    """A warning if the points look as if they were in another unit than metres."""
    z, mean = fitted.observed.points.z, fitted.prior.mean
    if not z.numel() or not mean.any():
        return []
    phi = fitted.observed.phi
    expected, measured = float((phi @ mean.to(phi)[..., None]).median()), float(z.median())
    if abs(measured - expected) < math.log(UNIT_FACTOR):
        return []
    median, alone = (float(latent.to_depth(torch.tensor(x))) for x in (measured, expected))
    unit = "millimetres or centimetres read as metres" if median > alone else "a wrong scale"
    return [
        f"the points lie at {median:.4g} m where the model expects {alone:.3g} m from the image "
        f"alone, a factor of {median / alone:.3g}: this looks like {unit}"
    ]
