# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbours: an ordering of the points, and the nearest points of points and of pixels.

Where a place has fewer than k neighbours, slot j holds the index n + j of a missing point, which
`correlated` places far away.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.shapes import Bool, Float, Int

Array = npt.NDArray[Any]

# Possible sides of the square blocks of pixels that share their neighbours, largest first.
SIDES = (8, 6, 4, 3, 2, 1)
# Rings of pixels by which blocks of each side overlap the blocks around them. Of smaller blocks one
# does not see the borders, and they would cost several times as much.
RINGS = {8: 1, 6: 1, 4: 1}
# Average number of points in a block up to which sharing has no noticeable effect on accuracy.
SHARED = 2
# Points looked at for each neighbour that is taken, and how much sparser those of a further search
# are.
CANDIDATES, SPARSER = 3, 8
# Bits of a coordinate in the Z-order curve: finer than the pixels of any image.
BITS = 16


def coarse_to_fine(position: Float[Tensor, "n 2"]) -> Int[Tensor, "n"]:
    """Order in which the first points, however many, are spread over all of them.

    The points are sorted along a Z-order curve and taken at its middle, its quarters, its eighths
    (bit-reversed indices). Such orders make the best use of few neighbours (Guinness, Technometrics
    60, 2018). This one is deterministic and does not depend on the order of the input, except for
    points at the same place.
    """
    return torch.from_numpy(_coarse_to_fine(_to_array(position))).to(position.device)


