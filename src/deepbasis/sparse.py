# SPDX-License-Identifier: Apache-2.0
"""Sparse depth as sensors measure it: patterns of points on dense depth, projected point clouds.

Depth maps are z-depth in metres, 0 where nothing was measured. The camera is a pinhole: x points
right, y down, z forward, and the centre of the top left pixel is at (0, 0).
"""

import math
import re
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from deepbasis.latent import measured, to_depth, to_latent
from deepbasis.shapes import Bool, Float, Int, UInt8

Depth = Float[Tensor, "1 h w"]
Mask = Bool[Tensor, "1 h w"]
Image = UInt8[Tensor, "3 h w"]
Camera = Float[Tensor, "3 3"]

# A camera nobody told us about sees this much from left to right, as phones and webcams do.
ASSUMED_VIEW = math.radians(60)
# Lowest and highest beam of Velodyne's VLP-16, HDL-32E and HDL-64E, in degrees.
BEAMS = {16: (-15.0, 15.0), 32: (-30.67, 10.67), 64: (-24.8, 2.0)}
# Their azimuth step at ten turns a second is 0.16 to 0.2 degrees.
AZIMUTH_STEP, HALF_TURN = math.radians(0.2), 900
# Pitch and roll, drawn within one beam step of the VLP-16, move scan lines from frame to frame.
TILT = math.radians(2)
# Gradients are gathered over a window of this size, and a corner is the strongest in such a window.
WINDOW = 5
# A corner has at least this share of the strongest one's strength, and more than noise makes.
QUALITY, FAINTEST = 0.01, 1.0
# Share of an image that the points of a sensor cover, whatever the outline of what it sees.
COVERED = 0.75

KNOWN = (
    "a count ('500', '0'), a percentage of all pixels ('5%'), 'lidar16', 'lidar32', 'lidar64', "
    "'tof' or 'tof8x8' (rows x columns, also 'grid8x8'), 'features500'"
)


