# SPDX-License-Identifier: Apache-2.0
"""Classical baselines against scipy, dense solves, and what few points must still give."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import griddata

from deepbasis import baselines
from deepbasis.fit import Kernel
from refusals import refusals

SIZE = (24, 32)
METHODS = [baselines.nearest, baselines.linear, baselines.kriging, baselines.colourisation]
named = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


def scene(count, generator, size=SIZE):
    """An image of two colours, a wall in front of another, measured at random pixels."""
    row, column = torch.meshgrid(*map(torch.arange, size), indexing="ij")
    front = column < size[1] // 3
    depth = torch.where(front, 1.5 + 0.01 * row, 4.0 - 0.02 * column)[None]
    noise = torch.randint(0, 10, (3, *size), generator=generator)
    image = (torch.where(front, 200, 60) + noise).to(torch.uint8)
    sparse = torch.zeros(depth.numel())
    at = torch.randperm(len(sparse), generator=generator)[:count]
    sparse[at] = depth.flatten()[at]
    return image, sparse.view(1, *size), depth


def interpolated(sparse, method):
    row, column = sparse[0].numpy().nonzero()
    every = np.indices(sparse.shape[1:]).reshape(2, -1).T
    values = sparse[0].numpy()[row, column].astype(float)
    return griddata(np.stack([row, column], 1), values, every, method).reshape(sparse.shape[1:])


def test_nearest_agrees_with_scipy(generator):
    """Where one point is nearest; scipy and we may choose otherwise among points equally near."""
    image, sparse, _ = scene(40, generator)
    have = baselines.nearest(image, sparse).mean.exp()[0]
    want = torch.from_numpy(interpolated(sparse, "nearest")).float()
    at = (sparse[0] > 0).nonzero().double()
    every = torch.cartesian_prod(*map(torch.arange, SIZE)).double()
    first, second = torch.cdist(every, at).sort(-1)[0][:, :2].unbind(-1)
    clear = (second - first > 1e-3).view(SIZE)
    assert clear.double().mean() > 0.8
    torch.testing.assert_close(have[clear], want[clear])


def test_linear_agrees_with_scipy_in_the_hull_and_is_nearest_outside(generator):
    image, sparse, _ = scene(40, generator)
    have = baselines.linear(image, sparse).mean.exp()[0]
    inside = interpolated(sparse, "linear")
    hull = torch.from_numpy(~np.isnan(inside))
    want = torch.from_numpy(inside).float()
    # Four points on a circle have two triangulations, so a few pixels may differ.
    assert ((have - want).abs() < 1e-4)[hull].double().mean() > 0.95
    beyond = baselines.nearest(image, sparse).mean.exp()[0]
    differs = (have - torch.where(hull, want, beyond)).abs() > 1e-4
    assert not (differs & ~hull).sum() > 0.01 * differs.numel()


@pytest.mark.parametrize("pixels", [[(3, 5)], [(3, 5), (9, 9)], [(2, 2), (4, 6), (8, 14)]])
def test_linear_is_nearest_without_a_triangle(generator, pixels):
    """One point, two, and three on a line."""
    image, sparse, depth = scene(0, generator)
    for row, column in pixels:
        sparse[0, row, column] = depth[0, row, column]
    have, want = baselines.linear(image, sparse), baselines.nearest(image, sparse)
    assert torch.equal(have.mean, want.mean)


def test_kriging_agrees_with_a_dense_solve(generator):
    """Simple kriging about the constant that generalised least squares finds, all neighbours."""
    image, sparse, _ = scene(25, generator)
    sparse = sparse.double()
    kernel = Kernel(0.4, 0.3, 0.05)
    mean, var = baselines.kriging(image, sparse, kernel, k=25)
    row, column = torch.meshgrid(*map(torch.arange, SIZE), indexing="ij")
    colour = image.double().movedim(0, -1).flatten(0, 1) / 255 * kernel.colour
    x = torch.cat([torch.stack([row, column], -1).flatten(0, 1) / SIZE[1], colour], 1)
    at = sparse.flatten() > 0
    z = sparse.flatten()[at].log()
    k = torch.exp(-torch.linalg.vector_norm(x[:, None] - x[None, at], dim=-1) / kernel.length)
    cov = k[at] + kernel.nugget * torch.eye(25)
    ones = torch.ones(25, dtype=torch.float64)
    b = torch.linalg.solve(cov, k.mT).mT
    flat = torch.linalg.solve(cov, ones)
    constant = (flat @ z) / flat.sum()
    want = constant + b @ (z - constant)
    # The prior of the constant is wide, not flat: a small part of its error remains.
    torch.testing.assert_close(mean.flatten(), want, rtol=0.0, atol=0.02)
    left = (1 + kernel.nugget - (b * k).sum(1)) + (1 - b.sum(1)).square() / flat.sum()
    ratio = var.flatten() / left
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=0.02, atol=0.0)


def test_colourisation_agrees_with_a_dense_solve(generator):
    size = (5, 6)
    image, sparse, _ = scene(7, generator, size)
    have = baselines.colourisation(image, sparse).mean.flatten().double()
    grey = image.double().mean(0) / 255
    system, right = torch.eye(30, dtype=torch.float64), torch.zeros(30, dtype=torch.float64)
    for row in range(5):
        for column in range(6):
            pixel = row * 6 + column
            if sparse[0, row, column] > 0:
                right[pixel] = sparse[0, row, column].log()
                continue
            window = [(r, c) for r in range(max(row - 1, 0), min(row + 2, 5))
                      for c in range(max(column - 1, 0), min(column + 2, 6))]  # fmt: skip
            spread = torch.stack([grey[at] for at in window]).var(correction=0).clamp(min=1e-4)
            others = [at for at in window if at != (row, column)]
            apart = torch.stack([grey[at] - grey[row, column] for at in others])
            weight = (-apart.square() / (2 * spread)).exp().clamp(min=1e-6)
            for (r, c), share in zip(others, weight / weight.sum(), strict=True):
                system[pixel, r * 6 + c] -= share
    torch.testing.assert_close(have, torch.linalg.solve(system, right), rtol=1e-6, atol=1e-6)


def test_colour_keeps_the_edge(generator):
    """Where the image says that two walls meet, kriging and colourisation blur less than linear."""
    image, sparse, depth = scene(60, generator, (48, 64))
    near = slice(64 // 3 - 3, 64 // 3 + 3)
    error = {
        method.__name__: (method(image, sparse).mean.exp() - depth)[:, :, near].abs().mean()
        for method in METHODS
    }
    assert error["kriging"] < 0.65 * error["linear"]
    assert error["colourisation"] < 0.8 * error["linear"]


@named
@pytest.mark.parametrize("count", [1, 2, 3, 768])
def test_few_points_and_all_points_will_do(generator, method, count):
    image, sparse, _ = scene(count, generator)
    mean, var = method(image, sparse)
    assert mean.shape == var.shape == sparse.shape
    assert mean.isfinite().all()
    assert (var > 0).all()
    known = sparse > 0
    z = sparse[known].log()
    tolerance = 0.05 if method is baselines.kriging else 1e-5  # its nugget
    assert ((mean[known] - z).abs() <= tolerance).all()
    if count == 1:
        torch.testing.assert_close(mean, z.expand_as(mean), rtol=0.0, atol=1e-4)
        assert var.max().sqrt() > 0.1  # nobody knows a scene from one point


@named
def test_variance_grows_away_from_the_points(generator, method):
    image, _, depth = scene(0, generator)
    sparse = torch.zeros_like(depth)
    sparse[0, 12, 4:8] = depth[0, 12, 4:8]
    var = method(image, sparse).var[0, 12]
    assert (var[8:].diff() >= 0).all()
    assert var[31] > 4 * var[5]


@given(st.integers(1, 60), st.integers(0, 1000), st.sampled_from(["plain", "noise", "line"]))
def test_never_nan(count, seed, kind):
    generator = torch.Generator().manual_seed(seed)
    image, sparse, _ = scene(count, generator, (11, 13))
    if kind == "plain":
        image = torch.full_like(image, 255)
    elif kind == "noise":
        image = torch.randint(0, 256, image.shape, generator=generator).to(torch.uint8)
    else:
        sparse[:, 1:] = 0
        sparse[:, 0, 0] = 2.0
    for method in METHODS:
        mean, var = method(image, sparse)
        assert mean.isfinite().all()
        assert var.isfinite().all()
        assert (var > 0).all()
        low, high = sparse[sparse > 0].log().aminmax()
        if method is not baselines.kriging:
            assert ((mean >= low - 1e-5) & (mean <= high + 1e-5)).all()


@named
def test_what_is_no_measurement_is_no_point(generator, method):
    image, sparse, _ = scene(20, generator)
    marred = sparse.clone()
    for value, at in zip((torch.nan, torch.inf), (sparse == 0).nonzero(), strict=False):
        marred[tuple(at)] = value
    for have, want in zip(method(image, marred), method(image, sparse), strict=True):
        torch.testing.assert_close(have, want)


@named
def test_no_point_is_refused(generator, method):
    image, sparse, _ = scene(0, generator)
    with pytest.raises(ValueError, match="there are no points"):
        method(image, sparse)


def test_other_sizes_are_refused():
    case = "baselines.linear(ones(3, 4, 5).byte(), ones(1, 4, 6))"
    said = refusals("from deepbasis import baselines", [case])[case]
    assert said.startswith("the image is [4, 5] pixels (height, width), the sparse depth [4, 6];")
