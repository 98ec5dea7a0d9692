# SPDX-License-Identifier: Apache-2.0
"""The posterior as a distribution of whole depth maps: samples, distances, regions, next points.

The deviation of a map from its mean is Gaussian before calibration; `fit.sampling` draws it. The
calibration factors multiply its parts: that of the weights by the factor of the model variance,
that of the errors by the factor of the noise variance. So the variance of the deviation of a pixel
is the calibrated one. Divided by its root it is a standard normal score, and the error
distribution of the pixel takes the score to an error of the same probability (a Gaussian copula).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from deepbasis import latent
from deepbasis.arguments import to_array, to_count, to_number, to_numbers
from deepbasis.fit import sampling
from deepbasis.fit.correlated import combine
from deepbasis.layer import Fitted
from deepbasis.layer.errors import CorrelatedFit
from deepbasis.points import Camera, doubt_camera, to_camera
from deepbasis.shapes import Bool, Float, Int

Pixel = Sequence[float] | npt.NDArray[Any]

# Draws of two pixels, and of a region, from which intervals are taken.
DRAWS, REGION_DRAWS = 8192, 256
# A region is drawn at a lattice of about BOX_PIXELS pixels of its bounding box, but at no fewer
# than REGION_PIXELS of its own. If that takes a lattice of more than MOST_PIXELS, as of a thin
# region or a scattered one, it is drawn at REGION_PIXELS of its own, with their exact covariance.
BOX_PIXELS, MOST_PIXELS, REGION_PIXELS = 2048, 8192, 256
# Deviations from which the nearest surface of a region is drawn are averaged over pixels up to this
# far away, in image widths: on validation frames of NYU, `probability_closer` is then calibrated.
SURFACE = 1 / 40
# Candidates for the next measurement, at most, on a lattice over the image.
CANDIDATES = 1200
# Rows whose bases are held at a time.
BLOCK_ROWS = 64
# Drawn errors are bounded by the pixel's central interval of this probability or by a factor of
# this size on depth, whichever is wider. The learned distributions have heavier tails than errors:
# with 500 points `indoor` expects 1 pixel in 550 of NYU to be off by more than a factor of 2, and
# there is none. Sums over many pixels would be dominated by these tails.
BOUND_LEVEL, BOUND_FACTOR = 0.99, 2.0
# Numbers of all maps that are drawn at a time: 2 GB.
MOST_DRAWN = 500_000_000
# Added to correlations of pixels, so that their matrix can be factored.
JITTER = 1e-9


class Quantity(NamedTuple):
    """A number with its uncertainty."""

    value: float
    """Median."""
    std: float
    """Half the central 68.27 % interval."""
    low: float
    """Lower bound of the interval."""
    high: float
    """Upper bound of the interval."""

    @classmethod
    def of(cls, draws: Float[Tensor, "n"], level: float) -> "Quantity":
        """From draws.

        Args:
            draws: of the number.
            level: probability of the central interval, which `low` and `high` bound.

        Returns:
            Median, std and interval.

        Raises:
            ValueError: if the level is not a probability.
        """
        levels = latent.ONE_SIGMA, latent.check_level(level)
        one, wanted = (((1 - p) / 2, (1 + p) / 2) for p in levels)
        at = torch.tensor([0.5, *one, *wanted], dtype=torch.float64)
        value, below, above, low, high = torch.quantile(draws.double(), at).tolist()
        return cls(value, (above - below) / 2, low, high)


class Size(NamedTuple):
    """How far away and how large a region is."""

    depth: Quantity
    """Mean depth in metres."""
    area: Quantity
    """In square metres, as if every pixel faced the camera."""
    width: Quantity
    """In metres: sum over the columns of the mean width of a pixel."""
    height: Quantity
    """In metres: sum over the rows of the mean height of a pixel."""


class Lattice(NamedTuple):
    """Evenly spaced pixels."""

    rows: Int[Tensor, "h"]
    columns: Int[Tensor, "w"]

    @classmethod
    def of(cls, size: tuple[int, int], step: int = 1, first: int = 0) -> "Lattice":
        """Every `step`-th pixel of an image."""
        return cls(*(torch.arange(min(first, n - 1), n, step) for n in size))

    @property
    def pixels(self) -> tuple[Int[Tensor, "p"], Int[Tensor, "p"]]:
        """Row and column of each, in reading order."""
        row, column = torch.meshgrid(*self, indexing="ij")
        return row.flatten(), column.flatten()

    @property
    def step(self) -> int:
        """Pixels between neighbours."""
        longer = max(self, key=len)
        return int(longer[1] - longer[0]) if len(longer) > 1 else 1


@dataclass(frozen=True)
class Joint:
    """All pixels of one image together."""

    fitted: Fitted
    """A batch of one."""
    mean: Float[Tensor, "h w"]
    var: Float[Tensor, "h w"]
    distribution: latent.ScaleMixture

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return (self.mean.shape[0], self.mean.shape[1])

    def sample(self, n: int, seed: int) -> Float[Tensor, "n h w"]:
        """Depth maps in metres."""
        count = to_count(n, "`n`", "a whole number of maps")
        if count < 1:
            raise ValueError(f"`n` is {count}; draw at least 1 map")
        if count * self.mean.numel() > MOST_DRAWN:
            most = max(MOST_DRAWN // self.mean.numel(), 1)
            raise ValueError(
                f"`n` is {count}; draw at most {most} maps of this size at a time, with other seeds"
            )
        score = self._scores(Lattice.of(self.size), count, _generator(seed))
        return self._depth(score, self.mean, self.var, self.distribution)

    def distance(self, a: Pixel, b: Pixel, intrinsics: ArrayLike | None, level: float) -> Quantity:
        """Distance in space between two pixels, each u and v."""
        camera = self._camera(intrinsics)
        # In one order, so that both ways give the same draws.
        ends = sorted((self._pixel(end) for end in (a, b)), key=lambda end: end[::-1])
        if ends[0] == ends[1]:
            raise ValueError(f"both ends are the pixel u, v = {ends[0][::-1]}; pass two pixels")
        row, column = torch.tensor(ends).unbind(1)
        score = self._exact_scores(row, column, DRAWS)
        where = []
        for end, one in zip(ends, score.unbind(1), strict=True):
            ray = torch.linalg.solve(camera, torch.tensor([end[1], end[0], 1.0]).double())
            where.append(self._depth_at(one[:, None], [end]).double() * ray)
        return Quantity.of((where[0] - where[1]).norm(dim=-1), level)

    def measure(self, mask: ArrayLike, intrinsics: ArrayLike | None, level: float) -> Size:
        """Mean depth, area and extent of a region."""
        camera, region = self._camera(intrinsics), self._mask(mask)
        depth, inside = self._region(region)
        fx, fy = float(camera[0, 0]), float(camera[1, 1])
        across, down = int(region.any(0).sum()), int(region.any(1).sum())
        return Size(
            Quantity.of(depth.mean(1), level),
            Quantity.of(depth.square().mean(1) * (int(region.sum()) / (fx * fy)), level),
            Quantity.of(_mean_over_lines(depth, inside) * (across / fx), level),
            Quantity.of(_mean_over_lines(depth, inside, rows=True) * (down / fy), level),
        )

    def closer(self, metres: float) -> Float[Tensor, "h w"]:
        """Probability that each pixel is closer than this."""
        error = latent.to_latent(torch.tensor(_positive(metres))) - self.mean
        return (1 + error.sign() * self.distribution.level(error, self.var)) / 2

    def any_closer(self, metres: float, mask: ArrayLike) -> float:
        """Probability that any pixel of a region is closer than this."""
        limit = _positive(metres)
        return float((self.nearest(mask) < limit).double().mean())

    def nearest(self, mask: ArrayLike) -> Float[Tensor, "n"]:
        """Draws of the depth of the nearest surface of a region.

        The nearest of hundreds of pixels is where errors are extreme. So deviations are averaged
        over the pixels around, and all pixels of a draw share how large errors are: the learned
        distributions are Gaussians of a random scale. Errors that are large at any single pixel of
        every draw, as for `sample`, would be nearer than any surface.
        """
        region = self._mask(mask)
        score, chosen, _ = self._region_scores(region, round(SURFACE * self.size[1]))
        here, mean, var = self.distribution.at(chosen), self.mean[chosen], self.var[chosen]
        quantile = (torch.arange(len(score)) + 0.5) / len(score)
        return latent.to_depth(mean + score * here.gaussian_std(quantile, var)).amin(1)

    def next_points(self, k: int) -> Int[Tensor, "k 2"]:
        """u and v of the pixels whose measurement lowers the total variance of depth most."""
        k = to_count(k, "`k`", "a whole number of points")
        height, width = self.size
        step = 1
        while -(-height // step) * -(-width // step) > CANDIDATES:
            step += 1
        row, column = Lattice.of(self.size, step, (step - 1) // 2).pixels
        if not 1 <= k <= len(row):
            raise ValueError(f"`k` is {k}; choose from 1 to {len(row)} next points in this image")
        cov, noise = self.covariance(row, column)
        # One metre is one metre, near and far: d depth = depth d latent.
        depth = latent.to_depth(self.mean[row, column]).double()
        found = sampling.choose_measurements(
            cov * torch.outer(depth, depth), noise * depth.square(), k
        )
        return torch.stack([column[found], row[found]], 1)

    @torch.no_grad()
    def covariance(
        self, row: Int[Tensor, "p"], column: Int[Tensor, "p"]
    ) -> tuple[Float[Tensor, "p p"], Float[Tensor, "p"]]:
        """Of the latent at some pixels, calibrated, and the variance of what is noise at each.

        Exact for the points that the prediction uses: the diagonal of the sum is its variance.
        """
        fitted, place = self.fitted, (row.to(self._device), column.to(self._device))
        seen, root = fitted.observed, fitted.posterior.root[0].double()
        rest = seen.pyramid.at(place[0][None].float(), place[1][None].float())[0].double()
        if not isinstance(fitted, CorrelatedFit):
            noise = fitted.prediction.noise_var[0, 0][place].double()
            spread = rest @ root
            return (self._model_factor * spread @ spread.mT).cpu(), noise.cpu()
        field = fitted.fields[0]
        near, b, errors = sampling.krige(field, *place)
        s = self._amplitude(*place).double()
        known = torch.nn.functional.pad(seen.by_amplitude[0][0], (0, 0, 0, field.k))
        spread = (rest - s[:, None] * combine(near, b, known).double()) @ root
        errors = torch.outer(s, s) * errors * self._unit
        cov = self._model_factor * spread @ spread.mT + errors
        nugget = float(fitted.kernel.nugget) * self._unit
        return cov.cpu(), torch.full((len(row),), nugget, dtype=torch.float64)

    @property
    def _device(self) -> torch.device:
        return self.fitted.posterior.mean.device

    @property
    def _model_factor(self) -> float:
        return float(self.fitted.calibrated.model_factor)

    @property
    def _unit(self) -> float:
        """Calibrated variance of an error of amplitude 1."""
        return float(self.fitted.calibrated.noise_factor) / float(self.fitted.posterior.beta)

    @cached_property
    def _var(self) -> Float[Tensor, "h w"]:
        """Variance of the deviations that are drawn, whatever error bars were rescaled since."""
        return self.fitted.without_doubt.var[0, 0]

    def _amplitude(self, row: Tensor, column: Tensor) -> Tensor:
        amplitude = self.fitted.observed.amplitude
        return torch.ones_like(row) if amplitude is None else amplitude[0, 0, row, column]

    @torch.no_grad()
    def _scores(
        self, lattice: Lattice, n: int, generator: torch.Generator
    ) -> Float[Tensor, "n h w"]:
        """Draw deviations, divided by their standard deviation."""
        fitted, root = self.fitted, self.fitted.posterior.root[0]
        rows, columns = (x.to(self._device) for x in lattice)

        def normal(count: int) -> Tensor:
            return torch.randn(count, n, generator=generator).to(root)

        weights = self._model_factor**0.5 * (root @ normal(root.shape[1]))
        deviation = torch.cat(
            [self._combine(weights, part, columns) for part in torch.split(rows, BLOCK_ROWS)]
        )
        count = len(rows) * len(columns)
        if isinstance(fitted, CorrelatedFit):
            unit = self._unit**0.5
            known = -(fitted.observed.by_amplitude[0][0] @ weights) / unit
            errors = sampling.simulate(fitted.fields[0], known, rows, columns, normal)
            if fitted.observed.amplitude is not None:
                errors *= fitted.observed.amplitude[0, 0][rows][:, columns, None]
            noise = float(fitted.kernel.nugget) ** 0.5 * normal(count).view_as(errors)
            deviation += unit * (errors + noise)
        else:
            std = fitted.prediction.noise_var[0, 0][rows][:, columns].sqrt()
            deviation += std[..., None] * normal(count).view_as(deviation)
        deviation /= self._var[rows][:, columns, None].sqrt()
        return deviation.movedim(-1, 0).float().cpu()

    def _exact_scores(
        self, row: Int[Tensor, "p"], column: Int[Tensor, "p"], n: int
    ) -> Float[Tensor, "n p"]:
        """The same at a few pixels, from their covariance."""
        cov, noise = self.covariance(row, column)
        cov = cov + noise.diag()
        std = cov.diagonal().sqrt()
        correlation = cov / torch.outer(std, std) + JITTER * torch.eye(len(row))
        normal = torch.randn(n, len(row), generator=_generator(0), dtype=torch.float64)
        return (normal @ torch.linalg.cholesky(correlation).mT).float()

    def _combine(self, weights: Tensor, rows: Tensor, columns: Tensor) -> Float[Tensor, "h w n"]:
        """Weighted sums of the bases at some rows and columns."""
        first, width = int(rows[0]), self.size[1]
        bases = self.fitted.observed.pyramid.rows(first, int(rows[-1]) + 1)[0]
        bases = bases.view(len(bases), -1, width)[:, rows - first][:, :, columns]
        return torch.einsum("mhw,mn->hwn", bases, weights)

    def _region(self, region: Bool[Tensor, "h w"]) -> tuple[Tensor, Bool[Tensor, "a b"]]:
        """Draws of the pixels of a region, [draws, pixels], and where they are in their lattice."""
        score, chosen, inside = self._region_scores(region)
        return self._draw_at(score, chosen), inside

    def _region_scores(
        self, region: Bool[Tensor, "h w"], reach: int = 0
    ) -> tuple[Float[Tensor, "n p"], Bool[Tensor, "h w"], Bool[Tensor, "a b"]]:
        """Scores of pixels of a region, averaged over those within reach; which pixels these are,
        and where in their lattice.
        """
        lattice = _cover(region)
        if len(lattice.rows) * len(lattice.columns) > MOST_PIXELS:
            few = _thin_out(region)
            row, column = few.nonzero().unbind(1)
            return _average_at(self._exact_scores(row, column, REGION_DRAWS), few, reach), few, few
        inside = region[lattice.rows][:, lattice.columns]
        score = self._scores(lattice, REGION_DRAWS, _generator(0))
        chosen = torch.zeros_like(region)
        row, column = (x[inside.flatten()] for x in lattice.pixels)
        chosen[row, column] = True
        return _average(score, reach // lattice.step)[:, inside], chosen, inside

    def _depth_at(self, score: Float[Tensor, "n p"], pixels: list[tuple[int, int]]) -> Tensor:
        chosen = torch.zeros(self.size, dtype=torch.bool)
        for row, column in pixels:
            chosen[row, column] = True
        return self._draw_at(score, chosen)

    def _draw_at(self, score: Float[Tensor, "n p"], chosen: Bool[Tensor, "h w"]) -> Tensor:
        here = self.distribution.at(chosen)
        return self._depth(score, self.mean[chosen], self.var[chosen], here)

    @staticmethod
    def _depth(
        score: Tensor, mean: Tensor, var: Tensor, distribution: latent.ErrorDistribution
    ) -> Tensor:
        """Depths of normal scores."""
        bound = distribution.half_width(var, BOUND_LEVEL).clamp(min=math.log(BOUND_FACTOR))
        error = distribution.from_normal(score, var)
        return latent.to_depth(mean + error.clamp(-bound, bound))

    def _pixel(self, end: Pixel) -> tuple[int, int]:
        """Row and column of the pixel that holds a place u, v."""
        place = to_numbers(end, "u and v of a pixel")
        height, width = self.size
        if place.shape != (2,):
            raise ValueError(f"a pixel is {list(place.shape)}; pass u and v, its column and row")
        u, v = (float(x) for x in np.floor(place + 0.5))
        if not (0 <= u < width and 0 <= v < height):
            raise ValueError(
                f"the pixel u, v = {place[0]:g}, {place[1]:g} is outside the image of {width} "
                f"columns and {height} rows"
            )
        return int(v), int(u)

    def _camera(self, intrinsics: ArrayLike | None) -> Camera:
        """The camera; refused if its principal point is at the border or outside."""
        camera = to_camera(intrinsics)
        (cx, cy), (height, width) = camera[:2, 2].tolist(), self.size
        doubts = doubt_camera(camera, self.size)  # none if the image has few pixels
        if doubts and not (0 < cx < width - 1 and 0 < cy < height - 1):
            raise ValueError(doubts[0])
        return camera

    def _mask(self, mask: ArrayLike) -> Bool[Tensor, "h w"]:
        values = to_array(mask, "the mask")
        if values.dtype.kind not in "biuf" or np.ma.isMaskedArray(mask) or np.isnan(values).any():
            raise ValueError(f"the mask holds {values.dtype} values or gaps; pass booleans")
        if values.dtype.kind == "f" and not np.isin(values, (0, 1)).all():
            raise ValueError(
                "the mask holds numbers other than 0 and 1; compare it with a threshold first, "
                "such as `mask > 0.5`"
            )
        region = torch.from_numpy(values.astype(bool))
        if tuple(region.shape) != self.size:
            raise ValueError(
                f"the mask is {list(region.shape)}, the image {list(self.size)} (height, width); "
                "pass a mask of the image's size"
            )
        if not region.any():
            raise ValueError("the mask is empty; set at least one pixel")
        return region


def _cover(region: Bool[Tensor, "h w"]) -> Lattice:
    """A lattice over the bounding box of a region."""
    lines = [region.any(1).nonzero()[:, 0], region.any(0).nonzero()[:, 0]]
    ends = [(int(line[0]), int(line[-1]) + 1) for line in lines]
    enough = min(int(region.sum()), REGION_PIXELS)
    area = (ends[0][1] - ends[0][0]) * (ends[1][1] - ends[1][0])
    step = max(1, int((area / BOX_PIXELS) ** 0.5))
    while True:
        lattice = Lattice(*(torch.arange(a, b, step) for a, b in ends))
        if int(region[lattice.rows][:, lattice.columns].sum()) >= enough:
            return lattice
        step -= 1


def _thin_out(region: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Some pixels of a region, evenly spaced in reading order."""
    where = region.flatten().nonzero()[:, 0]
    kept = torch.linspace(0, len(where) - 1, min(len(where), REGION_PIXELS)).round().long()
    few = torch.zeros_like(region)
    few.view(-1)[where[kept]] = True
    return few