@dataclass(frozen=True)
class Pattern:
    """Pixels that a sensor measures, if nearer than `cap` metres; `parse(str(pattern))` is it."""

    word: ClassVar[str]
    _: KW_ONLY
    cap: float = math.inf

    def __str__(self) -> str:
        return self.word.format(**vars(self))

    def __call__(
        self, depth: Depth, image: Image, intrinsics: Camera, generator: Generator
    ) -> Depth:
        """Depth at the chosen pixels, 0 elsewhere. Intrinsics are NaN where not known."""
        usable = measured(depth) & (depth < self.cap)
        chosen = self._choose(usable, image, intrinsics, generator)
        return torch.where(usable & chosen, depth, 0)

    def _choose(self, usable: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(Pattern):
    """A number of usable pixels, each as likely as any other; all, if there are not as many."""

    word = "{count}"
    count: int

    def _choose(self, usable: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        return _draw(usable, self.count, generator)


@dataclass(frozen=True)
class Percent(Pattern):
    """A share of all pixels, as in the paper, drawn among the usable: 3840 for 5 % of 320x240."""

    word = "{percent:.15g}%"
    percent: float

    def _choose(self, usable: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        return _draw(usable, round(self.percent / 100 * usable.numel()), generator)


@dataclass(frozen=True)
class Lidar(Pattern):
    """Scan lines of a spinning LiDAR at the camera's own origin.

    Beams at equal steps of elevation turn about a nearly vertical axis, its tilt and the first
    azimuth random; each ray measures the pixel it passes through. A camera with unknown intrinsics
    is assumed to see 60 degrees from left to right, centred.
    """

    word = "lidar{beams}"
    beams: int

    def _choose(self, usable: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        height, width = usable.shape[1:]
        if not camera.isfinite().all():
            camera = _assumed_camera(height, width)
        row, column, _ = _pixels(_rays(self.beams, generator), camera, (height, width))
        return _mark(usable, row, column)


@dataclass(frozen=True)
class Grid(Pattern):
    """A time-of-flight array: equal zones, each measures the depth at its centre pixel."""

    word = "tof{rows}x{columns}"
    rows: int
    columns: int

    def _choose(self, usable: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        height, width = usable.shape[1:]
        row = (torch.arange(self.rows) + 0.5) * height / self.rows
        column = (torch.arange(self.columns) + 0.5) * width / self.columns
        return _mark(usable, row.long()[:, None], column.long())


@dataclass(frozen=True)
class Features(Pattern):
    """The strongest corners of the image, as visual SLAM tracks them; a smooth image has few."""

    word = "features{count}"
    count: int

    def _choose(self, usable: Mask, image: Image, camera: Camera, generator: Generator) -> Mask:
        strength = corner_strength(image)
        faintest = (QUALITY * strength.max()).clamp(min=FAINTEST)
        corner = usable & (strength > faintest) & (strength == _highest(strength, WINDOW // 2))
        _, row, column = corner.nonzero(as_tuple=True)
        best = strength[corner].argsort(descending=True, stable=True)[: self.count]
        return _mark(usable, row[best], column[best])


def parse(text: str, cap: float = math.inf) -> Pattern:
    """The pattern that a word of the command line names, such as '500', '5%' or 'lidar64'."""
    if found := re.fullmatch(r"(\d+)", text):
        return Uniform(int(found[1]), cap=cap)
    if (found := re.fullmatch(r"(\d+(?:\.\d+)?)%", text)) and float(found[1]) <= 100:
        return Percent(float(found[1]), cap=cap)
    if (found := re.fullmatch(r"lidar(\d+)", text)) and int(found[1]) in BEAMS:
        return Lidar(int(found[1]), cap=cap)
    if found := re.fullmatch(r"tof|(?:tof|grid)([1-9]\d*)x([1-9]\d*)", text):
        return Grid(int(found[1] or 8), int(found[2] or 8), cap=cap)
    if found := re.fullmatch(r"features(\d+)", text):
        return Features(int(found[1]), cap=cap)
    raise ValueError(f"no pattern of sparse points is called {text!r}; known are {KNOWN}")


def corner_strength(image: Image) -> Depth:
    """Smaller eigenvalue of the gradients' second moments (Shi and Tomasi 1994)."""
    grey = F.pad(image.float().mean(0, keepdim=True), (1, 1, 1, 1), mode="replicate")
    dx = (grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2]) / 2
    dy = (grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1]) / 2
    moments = torch.cat([dx * dx, dx * dy, dy * dy])
    xx, xy, yy = F.avg_pool2d(moments, WINDOW, stride=1, padding=WINDOW // 2)
    return ((xx + yy) / 2 - (((xx - yy) / 2).square() + xy.square()).sqrt())[None]


def corrupt(sparse: Depth, noise: float, outliers: float, generator: Generator) -> Depth:
    """Make points wrong: `noise` is the standard deviation of log depth, so 0.01 is about 1 %.

    With probability `outliers` a point is replaced by a depth drawn log-uniformly between those of
    the nearest and the farthest point.
    """
    if not (noise >= 0 and 0 <= outliers <= 1):
        raise ValueError(
            f"noise is {noise} and outliers {outliers}; noise is a relative error of 0 or more, "
            "outliers a share between 0 and 1"
        )
    known = measured(sparse)
    z = to_latent(sparse[known])
    if len(z) == 0:
        return torch.zeros_like(sparse)
    noisy = z + noise * torch.randn(z.shape, generator=generator)
    anywhere = z.min() + (z.max() - z.min()) * torch.rand(z.shape, generator=generator)
    wrong = torch.rand(z.shape, generator=generator) < outliers
    depth = to_depth(torch.where(wrong, anywhere, noisy))
    return torch.zeros_like(sparse).masked_scatter(known, depth)


def project(
    points: Float[Tensor, "n 3"],
    intrinsics: Camera,
    extrinsics: Float[Tensor, "4 4"] | None,
    size: tuple[int, int],
) -> Depth:
    """Sparse depth map, height x width, of a point cloud.

    `extrinsics` take points from the sensor's frame to the camera's; None if they are in it
    already. Points behind the camera or outside the image are dropped, of those on one pixel the
    nearest is kept. Points hidden from the camera remain: see `remove_occluded`.
    """
    _check_camera(intrinsics)
    pose = (torch.eye(4) if extrinsics is None else extrinsics).double()
    moved = points.double() @ pose[:3, :3].mT + pose[:3, 3]
    row, column, z = _pixels(moved, intrinsics, size)
    if len(z) == 0:
        behind = int((moved[:, 2] <= 0).sum())
        raise ValueError(
            f"none of {len(points)} points falls into the image of {size[0]} rows and {size[1]} "
            f"columns, {behind} are behind the camera; check that the extrinsics lead from sensor "
            "to camera (z forward), not back, and that the intrinsics are of this image size"
        )
    nearest = torch.full((size[0] * size[1],), torch.inf, dtype=torch.float64)
    nearest.scatter_reduce_(0, row * size[1] + column, z, "amin")
    return torch.where(nearest.isfinite(), nearest, 0).float().view(1, *size)


def remove_occluded(sparse: Depth, radius: int | None = None, margin: float = 0.15) -> Depth:
    """Drop points that a sensor beside the camera sees but the camera does not.

    Such a point shines through a nearer surface: a point goes if another within `radius` pixels is
    nearer by more than `margin` of its depth. The radius, unless given, is about half the distance
    between scan lines: a surface in front has a point that close, while the next line of a road
    that recedes is farther away. Visible points as close as that to an outline are lost.
    """
    known = measured(sparse)
    reach = _reach(known) if radius is None else radius
    nearest = -_highest(torch.where(known, -sparse, -torch.inf), reach)
    return torch.where(known & (nearest >= (1 - margin) * sparse), sparse, 0)


def range_to_depth(ranges: Depth, intrinsics: Camera) -> Depth:
    """Depth along the camera's axis from distances along each pixel's ray; 0 stays 0."""
    _check_camera(intrinsics)
    row, column = torch.meshgrid(*map(torch.arange, ranges.shape[1:]), indexing="ij")
    pixels = torch.stack([column, row, torch.ones_like(row)], -1).double()
    rays = torch.linalg.solve(intrinsics.double(), pixels[..., None])[..., 0]
    return (ranges / rays.norm(dim=-1)).to(ranges)


def _draw(usable: Mask, count: int, generator: Generator) -> Mask:
    _, row, column = usable.nonzero(as_tuple=True)
    drawn = torch.randperm(len(row), generator=generator)[:count]
    return _mark(usable, row[drawn], column[drawn])


def _mark(usable: Mask, row: Tensor, column: Tensor) -> Mask:
    marked = torch.zeros_like(usable)
    marked[:, row, column] = True
    return marked


def _assumed_camera(height: int, width: int) -> Camera:
    focal = width / 2 / math.tan(ASSUMED_VIEW / 2)
    return torch.tensor([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])


def _rays(beams: int, generator: Generator) -> Float[Tensor, "n 3"]:
    """Unit vectors, in the camera's frame, of the half turn that looks forward."""
    phase, pitch, roll = (2 * torch.rand(3, generator=generator).double() - 1).tolist()
    turn = torch.tensor([[0, -roll, 0], [roll, 0, -pitch], [0, pitch, 0]], dtype=torch.float64)
    elevation = torch.linspace(*BEAMS[beams], beams, dtype=torch.float64).deg2rad()
    azimuth = AZIMUTH_STEP * (torch.arange(-HALF_TURN // 2, HALF_TURN // 2).double() + phase)
    up, around = torch.cartesian_prod(elevation, azimuth).unbind(1)
    rays = torch.stack([up.cos() * around.sin(), -up.sin(), up.cos() * around.cos()], 1)
    return rays @ (TILT * turn).matrix_exp().mT


def _pixels(
    points: Float[Tensor, "n 3"], intrinsics: Camera, size: tuple[int, int]
) -> tuple[Int[Tensor, "m"], Int[Tensor, "m"], Float[Tensor, "m"]]:
    """Row, column and depth of those points that the camera has before it and in its image."""
    ahead = points[points.isfinite().all(1) & (points[:, 2] > 0)]
    x, y, w = (ahead @ intrinsics.double().mT).unbind(1)
    column, row = x / w + 0.5, y / w + 0.5
    inside = (column >= 0) & (column < size[1]) & (row >= 0) & (row < size[0])
    return row[inside].long(), column[inside].long(), ahead[inside, 2]


def _check_camera(intrinsics: Camera) -> None:
    if not (intrinsics.isfinite().all() and intrinsics[0, 0] > 0 and intrinsics[1, 1] > 0):
        wanted = "[[fx, 0, cx], [0, fy, cy], [0, 0, 1]] in pixels"
        raise ValueError(f"the camera's intrinsics are {intrinsics.tolist()}; pass {wanted}")


def _highest(values: Depth, radius: int) -> Depth:
    """Largest value in the square window around each pixel."""
    in_rows = F.max_pool2d(values, (1, 2 * radius + 1), stride=1, padding=(0, radius))
    return F.max_pool2d(in_rows, (2 * radius + 1, 1), stride=1, padding=(radius, 0))


def _reach(known: Mask) -> int:
    """One more than the radius within which COVERED of the pixels between the points have one."""
    if not known.any():
        return 0
    _, row, column = known.nonzero(as_tuple=True)
    box = known[:, row.min() : row.max() + 1, column.min() : column.max() + 1].float()
    radius = 0
    while _highest(box, radius).mean() < COVERED:
        radius += 1
    return radius + 1
