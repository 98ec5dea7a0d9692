# SPDX-License-Identifier: Apache-2.0
"""Sampling patterns: which pixels of a dense depth map a sensor would measure.

Depth maps are z-depth in metres, 0 where nothing was measured.
"""

import math
import re
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from deepbasis.latent import is_valid, to_depth, to_latent
from deepbasis.points import local_maximum, project
from deepbasis.shapes import Bool, Float, UInt8

Depth = Float[Tensor, "1 h w"]
Mask = Bool[Tensor, "1 h w"]
Image = UInt8[Tensor, "3 h w"]
Camera = Float[Tensor, "3 3"]

# Horizontal field of view of cameras with unknown intrinsics, as of phones and webcams.
ASSUMED_VIEW = math.radians(60)
# Elevation of the lowest and highest beam of Velodyne's VLP-16, HDL-32E and HDL-64E, in degrees.
BEAMS = {16: (-15.0, 15.0), 32: (-30.67, 10.67), 64: (-24.8, 2.0)}
# Their azimuth step at ten rotations per second is 0.16 to 0.2 degrees.
AZIMUTH_STEP, HALF_TURN = math.radians(0.2), 900
# Random pitch and roll up to one beam step of the VLP-16, so that scan lines vary between frames.
TILT = math.radians(2)
# Side of the window over which gradients are averaged, and within which a corner is the maximum.
WINDOW = 5
# Smallest strength of a corner: relative to the strongest one, and absolute, above that of noise.
QUALITY, MIN_STRENGTH = 0.01, 1.0

KNOWN = (
    "a count ('500', '0'), a percentage of all pixels ('5%'), 'lidar16', 'lidar32', 'lidar64', "
    "'tof' or 'tof8x8' (rows x columns, also 'grid8x8'), 'features500'"
)


