# SPDX-License-Identifier: Apache-2.0
"""Whole maps from the posterior of correlated errors, and what one more measurement would change.

A map is the mean plus a deviation, which is drawn:

    deviation(p) = phi' (w - m) + s(p) delta'(p),   w ~ N(m, R R'),
    delta' given w: the Gaussian process that is -Phi_S (w - m) at the points, up to their noise.

`simulate` draws delta' from coarse to fine (sequential Gaussian simulation; Deutsch and Journel,
GSLIB, section V.2.3). The coarsest lattice of pixels is drawn at once, from its whole covariance.
Then the lattice is refined: first the centres of its squares are drawn, then the middles of their
sides, each given the nearest points and the nearest pixels that were drawn before. `b` is that
of `fit.correlated`; amplitudes are divided out here as there.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.fit.correlated import Field, combine
from deepbasis.fit.kernel import LEAST_NOISE, condition, condition_each
from deepbasis.shapes import Float, Int

# Pixels of the coarsest lattice, at most: their covariance is factored as a whole.
DENSE = 400
# Points that a pixel of a finer lattice is conditioned on, besides the pixels around it.
NEAREST_POINTS = 4
# Pixels drawn at a time: their matrices stay in the processor's cache.
BLOCK = 2048

# Steps to the pixels around the centre of a square, and around the middle of a side, which were
# drawn before it, in halves of the lattice's spacing.
AROUND_CENTRE = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
AROUND_MIDDLE = [(-1, 0), (1, 0), (0, -1), (0, 1)]
FARTHER_CENTRE = [(a, b) for a in (-3, -1, 1, 3) for b in (-3, -1, 1, 3) if abs(a) != abs(b)]
FARTHER_MIDDLE = [(a, b) for a in (-2, -1, 1, 2) for b in (-2, -1, 1, 2) if abs(a) != abs(b)]


class Kriged(NamedTuple):
    """Pixels given the points near them, and the covariance of what these do not predict."""

    near: Int[Tensor, "p k"]
    b: Float[Tensor, "p k"]
    cov: Float[Tensor, "p p"]
    """Relative to 1 / beta, without the nugget."""


def krige(field: Field, row: Int[Tensor, "p"], column: Int[Tensor, "p"]) -> Kriged:
    """Condition some pixels on the points that `correlated.predict` uses for each of them.

    The errors of these predictions, delta'(p) - b' (delta'_S + eps_S), are linear in the process,
    so their covariance is exact. Its diagonal is that of `predict`, except at borders of blocks,
    where `predict` blends two blocks.
    """
    kernel = field.kernel
    at, near = field.places_of(row * field.size[1] + column), neighbours_of(field, row, column)
    b, _ = condition(kernel, at[:, None], field.places[near], field.noise[near])
    used, index = torch.unique(near, return_inverse=True)
    both = torch.cat([at, field.places[used]])
    cov = kernel.correlation(both, both).double()
    cov.diagonal()[len(at) :].add_(field.noise[used])
    weights = torch.zeros(len(at), len(used), dtype=torch.float64, device=at.device)
    weights.scatter_(1, index, b[:, 0].double())
    linear = torch.cat([torch.eye(len(at)).to(weights), -weights], 1)
    return Kriged(near, b[:, 0], linear @ cov @ linear.mT)


@torch.no_grad()
def simulate(
    field: Field,
    known: Float[Tensor, "n s"],
    rows: Int[Tensor, "h"],
    columns: Int[Tensor, "w"],
    normal: Callable[[int], Float[Tensor, "_ s"]],
    *,
    dense: int = DENSE,
) -> Float[Tensor, "h w s"]:
    """Draw s deviations delta' at a lattice of pixels, in units of 1 / sqrt(beta).

    Args:
        field: the points and the kernel.
        known: -Phi_S (w - m) of each sample, in the same units: the process at the points.
        rows: of the lattice, evenly spaced.
        columns: of the lattice, evenly spaced.
        normal: draws this many rows of s numbers from the standard normal distribution.
        dense: pixels of the coarsest lattice, at most.
    """
    height, width, n = len(rows), len(columns), len(field.places)
    row, column = (x.flatten() for x in torch.meshgrid(rows, columns, indexing="ij"))
    places = torch.cat([field.places, field.places_of(row * field.size[1] + column)])
    exact = field.noise.new_full((len(row),), LEAST_NOISE)
    noise = torch.cat([field.noise, exact])
    values = torch.zeros(len(places), known.shape[1], dtype=known.dtype, device=known.device)
    values[: len(known)] = known
    points = neighbours_of(field, row, column)

    stride = 1
    while -(-height // stride) * -(-width // stride) > dense:
        stride *= 2
    lattice = torch.arange(height * width, device=row.device).view(height, width)
    first = lattice[::stride, ::stride].flatten()
    start = krige(field, row[first], column[first])
    start.cov.diagonal().add_(LEAST_NOISE)
    root = torch.linalg.cholesky(start.cov).to(values)
    values[n + first] = combine(start.near, start.b, values) + root @ normal(len(first))
    for node, around in _refine(lattice, stride, n):
        for part in torch.split(torch.arange(len(node), device=node.device), BLOCK):
            at, drawn = places[n + node[part]], around[part]
            near = torch.cat([drawn, _nearest(places, at, points[node[part]])], 1)
            b, left = condition_each(field.kernel, at, places[near], noise[near])
            new = combine(near, b, values) + left.sqrt().to(values)[:, None] * normal(len(part))
            values[n + node[part]] = new
    return values[n:].view(height, width, -1)


def choose_measurements(
    cov: Float[Tensor, "p p"],
    noise: Float[Tensor, "p"],
    count: int,
) -> Int[Tensor, "count"]:
    """Places whose measurement lowers the sum of all variances most, each given those before it.

    Measuring c, with noise, lowers the variance of p by cov(p, c)^2 / (cov(c, c) + noise(c)).
    """
    cov = cov.clone()
    chosen: list[int] = []
    # Without noise, nothing is left of the variance of a place that was measured.
    least = torch.finfo(cov.dtype).eps * (cov.diagonal() + noise).max()
    for _ in range(count):
        var = (cov.diagonal() + noise).clamp(min=least)
        gain = cov.square().sum(0) / var
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        cov -= torch.outer(cov[:, best], cov[best]) / var[best]
    return torch.tensor(chosen, device=cov.device)


def neighbours_of(
    field: Field, row: Int[Tensor, "p"], column: Int[Tensor, "p"]
) -> Int[Tensor, "p k"]:
    """The points near each pixel: as in `Field.blocks`, those of its block."""
    side = field.side
    return field.near[row // side * field.across + column // side].long()


def _refine(
    lattice: Int[Tensor, "h w"], stride: int, start: int
) -> Iterator[tuple[Int[Tensor, "q"], Int[Tensor, "q k"]]]:
    """Pixels that can be drawn together, and places of the pixels around them, coarse to fine.

    Place `start` is the first of the pixels; those before it are missing points.
    """
    height, width = lattice.shape
    while stride > 1:
        half, stride = stride // 2, stride // 2
        step = 2 * half
        for firsts, around in (
            ([(half, half)], AROUND_CENTRE + FARTHER_CENTRE),
            ([(half, 0), (0, half)], AROUND_MIDDLE + FARTHER_MIDDLE),
        ):
            node = torch.cat([lattice[i::step, j::step].flatten() for i, j in firsts])
            steps = half * torch.tensor(around, device=node.device)
            i, j = node[:, None] // width + steps[:, 0], node[:, None] % width + steps[:, 1]
            inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
            missing = start - 1 - torch.arange(len(around), device=node.device)
            yield node, torch.where(inside, start + i * width + j, missing)


def _nearest(
    places: Float[Tensor, "_ f"], at: Float[Tensor, "q f"], near: Int[Tensor, "q k"]
) -> Int[Tensor, "q j"]:
    """The nearest of the points around each place."""
    apart = (places[near] - at[:, None]).square().sum(-1)
    return near.gather(1, apart.topk(min(NEAREST_POINTS, near.shape[1]), largest=False)[1])
