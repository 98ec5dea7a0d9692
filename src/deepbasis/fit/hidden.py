# SPDX-License-Identifier: Apache-2.0
"""Points that the camera does not see: a sensor beside it looks behind the edges of objects.

Such a point is surrounded by points of the object that hides it, which is nearer. A point beside
the edge of an object has nearer points on one side only.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepbasis.shapes import Bool, Float, Int

# Largest distance of points that hide another one, in image widths.
REACH = 0.0065
# They are nearer by this factor at least, in natural logarithms.
NEARER = math.log(1.3)
# They lie in so many of the four quadrants around it.
QUADRANTS = 3
# Points whose neighbours are searched at a time.
CHUNK = 10_000


def find_hidden(position: Float[Tensor, "n 2"], z: Float[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Which points of one image lie behind a surface that other points measured.

    Args:
        position: row and column in image widths.
        z: log depth.
    """
    from scipy.spatial import cKDTree

    places, depth = position.detach().double().cpu().numpy(), z.detach().double().cpu().numpy()
    hidden = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    some = np.flatnonzero(depth - _nearest_around(places, depth) > NEARER)
    tree = cKDTree(places)
    for start in range(0, len(some), CHUNK):
        part = some[start : start + CHUNK]
        near = tree.query_ball_point(places[part], REACH)
        behind = np.repeat(part, [len(one) for one in near])
        pairs = torch.from_numpy(np.stack([behind, np.concatenate(near).astype(np.int64)]))
        hidden |= _is_surrounded(position, z, *pairs.to(z.device))
    return hidden


def _nearest_around(places: npt.NDArray[Any], depth: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """For each point a lower bound of the depths within `REACH`: cells and those around them."""
    if not len(places):
        return depth
    row, column = ((places - places.min(0)) / REACH).astype(np.int64).T
    cells = np.full((row.max() + 3, column.max() + 3), np.inf)
    np.minimum.at(cells, (row + 1, column + 1), depth)
    shifts = [(down, right) for down in range(3) for right in range(3)]
    return np.min([cells[row + down, column + right] for down, right in shifts], axis=0)


def _is_surrounded(
    position: Float[Tensor, "n 2"],
    z: Float[Tensor, "n"],
    behind: Int[Tensor, "p"],
    before: Int[Tensor, "p"],
) -> Bool[Tensor, "n"]:
    """Which of some pairs' first points have nearer ones in enough quadrants."""
    hides = z[behind] - z[before] > NEARER
    behind, offset = behind[hides], (position[before] - position[behind])[hides]
    quadrant = 2 * (offset[:, 0] > 0) + (offset[:, 1] > 0)
    hidden_from = torch.zeros(len(z), 4, dtype=torch.bool, device=z.device)
    hidden_from[behind, quadrant] = True
    return hidden_from.sum(1) >= QUADRANTS
