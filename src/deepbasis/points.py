# SPDX-License-Identifier: Apache-2.0
"""Points: depth measurements of an image, one type from the file to the fit.

The camera is a pinhole: x points right, y down, z forward. u is the column and v the row; the
centre of the top left pixel is at (0, 0). Depth is z-depth in metres.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from deepbasis import latent
from deepbasis.arguments import to_number, to_numbers
from deepbasis.shapes import Bool, Float, Int

Rows = Float[np.ndarray, "n columns"]
Depth = Float[Tensor, "1 h w"]
Camera = Float[Tensor, "3 3"]

# Share of its bounding box that a sensor's points cover, whatever the outline of what it sees.
COVERED = 0.75
# Why a point is dropped.
SAME_PIXEL = "on the pixel of a nearer or equal point"
# Integers with a larger median do not look like metres.
FAR_M = 100.0
# Relative error of a depth that was stored as float32 logarithm.
ROUNDING = 1e-6
# In pixels: products of larger numbers overflow, and of the inverses of smaller ones.
LARGEST_CAMERA = 1e9
# Share of a side of the image: principal points further from its centre are unusual.
OFF_CENTRE = 0.3
WANTED_CAMERA = "[[fx, 0, cx], [0, fy, cy], [0, 0, 1]] in pixels"


@dataclass(frozen=True)
class Points:
    """Depth measurements of one image, or of a batch, padded with weight 0 to the largest count."""

    u: Float[Tensor, "*b n"]
    """Column in pixels, possibly between two pixels."""
    v: Float[Tensor, "*b n"]
    """Row."""
    z: Float[Tensor, "*b n"]
    """Log depth."""
    weight: Float[Tensor, "*b n"]
    """Relative precision: 1 by default, 0 for padding."""
    sigma: Float[Tensor, "*b n"] | None = None
    """Standard deviation of the measurements in log depth, if they came with one."""
    dropped: dict[str, int] = field(default_factory=dict)
    """How many measurements were left out, by reason."""

    @classmethod
    def from_rows(cls, rows: Rows) -> "Points":
        """Rows of `u v metres` or `u v metres sigma`; those without a measurement are dropped.

        Args:
            rows: [n, 3] or [n, 4]: column, row, metres and, if known, sigma: the standard deviation
                in metres.

        Returns:
            The points; `dropped` counts rows without a measurement.

        Raises:
            ValueError: if the rows have another shape, a depth or sigma is negative, or no sigma is
                finite.
        """
        if rows.ndim != 2 or rows.shape[1] not in (3, 4):
            raise ValueError(
                f"rows of points are {list(rows.shape)}; pass [n, 3] or [n, 4]: `u v metres` or "
                "`u v metres sigma`"
            )
        negative = np.isfinite(rows) & (rows < 0)
        if negative[:, 2:].any():
            first = rows[negative[:, 2:].any(1)][0]
            raise ValueError(
                f"a depth or sigma is negative, first at the point {first.tolist()}; both are in "
                "metres, and a depth of 0, NaN or infinity means no measurement"
            )
        if rows.shape[1] == 4 and len(rows) and not np.isfinite(rows[:, 3]).any():
            raise ValueError(
                "no sigma is finite; if the standard deviations are not known, pass rows of "
                "`u v metres`"
            )
        depth = torch.from_numpy(np.ascontiguousarray(rows[:, 2]))
        good = np.isfinite(rows).all(1) & latent.is_valid(depth).numpy()
        _refuse_if_none_left(rows, good, "without a measurement")
        dropped = {} if good.all() else {"without a measurement": int((~good).sum())}
        u, v, depth, *sigma = torch.from_numpy(rows[good].astype(np.float64)).unbind(1)
        relative = sigma[0] / depth if sigma else None
        return cls(u, v, latent.to_latent(depth), torch.ones_like(u), relative, dropped)

    @classmethod
    def from_map(cls, depth: ArrayLike) -> "Points":
        """A depth map in metres; 0, NaN and infinity mean no measurement.

        Args:
            depth: [height, width].

        Returns:
            A point for each measured pixel.
        """
        values = to_numbers(depth, "the depth map", "formats.read_depth")
        row, column = np.nonzero(np.isfinite(values) & (values != 0))
        return cls.from_rows(np.stack([column, row, values[row, column]], 1))

    @classmethod
    def from_maps(
        cls, sparse: Float[Tensor, "b 1 h w"], weight: Float[Tensor, "b 1 h w"] | None = None
    ) -> "Points":
        """A batch of sparse depth maps in metres; 0, NaN and infinity mean no measurement.

        Args:
            sparse: depth in metres.
            weight: relative precision of each pixel, 1 by default.

        Returns:
            The points of each image, padded with weight 0.
        """
        _check_maps(sparse, weight)
        # Half precision holds no column beyond 256 or 2048.
        sparse = sparse.to(torch.promote_types(sparse.dtype, torch.float32))
        image, _, row, column = latent.is_valid(sparse).nonzero(as_tuple=True)
        count = torch.bincount(image, minlength=len(sparse))
        slot = torch.arange(len(image), device=image.device) - (count.cumsum(0) - count)[image]
        shape = (len(sparse), int(count.max()) if len(count) else 0)

        def pad(values: Tensor) -> Tensor:
            return values.new_zeros(shape).index_put_((image, slot), values)

        depth = sparse[image, 0, row, column]
        given = torch.ones_like(depth)
        if weight is not None:
            given = weight[image, 0, row, column].to(depth.dtype)
        place = pad(column.to(depth.dtype)), pad(row.to(depth.dtype))
        # In float64, as in `from_rows`, so that rows and maps give the same results to the bit.
        z = latent.to_latent(depth.double()).to(depth.dtype)
        return cls(*place, pad(z), pad(given))

    @classmethod
    def from_cloud(
        cls,
        xyz: Float[Tensor, "n 3"],
        intrinsics: Camera,
        extrinsics: Float[Tensor, "4 4"] | None,
        size: tuple[int, int],
        sigma: Float[Tensor, "n"] | None = None,
    ) -> "Points":
        """A point cloud as the camera sees it; points keep their place between the pixels.

        Of points on one pixel the nearest is kept. Points hidden from the camera remain: see
        `remove_occluded`.

        Args:
            xyz: points in metres.
            intrinsics: of the camera.
            extrinsics: takes points from the sensor's frame to the camera's; None if they are in
                it already.
            size: height and width of the image.
            sigma: standard deviation of each point in metres.

        Returns:
            The points that fall into the image; `dropped` counts the others.

        Raises:
            ValueError: if no point falls into the image, or cloud or camera have a wrong shape.
        """
        check_camera(intrinsics)
        if xyz.ndim != 2 or xyz.shape[1] != 3:
            raise ValueError(f"the cloud is {list(xyz.shape)}; pass points [n, 3] in metres")
        pose = (torch.eye(4) if extrinsics is None else extrinsics).double()
        moved = xyz.double() @ pose[:3, :3].mT + pose[:3, 3]
        u, v, ahead = project(moved, intrinsics)
        columns = [u, v, moved[:, 2]] + ([] if sigma is None else [sigma.double()])
        rows = torch.stack(columns, 1)[ahead].numpy()
        behind = len(xyz) - len(rows)
        seen = rows[_inside(rows, size)]
        if not len(seen):
            raise ValueError(
                f"no point falls into the image of {size[0]} rows and {size[1]} columns (behind "
                f"the camera: {behind} of {len(xyz)}); check that the extrinsics lead from sensor "
                "to camera (z forward), not back, and that the intrinsics are of this image size"
            )
        points = cls.from_rows(seen).inside(size)
        counts = {
            "behind the camera": behind,
            "outside the camera's view": len(rows) - len(seen),
            SAME_PIXEL: len(seen) - len(points),
        }
        return replace(points, dropped={why: count for why, count in counts.items() if count})

    @classmethod
    def join(cls, sets: Sequence["Points"]) -> "Points":
        """Several sets of points of the same images, one after the other; without their sigma.

        Args:
            sets: of the same images.

        Returns:
            All points.
        """

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(one, name) for one in sets], -1)

        return cls(joined("u"), joined("v"), joined("z"), joined("weight"))

    @classmethod
    def pad(cls, images: Sequence["Points"]) -> "Points":
        """A batch of the points of several images.

        Args:
            images: points of one image each.

        Returns:
            A batch.
        """

        def padded(name: str) -> Tensor:
            parts = [getattr(points, name) for points in images]
            return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)

        sigma = padded("sigma") if all(one.sigma is not None for one in images) else None
        return cls(padded("u"), padded("v"), padded("z"), padded("weight"), sigma)

    def __len__(self) -> int:
        return self.z.shape[-1]

    @property
    def count(self) -> Float[Tensor, "*b"]:
        """Number of points in each image."""
        return (self.weight > 0).sum(-1).to(self.z.dtype)

    @property
    def rows(self) -> Rows:
        """Points of one image as `u v metres` and, if known, sigma in metres."""
        depth = latent.to_depth(self.z)
        sigma = [] if self.sigma is None else [self.sigma * depth]
        return torch.stack([self.u, self.v, depth, *sigma], 1).double().cpu().numpy()

    @property
    def pixel(self) -> tuple[Int[Tensor, "*b n"], Int[Tensor, "*b n"]]:
        """Row and column of the pixel that holds each point."""
        return (self.v + 0.5).floor().long(), (self.u + 0.5).floor().long()

    def to(self, device: torch.device, dtype: torch.dtype) -> "Points":
        """The same points elsewhere.

        Args:
            device: where the tensors go.
            dtype: of the tensors.

        Returns:
            The moved points.
        """
        names = ("u", "v", "z", "weight", "sigma")
        moved = {n: t.to(device, dtype) for n in names if (t := getattr(self, n)) is not None}
        return replace(self, **moved)

    def where(self, keep: Bool[Tensor, "n"] | Int[Tensor, "m"]) -> "Points":
        """Some of the points of one image, by a mask or by their indices.

        Args:
            keep: mask, or indices.

        Returns:
            These points, in the order of the indices.
        """
        names = ("u", "v", "z", "weight", "sigma")
        kept = {n: t[keep] for n in names if (t := getattr(self, n)) is not None}
        return replace(self, **kept)

    def inside(self, size: tuple[int, int], max_depth: float = np.inf) -> "Points":
        """Those of one image inside its borders and up to `max_depth` metres, in reading order.

        Of points on one pixel the nearest is kept. What is left out is counted in `dropped`.

        Args:
            size: height and width of the image.
            max_depth: in metres.

        Returns:
            The points that are left.
        """
        farthest = max_depth * (1 + ROUNDING)
        tests: dict[str, Callable[[Rows], Bool[np.ndarray, " n"]]] = {
            "outside the image": lambda rows: _inside(rows, size),
            f"beyond the largest depth, {max_depth:g} m": lambda rows: rows[:, 2] <= farthest,
            SAME_PIXEL: lambda rows: _nearest(rows, size),
        }
        points, dropped = self, dict(self.dropped)
        for reason, test in tests.items():
            good = test(points.rows)
            _refuse_if_none_left(points.rows, good, reason, size)
            if not good.all():
                dropped[reason] = int((~good).sum())
            points = points.where(torch.from_numpy(good))
        row, column = points.pixel
        order = (row * size[1] + column).argsort()
        return replace(points.where(order), dropped=dropped)

    def with_noise(self, usual: float) -> "Points":
        """The same points with weights from their sigma.

        Even an exact point deviates from the fit, by a variance v of log depth that was learned in
        training. With a sigma, the variance of a point is v + sigma^2, and its precision relative
        to an exact point is v / (v + sigma^2).

        Args:
            usual: v; if it is not known, 0: the median of sigma^2 is then used instead.

        Returns:
            Points whose weights follow from their sigma; the same ones if they have no sigma.
        """
        if self.sigma is None or not len(self):
            return self
        square = self.sigma.square()
        usual = usual or float(square[self.weight > 0].median()) or 1.0
        return replace(self, weight=self.weight * usual / (usual + square))

    def to_map(self, size: tuple[int, int]) -> Depth:
        """Sparse depth map of one image, in metres; 0 where nothing was measured.

        Args:
            size: height and width of the image.

        Returns:
            The map; a point between pixels goes to the nearest.
        """
        depth = torch.zeros(1, *size)
        row, column = self.pixel
        depth[0, row, column] = latent.to_depth(self.z).float()
        return depth


def to_points(points: ArrayLike | Points | None, size: tuple[int, int]) -> Points:
    """The points of one image of height and width `size`, as a user passes them.

    Args:
        points: `Points`; a map of the image's size in metres; rows of `u v metres` or
            `u v metres sigma`; or None.
        size: height and width of the image.

    Returns:
        The points.

    Raises:
        ValueError: if the shape is neither that of a map nor that of rows, or could be both.
    """
    if isinstance(points, Points):
        return points
    readers = "clouds.read_points", "formats.read_depth"
    values = to_numbers([] if points is None else points, "the points", *readers)
    if not values.size:
        values = np.zeros((0, 3))
    rows = values.ndim == 2 and values.shape[1] in (3, 4)
    if rows and values.shape == size:
        raise ValueError(
            f"the points and the image are {list(values.shape)}, so this could be a map or rows; "
            "pass Points.from_map(...) or Points.from_rows(...)"
        )
    if not rows and values.shape != size:
        raise ValueError(
            f"the points are {list(values.shape)}, the image {list(size)} (height, width); "
            "expected a map of that size, or rows of `u v metres` or `u v metres sigma`"
        )
    measured = values[values > 0] if not rows and _is_integer(points) else values[:0]
    if measured.size and np.median(measured) > FAR_M:
        raise ValueError(
            "the map of points holds integers, which look like millimetres; divide it by its "
            "scale, 1000 for millimetres, so that it is in metres"
        )
    return Points.from_rows(values) if rows else Points.from_map(values)


def _is_integer(values: object) -> bool:
    if isinstance(values, Tensor):
        return not values.is_floating_point()
    return isinstance(values, np.ndarray) and values.dtype.kind in "iu"


def check_max_depth(max_depth: float | None) -> float:
    """Check the largest depth of points.

    Args:
        max_depth: in metres; None for any.

    Returns:
        The depth as a number of Python, infinite for None.

    Raises:
        ValueError: if it is not a positive number.
    """
    if max_depth is None:
        return np.inf
    limit = to_number(max_depth, "`max_depth`", "a positive depth in metres")
    if not limit > 0:
        raise ValueError(f"`max_depth` is {max_depth}; pass a positive depth in metres")
    return limit


def distance_to_points(
    rows: Float[np.ndarray, "n columns"], size: tuple[int, ...]
) -> Float[np.ndarray, "h w"]:
    """Distance of each pixel to the nearest point, in pixels; infinite if there is none.

    Args:
        rows: column and row of each point, and any other columns.
        size: height and width of the image.

    Returns:
        A map.
    """
    from scipy.ndimage import distance_transform_edt

    if not len(rows):
        return np.full(size, np.inf, np.float32)
    column, row = np.floor(rows[:, :2] + 0.5).astype(np.int64).T
    empty = np.ones(size, np.bool_)
    empty[row, column] = False
    return np.asarray(distance_transform_edt(empty), np.float32)


def remove_occluded(
    points: Points, size: tuple[int, int], radius: int | None = None, margin: float = 0.15
) -> Points:
    """Drop points that a sensor beside the camera sees but the camera does not.

    Such a point appears behind a nearer surface: a point is dropped if another within `radius`
    pixels is nearer by more than `margin` of its depth. The default radius is about half the
    distance between scan lines: a surface in front has a point that close, while the next scan line
    on a receding road is farther away. Visible points this close to an outline are lost.

    Args:
        points: of one image.
        size: height and width of the image.
        radius: in pixels; by default from the distance between scan lines.
        margin: relative difference of depth.

    Returns:
        The visible points; `dropped` counts the others.
    """
    if not len(points):
        return points
    sparse = points.to_map(size)
    known = sparse > 0
    reach = _reach(known) if radius is None else radius
    nearest = -local_maximum(torch.where(known, -sparse, -torch.inf), reach)
    row, column = points.pixel
    visible = (nearest >= (1 - margin) * sparse)[0, row, column]
    hidden = int((~visible).sum())
    dropped = points.dropped | ({"hidden by a nearer surface": hidden} if hidden else {})
    return replace(points.where(visible), dropped=dropped)


def range_to_depth(ranges: Depth, intrinsics: Camera) -> Depth:
    """Depth along the camera's axis from distances along each pixel's ray; 0 stays 0.

    Args:
        ranges: distances in metres along the rays.
        intrinsics: of the camera, 3 x 3 in pixels.

    Returns:
        z-depth in metres.

    Raises:
        ValueError: if the intrinsics are not those of a camera.
    """
    check_camera(intrinsics)
    row, column = torch.meshgrid(*map(torch.arange, ranges.shape[1:]), indexing="ij")
    pixels = torch.stack([column, row, torch.ones_like(row)], -1).double()
    rays = torch.linalg.solve(intrinsics.double(), pixels[..., None])[..., 0]
    return (ranges / rays.norm(dim=-1)).to(ranges)


def project(
    xyz: Float[Tensor, "n 3"], intrinsics: Camera
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"], Bool[Tensor, "n"]]:
    """Column and row of points in the camera's frame, and which of them are in front of it.

    Args:
        xyz: points in metres in the camera's frame.
        intrinsics: of the camera, 3 x 3 in pixels.

    Returns:
        Column, row and whether a point is in front of the camera.
    """
    ahead = xyz.isfinite().all(1) & (xyz[:, 2] > 0)
    x, y, w = (torch.where(ahead[:, None], xyz, 1).double() @ intrinsics.double().mT).unbind(1)
    return x / w, y / w, ahead


def to_camera(intrinsics: ArrayLike | None) -> Camera:
    """The camera's intrinsics as a user passes them.

    Args:
        intrinsics: of the camera, 3 x 3 in pixels.

    Returns:
        The same in float64.

    Raises:
        ValueError: if they are missing, or not those of a camera.
    """
    if intrinsics is None:
        raise ValueError(f"sizes in metres need the camera's intrinsics; pass {WANTED_CAMERA}")
    values = to_numbers(intrinsics, "the camera's intrinsics", "folder.read_intrinsics")
    camera = torch.from_numpy(values)
    _check_camera_shape(camera)
    check_camera(camera)
    return camera


def check_camera(intrinsics: Camera) -> None:
    """Refuse intrinsics that are not those of a camera.

    Args:
        intrinsics: of the camera, 3 x 3 in pixels.

    Raises:
        ValueError: if they are not.
    """
    _check_camera_shape(intrinsics)
    small = (intrinsics.abs() < LARGEST_CAMERA).all()  # False for NaN
    positive = small and (intrinsics.diagonal() > 1 / LARGEST_CAMERA).all()
    last = torch.allclose(intrinsics[2].double().cpu(), torch.eye(3).double()[2])
    if not (positive and last and torch.linalg.det(intrinsics.double()) > 0):
        raise ValueError(f"the camera's intrinsics are {intrinsics.tolist()}; pass {WANTED_CAMERA}")


def doubt_camera(intrinsics: Camera, size: tuple[int, int]) -> list[str]:
    """A warning if the camera seems to be that of images of another size.

    Args:
        intrinsics: of the camera, 3 x 3 in pixels.
        size: height and width of the image.

    Returns:
        A warning if the principal point is far from the centre of the image, else nothing.
    """
    (cx, cy), (height, width) = intrinsics[:2, 2].tolist(), size
    if max(abs(cx / width - 0.5), abs(cy / height - 0.5)) <= OFF_CENTRE:
        return []
    return [
        f"the principal point of the camera, cx = {cx:.6g} and cy = {cy:.6g}, is far from the "
        f"centre of the image, which is {height} x {width} pixels (height x width); check that the "
        "intrinsics are for images of this size"
    ]


def _check_camera_shape(intrinsics: Tensor) -> None:
    if intrinsics.shape != (3, 3):
        raise ValueError(
            f"the camera's intrinsics are {list(intrinsics.shape)}; pass {WANTED_CAMERA}"
        )


def check_pose(pose: ArrayLike, name: str) -> Float[Tensor, "4 4"]:
    """A rigid transform, 4 x 4 in float64; anything else is refused.

    Args:
        pose: a matrix.
        name: what it is, for the error message.

    Returns:
        The matrix.

    Raises:
        ValueError: if it is not 4 x 4, or its rotation is not one.
    """
    readers = "folder.read_extrinsics", "trajectories.read_trajectory"
    values = torch.from_numpy(to_numbers(pose, name, *readers))
    if values.shape != (4, 4):
        raise ValueError(f"{name} is {list(values.shape)}; expected a 4 x 4 matrix")
    rotation, place = values[:3, :3], values[:3, 3]
    square = rotation @ rotation.mT
    if not torch.allclose(square, torch.eye(3).double(), atol=1e-3) or rotation.det() < 0:
        raise ValueError(
            f"{name} is not a valid pose: its first three columns are not a rotation, "
            f"{rotation.tolist()}"
        )
    if not place.isfinite().all():
        raise ValueError(
            f"{name} is not a valid pose: its fourth column, the translation in metres, is "
            f"{place.tolist()}"
        )
    if not torch.allclose(values[3], torch.eye(4).double()[3]):
        raise ValueError(
            f"{name} is not a valid pose: its last row is {values[3].tolist()}, not 0 0 0 1; is it "
            "transposed?"
        )
    return values


def local_maximum(values: Depth, radius: int) -> Depth:
    """Largest value in the square window around each pixel, as fast for any window.

    Args:
        values: a map.
        radius: of the window, in pixels.

    Returns:
        A map of the same size.
    """
    from scipy.ndimage import maximum_filter1d

    found = values.cpu().numpy()
    for axis in (1, 2):
        found = maximum_filter1d(found, 2 * radius + 1, axis, mode="constant", cval=-np.inf)
    return torch.from_numpy(found).to(values)


def _reach(known: Bool[Tensor, "1 h w"]) -> int:
    """One more than the radius within which COVERED of the pixels between the points have one."""
    from scipy.ndimage import distance_transform_cdt

    _, row, column = known.nonzero(as_tuple=True)
    box = known[0, row.min() : row.max() + 1, column.min() : column.max() + 1]
    distance = distance_transform_cdt(~box.numpy(), "chessboard")
    return int(np.quantile(distance, COVERED, method="inverted_cdf")) + 1


def _inside(rows: Rows, size: tuple[int, int]) -> Bool[np.ndarray, " n"]:
    column, row = np.floor(rows[:, :2] + 0.5).T
    return (column >= 0) & (column < size[1]) & (row >= 0) & (row < size[0])


def _nearest(rows: Rows, size: tuple[int, int]) -> Bool[np.ndarray, " n"]:
    """Which points have no nearer one on their pixel."""
    owner = np.full(size, -1)
    sigma = rows[:, 3] if rows.shape[1] == 4 else np.zeros(len(rows))
    far_first = np.lexsort((-sigma, -rows[:, 2]))  # of equal ones the most certain is last
    column, row = np.floor(rows[:, :2] + 0.5).astype(np.int64).T
    # Where an index is repeated, numpy assigns the last value: the nearest point's.
    owner[row[far_first], column[far_first]] = far_first
    nearest = np.zeros(len(rows), np.bool_)
    nearest[owner[owner >= 0]] = True
    return nearest


def _refuse_if_none_left(
    rows: Rows, good: Bool[np.ndarray, " n"], reason: str, size: tuple[int, int] | None = None
) -> None:
    if good.any() or not len(rows):
        return
    which = "the only point is" if len(rows) == 1 else f"all {len(rows)} points are"
    if size is None:
        raise ValueError(f"{which} {reason}: {_tell_missing(rows)}")
    low, high = rows.min(0), rows.max(0)
    raise ValueError(
        f"{which} {reason}: u (column) from {low[0]:.4g} to {high[0]:.4g}, "
        f"v (row) from {low[1]:.4g} to {high[1]:.4g}, depth from {low[2]:.4g} to {high[2]:.4g} m; "
        f"the image is {size[0]} x {size[1]} pixels (height x width)"
    )


def _tell_missing(rows: Rows) -> str:
    """What of the points is not a number, and which depths mean no measurement."""
    names = ("u (column)", "v (row)", "depth", "sigma")
    lost = [
        f"{name} is NaN or infinite"
        for name, column in zip(names, rows.T, strict=False)
        if name != "depth" and not np.isfinite(column).all()
    ]
    valid = latent.is_valid(torch.from_numpy(np.ascontiguousarray(rows[:, 2])))
    return " or ".join([*lost, *([] if valid.all() else ["depth is 0, NaN or infinite"])])


def _check_maps(sparse: Tensor, weight: Tensor | None) -> None:
    if sparse.ndim != 4 or sparse.shape[1] != 1 or not sparse.is_floating_point():
        raise ValueError(
            f"sparse depth is {sparse.dtype} {list(sparse.shape)}; expected floating point metres "
            "[batch, 1, height, width]"
        )
    if weight is not None and weight.shape != sparse.shape:
        raise ValueError(
            f"weights are {list(weight.shape)} but the sparse depth is {list(sparse.shape)}; "
            "pass one weight for each pixel"
        )
    negative = (sparse < 0) & (sparse != -torch.inf)
    if negative.any():
        image, _, row, column = negative.nonzero()[0].tolist()
        raise ValueError(
            f"sparse depth is negative, first in image {image} at row {row}, column {column}: "
            f"{float(sparse[image, 0, row, column]):.4g} m; depth is in metres, "
            "and 0, NaN or infinity mean no measurement"
        )
