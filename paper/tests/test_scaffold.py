# SPDX-License-Identifier: Apache-2.0
"""The scaffold against scipy's interpolator, a plane it must reproduce, and degenerate points."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import ConvexHull, Delaunay

from deepbasis_paper.scaffold import scaffold

SIZE = (48, 64)


def make_sparse(count, generator, size=SIZE):
    """Depths of 1 to 5 m at random pixels."""
    sparse = torch.zeros(size[0] * size[1])
    at = torch.randperm(len(sparse), generator=generator)[:count]
    sparse[at] = 1 + 4 * torch.rand(count, generator=generator)
    return sparse.view(1, *size)


def from_points(points, size=SIZE):
    sparse = torch.zeros(1, *size)
    for (row, column), depth in points.items():
        sparse[0, row, column] = depth
    return sparse


def scan_lines(generator, size=SIZE):
    sparse = torch.zeros(1, *size)
    for row in range(5, size[0] - 5, 6):
        for column in range(3, size[1] - 2):
            depth = 2 + torch.rand((), generator=generator)
            sparse[0, round(row + 0.05 * column), column] = depth
    return sparse


def reference(sparse):
    """Scipy on the same triangulation; NaN outside."""
    row, column = sparse[0].numpy().nonzero()
    mesh = Delaunay(np.stack([column, row], 1))
    y, x = np.mgrid[: sparse.shape[1], : sparse.shape[2]]
    return mesh, LinearNDInterpolator(mesh, sparse[0].numpy()[row, column].astype(float))(x, y)


def distance_outside(mesh, row, column):
    """How many pixels outside the convex hull; negative inside."""
    faces = ConvexHull(mesh.points).equations
    return (faces[:, :2] @ np.stack([column, row]) + faces[:, 2:]).max(0)


@pytest.mark.parametrize("count", [3, 10, 100, 1000, "lines"])
def test_agrees_with_scipy(generator, count):
    """The hull may differ on its border only, which scipy's rounding may miss."""
    sparse = scan_lines(generator) if count == "lines" else make_sparse(count, generator)
    depth = scaffold(sparse)
    valid = depth > 0
    mesh, want = reference(sparse)
    both = valid[0].numpy() & ~np.isnan(want)
    np.testing.assert_allclose(depth[0].numpy()[both], want[both], rtol=1e-5)
    row, column = (valid[0].numpy() != ~np.isnan(want)).nonzero()
    assert len(row) <= 0.001 * valid.numel()
    if len(row):
        assert np.abs(distance_outside(mesh, row, column)).max() < 1e-9


@pytest.mark.parametrize("count", [3, 10, 100])
def test_depth_fills_the_convex_hull_with_its_border(generator, count):
    sparse = make_sparse(count, generator)
    row, column = np.indices(SIZE).reshape(2, -1)
    outside = distance_outside(reference(sparse)[0], row, column).reshape(SIZE)
    assert np.array_equal((scaffold(sparse)[0] > 0).numpy(), outside < 1e-9)


@pytest.mark.parametrize("count", [3, 20, 500])
def test_a_plane_is_reproduced(generator, count):
    row, column = torch.meshgrid(*map(torch.arange, SIZE), indexing="ij")
    plane = (3 + 0.02 * column - 0.03 * row)[None]
    sparse = torch.where(make_sparse(count, generator) > 0, plane, 0)
    depth = scaffold(sparse)
    inside = depth != 0
    assert inside.sum() >= count
    torch.testing.assert_close(depth[inside], plane[inside])


def strictly_delaunay(sparse):
    """Whether no four neighbouring points lie on one circle, so that there is one triangulation."""
    mesh, _ = reference(sparse)
    x, y = mesh.points.astype(int).T
    lifted = np.stack([x, y, x**2 + y**2, np.ones_like(x)], -1).astype(float)
    for one, neighbours in zip(mesh.simplices, mesh.neighbors, strict=True):
        for other in neighbours[neighbours >= 0]:
            four = list({*one, *mesh.simplices[other]})
            if abs(np.linalg.det(lifted[four])) < 0.5:
                return False
    return True


def test_flipping_the_points_flips_the_scaffold():
    """Where the triangulation is unique; four points on a circle have two, both right."""
    generator = torch.Generator().manual_seed(0)
    draws = (make_sparse(12, generator) for _ in range(50))
    cases = [sparse for sparse in draws if strictly_delaunay(sparse)]
    assert len(cases) > 10
    for sparse in cases:
        for axis in (-1, -2):
            flipped = scaffold(sparse.flip(axis))
            torch.testing.assert_close(flipped.flip(axis), scaffold(sparse))


pixels = st.tuples(st.integers(0, 11), st.integers(0, 15))
lines = st.tuples(pixels, pixels).map(
    lambda ends: [
        tuple(round(a + k / 6 * (b - a)) for a, b in zip(*ends, strict=True)) for k in range(7)
    ]
)
depths = st.floats(0.5, 80, width=32)


@given(st.lists(pixels, max_size=200) | lines, st.lists(depths, min_size=200, max_size=200))
def test_any_points_will_do(at, values):
    sparse = from_points(dict(zip(at, values, strict=False)), (12, 16))
    depth = scaffold(sparse)
    known = sparse > 0
    assert depth.isfinite().all()
    assert torch.equal(depth[known], sparse[known])
    if known.any():
        low, high = sparse[known].aminmax()
        assert ((depth == 0) | ((depth >= low * (1 - 1e-6)) & (depth <= high * (1 + 1e-6)))).all()
    else:
        assert (depth == 0).all()


@pytest.mark.parametrize(
    "at", [[(5, 7)], [(5, 7), (30, 20)], [(4, k) for k in range(9)], [(3 * k, k) for k in range(9)]]
)
def test_without_triangles_the_nearest_point_counts(at):
    sparse = from_points({pixel: 1.0 + k for k, pixel in enumerate(at)})
    depth = scaffold(sparse)
    for row in range(SIZE[0]):
        for column in range(SIZE[1]):
            squares = [(row - r) ** 2 + (column - c) ** 2 for r, c in at]
            nearest = {1.0 + k for k, s in enumerate(squares) if s == min(squares)}
            assert depth[0, row, column].item() in nearest


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, -1.0])
def test_what_is_no_measurement_is_no_point(generator, bad):
    sparse = make_sparse(30, generator)
    marred = torch.where(torch.rand(sparse.shape, generator=generator) < 0.2, bad, sparse)
    clean = torch.where(marred == sparse, sparse, 0)
    assert torch.equal(scaffold(marred), scaffold(clean))


def test_every_pixel_measured_and_a_line_with_one_point_beside_it(generator):
    full = 1 + torch.rand(1, *SIZE, generator=generator)
    assert torch.equal(scaffold(full), full)
    sliver = from_points({(10, k): 2.0 for k in range(64)} | {(11, 40): 3.0})
    assert torch.equal(scaffold(sliver), sliver)
