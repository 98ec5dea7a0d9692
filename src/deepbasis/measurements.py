# SPDX-License-Identifier: Apache-2.0
"""Measurements: those in sparse depth maps, padded to one count, and those that users pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from deepbasis import latent
from deepbasis.shapes import Bool, Float, Int

Rows = Float[np.ndarray, "n columns"]


class Measurements(NamedTuple):
    """Measurements of a batch, padded with weight 0 to the largest count."""

    row: Int[Tensor, "b n"]
    column: Int[Tensor, "b n"]
    z: Float[Tensor, "b n"]
    weight: Float[Tensor, "b n"]


def gather_points(
    sparse: Float[Tensor, "b 1 h w"], weight: Float[Tensor, "b 1 h w"] | None = None
) -> Measurements:
    """Find the measurements in sparse depth maps; 0, NaN and infinity mean none."""
    _check_sparse(sparse, weight)
    image, _, row, column = latent.measured(sparse).nonzero(as_tuple=True)
    count = torch.bincount(image, minlength=len(sparse))
    slot = torch.arange(len(image), device=image.device) - (count.cumsum(0) - count)[image]
    shape = (len(sparse), int(count.max()) if len(count) else 0)

    def pad(values: Tensor) -> Tensor:
        return values.new_zeros(shape).index_put_((image, slot), values)

    depth = sparse[image, 0, row, column]
    trust = torch.ones_like(depth) if weight is None else weight[image, 0, row, column]
    return Measurements(pad(row), pad(column), pad(latent.to_latent(depth)), pad(trust))


def _check_sparse(sparse: Tensor, weight: Tensor | None) -> None:
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


@dataclass(frozen=True)
class Given:
    """The measurements of one image as a user passed them, brought to its pixels."""

    sparse: Float[Tensor, "1 1 h w"]
    """Metres; 0 where nothing was measured."""
    sigma: Float[Tensor, "1 1 h w"] | None
    """Standard deviation of the measurements in metres, if they came with one."""
    dropped: dict[str, int]
    """How many measurements are not used, by the reason."""

    @classmethod
    def of(cls, sparse: ArrayLike | None, size: tuple[int, int], max_depth: float) -> "Given":
        """Read a map of height and width `size`, or rows of `u v metres` or `u v metres sigma`.

        u is the column and v the row; the centre of the top left pixel is at (0, 0). Of points on
        one pixel the nearest is kept, as `sparse.project` does.
        """
        points = _to_rows(sparse, size)
        negative = np.isfinite(points) & (points < 0)
        if negative[:, 2:].any():
            row = points[negative[:, 2:].any(1)][0]
            raise ValueError(
                f"a depth or sigma is negative, first of the point {row.tolist()}; both are in "
                "metres, and a depth of 0, NaN or infinity means no measurement"
            )
        dropped: dict[str, int] = {}
        tests: dict[str, Callable[[Rows], Bool[np.ndarray, " n"]]] = {
            "without a measurement": lambda p: np.isfinite(p).all(1) & (p[:, 2] > 0),
            "outside the image": lambda p: _inside(p, size),
            f"beyond the largest depth, {max_depth:g} m": lambda p: p[:, 2] <= max_depth,
            "behind another point on its pixel": lambda p: _nearest(p, size),
        }
        for reason, test in tests.items():
            good = test(points)
            if not good.all():
                dropped[reason] = int((~good).sum())
            if len(good) and not good.any():
                raise ValueError(f"all {len(points)} points are {reason}: {_extent(points)}")
            points = points[good]
        maps = torch.zeros(2, 1, 1, *size)
        values = torch.from_numpy(points[:, [2, -1]].T).float()
        maps[:, 0, 0, _pixel(points, 1), _pixel(points, 0)] = values
        return cls(maps[0], maps[1] if points.shape[1] == 4 else None, dropped)

    @property
    def points(self) -> Float[np.ndarray, "n columns"]:
        """Measurements in use, in reading order: u, v, metres and, if known, sigma."""
        row, column = self.sparse[0, 0].nonzero(as_tuple=True)
        maps = [self.sparse] if self.sigma is None else [self.sparse, self.sigma]
        return torch.stack([column, row, *(m[0, 0, row, column] for m in maps)], 1).double().numpy()

    def weight(self, usual: float) -> Float[Tensor, "1 1 h w"] | None:
        """Relative precision of each measurement, from its sigma.

        Divided by the depth, a sigma in metres is one in the latent, s. It adds to what no fit
        explains at any point, however well measured: a variance v, which training found. So the
        variance of a point is v + s^2, and its precision, relative to a perfect point's, is
        v / (v + s^2).

        Args:
            usual: v; 0 if it is not known, and then the median point's s^2 takes its place.
        """
        if self.sigma is None:
            return None
        known = self.sparse > 0
        square = torch.where(known, self.sigma / torch.where(known, self.sparse, 1), 0).square()
        usual = usual or float(square[known].median() if known.any() else 0) or 1.0
        return usual / (usual + square)


def _to_rows(sparse: ArrayLike | None, size: tuple[int, int]) -> Rows:
    rows = np.zeros(size) if sparse is None else np.asarray(sparse, np.float64)
    if rows.shape == size:
        row, column = np.nonzero(np.isfinite(rows) & (rows != 0))
        return np.stack([column, row, rows[row, column]], 1)
    if rows.ndim != 2 or rows.shape[1] not in (3, 4):
        raise ValueError(
            f"sparse depth is {list(rows.shape)}, the image {list(size)} (height, width); "
            "expected a map of that size, or rows of `u v metres` or `u v metres sigma`"
        )
    return rows


def _pixel(points: Rows, axis: int) -> Int[np.ndarray, " n"]:
    return np.floor(points[:, axis] + 0.5).astype(np.int64)


def _inside(points: Rows, size: tuple[int, int]) -> Bool[np.ndarray, " n"]:
    column, row = _pixel(points, 0), _pixel(points, 1)
    return (column >= 0) & (column < size[1]) & (row >= 0) & (row < size[0])


def _nearest(points: Rows, size: tuple[int, int]) -> Bool[np.ndarray, " n"]:
    """Which points have no nearer one on their pixel."""
    owner = np.full(size, -1)
    far_first = np.argsort(-points[:, 2])
    # Where an index is repeated, numpy assigns the last value: the nearest point's.
    owner[_pixel(points, 1)[far_first], _pixel(points, 0)[far_first]] = far_first
    nearest = np.zeros(len(points), np.bool_)
    nearest[owner[owner >= 0]] = True
    return nearest


def _extent(points: Rows) -> str:
    """Where points are, for a message."""
    low, high = points.min(0), points.max(0)
    return (
        f"u (column) from {low[0]:.4g} to {high[0]:.4g}, v (row) from {low[1]:.4g} to "
        f"{high[1]:.4g}, depth from {low[2]:.4g} to {high[2]:.4g} m"
    )