def earlier(position: Float[Tensor, "n 2"], k: int) -> Int[Tensor, "n k"]:
    """For each point, at most k near points that come before it from coarse to fine.

    The sorted points are processed in parts, each as large as all before it. Then at least half of
    the points near a new one precede it, and few more than k of its nearest need to be searched.
    """
    points, n = _to_array(position), len(position)
    order = _coarse_to_fine(points)
    points, searched = points[order], 3 * k // 2 + 1
    found = np.empty((n, k), dtype=np.int64)
    start = 0
    while start < n:
        stop = min(max(2 * start, searched), n)
        near = query(make_tree(points[:stop]), points[start:stop], searched, p=2)
        before = near < np.arange(start, stop)[:, None]
        nearest = np.argsort(~before, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(near, nearest, 1), np.take_along_axis(before, nearest, 1)
        found[start:stop] = np.where(kept[1], kept[0], n + np.arange(k))
        start = stop
    index = np.concatenate([order, n + np.arange(k)])
    back = np.empty_like(order)
    back[order] = np.arange(n)
    return torch.from_numpy(index[found][back]).to(position.device)


def others(
    position: Float[Tensor, "n 2"],
    k: int,
    used: Bool[Tensor, "n"] | None = None,
    which: Int[Tensor, "q"] | None = None,
) -> Int[Tensor, "q k"]:
    """For each point its k nearest other points, of those in use; places must be distinct.

    `which` are the points that are asked for, by default all.
    """
    points, n = _to_array(position), len(position)
    kept = np.ones(n, np.bool_) if used is None else used.cpu().numpy()
    asked = np.arange(n) if which is None else which.cpu().numpy()
    index = np.concatenate([np.flatnonzero(kept), np.full(k + 1, n)])
    near = index[query(make_tree(points[kept]), points[asked], k + 1, p=2)]
    # The nearest of a point in use is the point itself.
    near = np.where(kept[asked, None], near[:, 1:], near[:, :-1])
    return torch.from_numpy(np.where(near < n, near, n + np.arange(k))).to(position.device)


class Others:
    """`others` for several choices of the points in use, searched once."""

    def __init__(self, position: Float[Tensor, "n 2"], k: int) -> None:
        self.position, self.k = position, k
        self.near = others(position, 2 * k)

    def of(self, used: Bool[Tensor, "n"]) -> Int[Tensor, "n k"]:
        """For each point its k nearest other points, of those in use."""
        there = F.pad(used, (0, 2 * self.k))[self.near]
        first = (~there).to(torch.uint8).argsort(dim=1, stable=True)[:, : self.k]
        near, few = self.near.gather(1, first), (there.sum(1) < self.k).nonzero()[:, 0]
        if len(few):  # some are further away
            near = near.index_copy(0, few, others(self.position, self.k, used, few))
        return near


class Surroundings:
    """Points of one image, searched for those that surround a place.

    The nearest points of a place between two scan lines may all lie on one of these, and say little
    about the other side. So two thirds of the neighbours are taken from the four quadrants around a
    place, as in geostatistics: the nearest k / 6 of each. The others are the nearest of the rest.
    What is nearest may be decided by another distance than that in the image.
    """

    def __init__(self, position: Float[Tensor, "n 2"]) -> None:
        self.points, self.device = _to_array(position), position.device
        self.tree = make_tree(self.points)
        # A sparser set has points farther away at the same cost.
        self.some = _coarse_to_fine(self.points)[: max(len(self.points) // SPARSER, 1)]
        self.sparser = make_tree(self.points[self.some])

    def of(
        self,
        at: Float[Tensor, "p 2"],
        k: int,
        within: float = 0.0,
        p: float = 2,
        features: tuple[Float[Tensor, "_ f"], Float[Tensor, "p f"]] | None = None,
    ) -> Int[Tensor, "p k"]:
        """The neighbours of each place; first of all points nearer than `within`, in the p-norm.

        Args:
            at: the places.
            k: how many neighbours.
            within: distance below which a point is always taken.
            p: norm of this distance, and of the search.
            features: of the points, with at least one missing point, and of the places: the nearest
                of the points that were found are chosen by the distance between features. By
                default by that of the search.
        """
        n, places = len(self.points), _to_array(at)
        distance, found = query_distances(self.tree, places, CANDIDATES * k, p)
        if n > CANDIDATES * k:
            further, far = query_distances(self.sparser, places, k, p)
            far = np.append(self.some, n)[far.clip(max=len(self.some))]
            # Those within reach of the first search were found by it.
            reach = np.where(found < n, distance, 0).max(1, keepdims=True)
            far[further <= reach] = n
            found = np.concatenate([found, far], 1)
            distance = np.concatenate([distance, further], 1)
        if features is not None:
            points, own = (part.detach().float().cpu().numpy() for part in features)
            apart = points[found.clip(max=n)] - own[:, None]
            apart = np.einsum("qkf,qkf->qk", apart, apart)
            order = np.argsort(apart, axis=1, kind="stable")
            found, distance = (np.take_along_axis(part, order, 1) for part in (found, distance))
        return torch.from_numpy(self._choose(found, distance, places, k, within)).to(self.device)

    def _choose(self, found: Array, distance: Array, places: Array, k: int, within: float) -> Array:
        n = len(self.points)
        index, there = found.clip(max=n), found < n
        below, right = (
            np.append(self.points[:, axis], np.inf)[index] > places[:, axis, None]
            for axis in (0, 1)
        )
        later = np.zeros(found.shape, dtype=np.int8)
        for quadrant in (below & right, below & ~right, ~below & right, ~below & ~right):
            inside = quadrant & there
            later |= inside & (np.cumsum(inside, 1, dtype=np.int16) > max(k // 6, 1))
        later[there & (distance <= within)] = -1
        later[~there] = 2
        order = np.argsort(later, axis=1, kind="stable")[:, :k]
        chosen = np.take_along_axis(found, order, 1)
        return np.where(chosen < n, chosen, n + np.arange(k))


def make_tree(points: Array) -> Any:
    """A k-d tree; scipy is imported here, since not every fit needs it."""
    from scipy.spatial import cKDTree

    return cKDTree(points, balanced_tree=False, compact_nodes=False)


def query(tree: Any, at: Array, k: int, p: float) -> Array:
    """The k nearest points in the p-norm; n + j in slot j where there are fewer."""
    return query_distances(tree, at, k, p)[1]


def query_distances(tree: Any, at: Array, k: int, p: float) -> tuple[Array, Array]:
    """`query`, and the distances; infinite where there are fewer points."""
    there = min(k, tree.n)
    distance, near = np.full((len(at), k), np.inf), np.empty((len(at), k), dtype=np.int64)
    near[:] = tree.n + np.arange(k)
    if there and len(at):
        found = tree.query(at, range(1, there + 1), p=p, workers=torch.get_num_threads())
        distance[:, :there], near[:, :there] = found
    return distance, near


def choose_side(pixels: Float[Tensor, "n 2"], size: tuple[int, int], k: int) -> int:
    """Side of the blocks that share neighbours: few points lie in a block, and never more than k in
    a block and its ring, so that all of these can be its neighbours.
    """
    height, width = size
    # Places just inside the border may be rounded beyond it.
    inside = pixels.round().long().clamp(min=0).minimum(torch.tensor(size) - 1)
    row, column = inside.unbind(-1)
    count = torch.bincount(row * width + column, minlength=height * width).float()
    for side in SIDES[:-1]:
        if side * side * len(pixels) > SHARED * height * width:
            continue
        ring = RINGS.get(side, 0)
        beyond = (ring, ring + -width % side, ring, ring + -height % side)
        padded, whole = F.pad(count.view(1, height, width), beyond), side + 2 * ring
        if F.avg_pool2d(padded, whole, side).max() * whole**2 < k + 0.5:
            return side
    return SIDES[-1]


def _to_array(position: Tensor) -> Array:
    return position.detach().double().cpu().numpy()


def _coarse_to_fine(points: Array) -> Array:
    n = len(points)
    if n == 0:
        return np.empty(0, dtype=np.int64)
    low = points.min(0)
    extent = max((points - low).max(), np.finfo(float).tiny)
    cells = ((points - low) / extent * (2**BITS - 1)).astype(np.int64)
    along = (2 * _spread(cells[:, 0]) + _spread(cells[:, 1])).argsort(kind="stable")
    reverse = np.zeros(n, dtype=np.int64)
    for bit in range(n.bit_length()):
        reverse = 2 * reverse + (np.arange(n) >> bit & 1)
    return along[reverse.argsort()]


def _spread(cells: Array) -> Array:
    """Insert a zero between any two of the 16 bits."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        cells = (cells | cells << shift) & mask
    return cells