@dataclass(frozen=True)
class Pattern:
    """Pixels that a sensor measures, if nearer than `cap` metres; `parse` inverts `str`."""

    name: ClassVar[str]
    """Of the pattern, as `parse` takes it."""
    _: KW_ONLY
    cap: float = math.inf
    """Largest depth that is measured, in metres."""

    def __str__(self) -> str:
        return self.name.format(**vars(self))

    def __call__(
        self, depth: Depth, image: Image, intrinsics: Camera, generator: Generator
    ) -> Depth:
        """Depth at the chosen pixels, 0 elsewhere. Unknown intrinsics are NaN."""
        valid = is_valid(depth) & (depth < self.cap)
        chosen = self._choose(valid, image, intrinsics, generator)
        return torch.where(valid & chosen, depth, 0)

    def _choose(self, valid: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(Pattern):
    """A number of valid pixels, drawn uniformly; all of them if there are fewer."""

    name = "{count}"
    count: int
    """Number of points."""

    def _choose(self, valid: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        return _draw(valid, self.count, generator)


@dataclass(frozen=True)
class Percent(Pattern):
    """A percentage of all pixels, drawn from the valid ones; 3840 for 5 % of 320x240."""

    name = "{percent:.15g}%"
    percent: float
    """Of all pixels."""

    def _choose(self, valid: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        return _draw(valid, round(self.percent / 100 * valid.numel()), generator)


@dataclass(frozen=True)
class Lidar(Pattern):
    """Scan lines of a spinning LiDAR at the camera's origin.

    Beams at equal steps of elevation rotate about a nearly vertical axis with random tilt and
    start; each ray measures the pixel it passes through. Unknown intrinsics are replaced by those
    of a centred camera with a horizontal field of view of 60 degrees.
    """

    name = "lidar{beams}"
    beams: int
    """Number of scan lines."""

    def _choose(self, valid: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        height, width = valid.shape[1:]
        if not camera.isfinite().all():
            camera = assumed_camera(height, width)
        u, v, ahead = project(_rays(self.beams, generator), camera)
        row, column = (torch.floor(x[ahead] + 0.5).long() for x in (v, u))
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return _mark(valid, row[inside], column[inside])


@dataclass(frozen=True)
class Grid(Pattern):
    """A time-of-flight array: equal zones, each measuring the depth at its central pixel."""

    name = "tof{rows}x{columns}"
    rows: int
    """Number of zones from top to bottom."""
    columns: int
    """Number of zones from left to right."""

    def _choose(self, valid: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        height, width = valid.shape[1:]
        row = (torch.arange(self.rows) + 0.5) * height / self.rows
        column = (torch.arange(self.columns) + 0.5) * width / self.columns
        return _mark(valid, row.long()[:, None], column.long())


@dataclass(frozen=True)
class FeaturePoints(Pattern):
    """The strongest corners of the image, as tracked by visual SLAM; smooth images have few."""

    name = "features{count}"
    count: int
    """Largest number of points."""

    def _choose(self, valid: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        strength = corner_strength(image)
        weakest = (QUALITY * strength.max()).clamp(min=MIN_STRENGTH)
        corner = valid & (strength > weakest) & (strength == local_maximum(strength, WINDOW // 2))
        _, row, column = corner.nonzero(as_tuple=True)
        best = strength[corner].argsort(descending=True, stable=True)[: self.count]
        return _mark(valid, row[best], column[best])


def parse(text: str, cap: float = math.inf) -> Pattern:
    """The pattern with this name, such as '500', '5%' or 'lidar64'.

    Args:
        text: a count, a percentage of all pixels, or the name of a sensor, such as `500`, `5%`,
            `lidar64`, `tof8x8` or `features500`.
        cap: largest depth that the sensor measures, in metres.

    Returns:
        The pattern: a function of depth, image, intrinsics and generator that returns sparse depth.

    Raises:
        ValueError: if there is no such pattern.
    """
    if found := re.fullmatch(r"(\d+)", text):
        return Uniform(int(found[1]), cap=cap)
    if (found := re.fullmatch(r"(\d+(?:\.\d+)?)%", text)) and float(found[1]) <= 100:
        return Percent(float(found[1]), cap=cap)
    if (found := re.fullmatch(r"lidar(\d+)", text)) and int(found[1]) in BEAMS:
        return Lidar(int(found[1]), cap=cap)
    if found := re.fullmatch(r"tof|(?:tof|grid)([1-9]\d*)x([1-9]\d*)", text):
        return Grid(int(found[1] or 8), int(found[2] or 8), cap=cap)
    if found := re.fullmatch(r"features(\d+)", text):
        return FeaturePoints(int(found[1]), cap=cap)
    raise ValueError(f"unknown point pattern {text!r}; choose {KNOWN}")


def corner_strength(image: Image) -> Depth:
    """Smaller eigenvalue of the structure tensor (Shi and Tomasi 1994).

    Args:
        image: colours from 0 to 255.

    Returns:
        A map; large at corners.
    """
    grey = F.pad(image.float().mean(0, keepdim=True), (1, 1, 1, 1), mode="replicate")
    dx = (grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2]) / 2
    dy = (grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1]) / 2
    moments = torch.cat([dx * dx, dx * dy, dy * dy])
    xx, xy, yy = F.avg_pool2d(moments, WINDOW, stride=1, padding=WINDOW // 2)
    return ((xx + yy) / 2 - (((xx - yy) / 2).square() + xy.square()).sqrt())[None]


def corrupt(sparse: Depth, noise: float, outliers: float, generator: Generator) -> Depth:
    """Add noise and outliers.

    With probability `outliers` a point is replaced by a depth drawn log-uniformly between those of
    the nearest and the farthest point.

    Args:
        sparse: sparse depth in metres.
        noise: standard deviation of log depth; 0.01 is about 1 %.
        outliers: probability of an outlier.
        generator: of the random numbers.

    Returns:
        Sparse depth with the same pixels measured.

    Raises:
        ValueError: if `noise` is negative, or `outliers` not a probability.
    """
    if not (noise >= 0 and 0 <= outliers <= 1):
        raise ValueError(
            f"noise is {noise} and outliers {outliers}; noise is a relative error of 0 or more, "
            "outliers a probability between 0 and 1"
        )
    known = is_valid(sparse)
    z = to_latent(sparse[known])
    if len(z) == 0:
        return torch.zeros_like(sparse)
    noisy = z + noise * torch.randn(z.shape, generator=generator)
    replaced = z.min() + (z.max() - z.min()) * torch.rand(z.shape, generator=generator)
    wrong = torch.rand(z.shape, generator=generator) < outliers
    depth = to_depth(torch.where(wrong, replaced, noisy))
    return torch.zeros_like(sparse).masked_scatter(known, depth)


def _draw(valid: Mask, count: int, generator: Generator) -> Mask:
    _, row, column = valid.nonzero(as_tuple=True)
    drawn = torch.randperm(len(row), generator=generator)[:count]
    return _mark(valid, row[drawn], column[drawn])


def _mark(valid: Mask, row: Tensor, column: Tensor) -> Mask:
    marked = torch.zeros_like(valid)
    marked[:, row, column] = True
    return marked


def assumed_camera(height: int, width: int) -> Camera:
    """A centred camera with a usual field of view, for images whose own is not known.

    Args:
        height: of the image, in pixels.
        width: of the image, in pixels.

    Returns:
        Its intrinsics, 3 x 3.
    """
    focal = width / 2 / math.tan(ASSUMED_VIEW / 2)
    return torch.tensor([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])


def _rays(beams: int, generator: Generator) -> Float[Tensor, "n 3"]:
    """Unit vectors in the camera's frame over the forward half of a rotation."""
    phase, pitch, roll = (2 * torch.rand(3, generator=generator).double() - 1).tolist()
    turn = torch.tensor([[0, -roll, 0], [roll, 0, -pitch], [0, pitch, 0]], dtype=torch.float64)
    elevation = torch.linspace(*BEAMS[beams], beams, dtype=torch.float64).deg2rad()
    azimuth = AZIMUTH_STEP * (torch.arange(-HALF_TURN // 2, HALF_TURN // 2).double() + phase)
    up, around = torch.cartesian_prod(elevation, azimuth).unbind(1)
    rays = torch.stack([up.cos() * around.sin(), -up.sin(), up.cos() * around.cos()], 1)
    return rays @ (TILT * turn).matrix_exp().mT
