# SPDX-License-Identifier: Apache-2.0
"""Linear interpolation of sparse depth on the Delaunay triangulation.

Scipy's LinearNDInterpolator gives the same values, but is slower for more than a few thousand
points, since it inverts a matrix for each triangle. Here all triangles are cut into rows of pixels
at once; most of the time is spent in Qhull's triangulation.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import distance_transform_edt
from scipy.spatial import Delaunay
from torch import Tensor

from deepbasis.latent import is_valid
from deepbasis.shapes import Bool, Float

Array = npt.NDArray[Any]

# The column where an edge crosses a row is a multiple of 1 / (rows that it spans), computed with an
# error below 1e-11. With a tolerance in between, exactly the pixels on an edge count as inside.
ON_EDGE = 1e-7


def scaffold(sparse: Float[Tensor, "1 h w"]) -> Float[Tensor, "1 h w"]:
    """Interpolated depth in metres, in the convex hull of the points.

    Measured pixels keep their depth; outside the hull, depth is 0. Collinear points, or fewer than
    three, have no triangles: then every pixel has the depth of its nearest point. Without points
    everything is 0.

    Examples:
        >>> sparse = torch.zeros(1, 3, 4)
        >>> sparse[0, 0, 0], sparse[0, 2, 0], sparse[0, 0, 2] = 1.0, 3.0, 2.0
        >>> scaffold(sparse)[0]
        tensor([[1.0000, 1.5000, 2.0000, 0.0000],
                [2.0000, 2.5000, 0.0000, 0.0000],
                [3.0000, 0.0000, 0.0000, 0.0000]])
    """
    known = is_valid(sparse)
    depth = torch.where(known, sparse, 0)
    row, column = known[0].cpu().numpy().nonzero()
    if len(row) == 0:
        return depth
    if _on_one_line(row, column):
        return _nearest(depth, known)
    z = depth[known].double().cpu().numpy()
    between = torch.from_numpy(_interpolate(row, column, z, known[0].shape)).to(depth)
    return torch.where(known, depth, between)


def _on_one_line(row: Array, column: Array) -> bool:
    """Whether all points are collinear; exact, since it is computed in integers."""
    down, right = row - row[0], column - column[0]
    return not (down * right[-1] - right * down[-1]).any()


def _nearest(depth: Float[Tensor, "1 h w"], known: Bool[Tensor, "1 h w"]) -> Tensor:
    """Depth of the nearest point of each pixel."""
    empty = ~known[0].cpu().numpy()
    at = distance_transform_edt(empty, return_distances=False, return_indices=True)
    row, column = torch.from_numpy(at).long().to(depth.device)
    return depth[:, row, column]


def _interpolate(row: Array, column: Array, z: Array, size: torch.Size) -> Array:
    """Depth on the triangles between the points, 0 elsewhere."""
    corners = Delaunay(np.stack([column, row], 1)).simplices
    corners = np.take_along_axis(corners, row[corners].argsort(1), 1).T
    x, y = column[corners], row[corners]
    # Qhull may create triangles without area between cocircular points; others cover them.
    solid = _double_area(x, y) != 0
    x, y, z = x[:, solid], y[:, solid], z[corners[:, solid]]
    slope_x, slope_y = _slopes(x, y, z)
    triangle, span_row, first, last = _spans(x, y)
    at_zero = z[0] - slope_x * x[0] - slope_y * y[0]
    left = at_zero[triangle] + slope_x[triangle] * first + slope_y[triangle] * span_row
    span, step = _count_up(last - first + 1)
    depth = np.zeros(size.numel())
    pixel = (span_row * size[1] + first)[span] + step
    depth[pixel] = left[span] + slope_x[triangle][span] * step
    return depth.reshape(1, *size)


def _slopes(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """Slope of depth along columns and rows, on each triangle."""
    area = _double_area(x, y)
    return _double_area(z, y) / area, _double_area(x, z) / area


def _double_area(x: Array, y: Array) -> Array:
    """Twice the signed area of triangles."""
    return (x[1] - x[0]) * (y[2] - y[0]) - (x[2] - x[0]) * (y[1] - y[0])


def _spans(x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Cut triangles into rows of pixels: triangle, row, first and last column of each.

    Corners are sorted from top to bottom. The row of the middle corner divides a triangle into two
    parts; each lies between the long edge, from top to bottom, and one of the two short edges.
    """
    upper, lower = y[1] - y[0], y[2] - y[1]
    long = (x[2] - x[0]) / (upper + lower)
    # A short edge of height 0 spans no row, so its slope does not matter.
    short = np.concatenate([x[1] - x[0], x[2] - x[1]]) / np.maximum([upper, lower], 1).ravel()
    half, step = _count_up(np.concatenate([upper, lower + 1]))
    triangle = half % x.shape[1]
    row = np.concatenate([y[0], y[1]])[half] + step
    on_long = x[0, triangle] + long[triangle] * (row - y[0, triangle])
    on_short = np.concatenate([x[0], x[1]])[half] + short[half] * step
    first = np.ceil(np.minimum(on_long, on_short) - ON_EDGE).astype(int)
    last = np.floor(np.maximum(on_long, on_short) + ON_EDGE).astype(int)
    return triangle, row, first, last


def _count_up(lengths: Array) -> tuple[Array, Array]:
    """Index of each run, repeated, and position in it: [2, 1] gives [0, 0, 1] and [0, 1, 0]."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    return run, np.arange(len(run)) - (lengths.cumsum() - lengths)[run]