def _average(score: Float[Tensor, "n h w"], reach: int) -> Float[Tensor, "n h w"]:
    """Mean of each pixel and of those within reach of it, along rows and columns."""
    for size, pad in (((2 * reach + 1, 1), (reach, 0)), ((1, 2 * reach + 1), (0, reach))):
        score = F.avg_pool2d(score[:, None], size, 1, pad, count_include_pad=False)[:, 0]
    return score


def _average_at(
    score: Float[Tensor, "n p"], where: Bool[Tensor, "h w"], reach: int
) -> Float[Tensor, "n p"]:
    """The same at some pixels of an image, over those of them that are within reach."""
    place = where.nonzero()
    near = ((place[:, None] - place).abs().amax(-1) <= reach).to(score)
    return score @ (near / near.sum(1, keepdim=True)).mT


def _mean_over_lines(
    depth: Float[Tensor, "n p"], inside: Bool[Tensor, "a b"], *, rows: bool = False
) -> Float[Tensor, "n"]:
    """The mean over columns, or rows, of the mean depth in each."""
    line = inside.nonzero()[:, 0 if rows else 1]
    share = 1 / torch.bincount(line)[line]
    return depth @ (share / share.sum()).to(depth)


def _positive(metres: float) -> float:
    number = to_number(metres, "the distance", "a positive number of metres")
    if not latent.is_valid(torch.tensor(number)):
        raise ValueError(
            f"the distance is {metres} m; pass a positive number of metres, from 1e-6 to 1e9"
        )
    return number


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(to_count(seed, "`seed`", "a whole number"))
