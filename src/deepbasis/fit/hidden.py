# SPDX-License-Identifier: Apache-2.0
"""Points that the camera does not see: a sensor beside it looks behind the edges of objects.

Such a point is surrounded by points of the object that hides it, which is nearer. A point beside
the edge of an object has nearer points on one side only.
"""

import math

import torch
from torch import Tensor

from deepbasis.shapes import Bool, Float

# Largest distance of points that hide another one, in image widths.
REACH = 0.0065
# They are nearer by this factor at least, in natural logarithms.
NEARER = math.log(1.3)
# They lie in so many of the four quadrants around it.
QUADRANTS = 3


def find_hidden(position: Float[Tensor, "n 2"], z: Float[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Which points of one image lie behind a surface that other points measured.

    Args:
        position: row and column in image widths.
        z: log depth.
    """
    from scipy.spatial import cKDTree

    tree = cKDTree(position.detach().double().cpu().numpy())
    pairs = torch.from_numpy(tree.query_pairs(REACH, output_type="ndarray")).to(z.device)
    behind, before = torch.cat([pairs, pairs.flip(1)]).long().unbind(1)
    hides = z[behind] - z[before] > NEARER
    behind, offset = behind[hides], (position[before] - position[behind])[hides]
    quadrant = 2 * (offset[:, 0] > 0) + (offset[:, 1] > 0)
    hidden_from = torch.zeros(len(z), 4, dtype=torch.bool, device=z.device)
    hidden_from[behind, quadrant] = True
    return hidden_from.sum(1) >= QUADRANTS
