# SPDX-License-Identifier: Apache-2.0
"""The variance around points that were left out, against two dense Gaussian processes."""

from dataclasses import replace

import pytest
import torch

from deepbasis.fit import doubt
from deepbasis.fit.correlated import locate
from deepbasis.fit.doubt import CERTAIN, LeftOut, doubt_var
from deepbasis.fit.field import Field
from deepbasis.fit.kernel import Kernel

KERNEL = Kernel(length=0.3, colour=0.1, nugget=0.02, smoothness=1.5)
HEIGHT, WIDTH = 16, 24


def predict(x, values, at, noise):
    """Mean of a dense Gaussian process of variance 1."""
    cov = KERNEL.correlation(x, x) + noise * torch.eye(len(x))
    return KERNEL.correlation(at, x) @ torch.linalg.solve(cov, values)


@pytest.fixture
def scene(generator):
    """Points along the border, one in the middle, amplitudes, and scaled places of all pixels."""
    u = torch.tensor([0.0, 8, 15, 23, 0, 23, 0, 8, 15, 23, 11])
    v = torch.tensor([0.0, 0, 0, 0, 8, 8, 15, 15, 15, 15, 7])
    guide = torch.rand(2, HEIGHT, WIDTH, generator=generator)
    amplitude = torch.rand(1, HEIGHT, WIDTH, generator=generator) + 0.5
    row, column = torch.meshgrid(torch.arange(16.0), torch.arange(24.0), indexing="ij")
    pixels = locate(row.flatten(), column.flatten(), WIDTH, guide)
    return locate(v, u, WIDTH, guide), guide, amplitude, KERNEL.scale(pixels)


def test_variance_is_that_of_a_mixture_of_fits_with_and_without_the_point(generator, scene):
    """All points are neighbours of all pixels, so both fits are exact."""
    x, guide, amplitude, at = scene
    s = amplitude[0][[0, 0, 0, 0, 8, 8, 15, 15, 15, 15, 7], [0, 8, 15, 23, 0, 23, 0, 8, 15, 23, 11]]
    places, z = KERNEL.scale(x).double(), torch.randn(11, dtype=torch.float64, generator=generator)
    at, scaled = at.double(), z / s.double()
    noise = KERNEL.nugget / s.double().square()
    full = predict(places, scaled, at, noise)
    kept = places[:-1]
    without = predict(kept, scaled[:-1], at, noise[:-1])
    here = predict(kept, scaled[:-1], places[-1:], noise[:-1])[0]
    p = 0.7
    want = p * (1 - p) * ((full - without) * amplitude.flatten()).square()
    field = Field.of(KERNEL, x[:-1], (HEIGHT, WIDTH), guide, s[:-1].square(), amplitude, k=12)
    residual = (z[-1] - here * s[-1])[None]
    left_out = LeftOut(x[-1:], s[-1:], noise[-1:], residual, torch.tensor([p]))
    found = doubt_var(field, left_out)
    torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-6 * float(want.max()))


def test_only_points_that_may_be_right_count_and_each_adds_its_own(scene):
    x, guide, amplitude, _ = scene
    field = Field.of(KERNEL, x[:8], (HEIGHT, WIDTH), guide, None, amplitude)

    def of(*which, wrong):
        some = x[list(which)]
        ones = torch.ones(len(some))
        return doubt_var(field, LeftOut(some, ones, ones, 0.5 * ones, wrong * ones))

    one, other, both = of(9, wrong=0.6), of(10, wrong=0.6), of(9, 10, wrong=0.6)
    assert float(one.max()) > 0.01
    torch.testing.assert_close(both, one + other)
    torch.testing.assert_close(of(10, wrong=0.8), 0.16 / 0.24 * other)
    assert CERTAIN > 0.99 * 0.01
    assert not of(9, 10, wrong=0.99).any()


def test_blocks_are_computed_some_at_a_time(scene, monkeypatch):
    """The memory of a large image with few points is bounded."""
    x, guide, amplitude, _ = scene
    field = Field.of(KERNEL, x[:8], (HEIGHT, WIDTH), guide, None, amplitude)
    ones, counts, compute = torch.ones(2), [], doubt.left_cov
    left_out = LeftOut(x[9:], ones, ones, ones, 0.6 * ones)
    want = doubt_var(field, left_out)

    def count(field, some, *rest):
        counts.append(len(some))
        return compute(field, some, *rest)

    monkeypatch.setattr(doubt, "left_cov", count)
    monkeypatch.setattr(doubt, "BLOCKS", 4)
    torch.testing.assert_close(doubt_var(field, left_out), want)
    assert counts == [4, 2, 4, 2]


def test_far_from_the_point_nothing_changes():
    """Other points lie between."""
    row, column = torch.meshgrid(torch.arange(2.0, 64, 8), torch.arange(2.0, 96, 8), indexing="ij")
    x = locate(row.flatten(), column.flatten(), 96)
    out = (row.flatten() == 26) & (column.flatten() == 42)
    field = Field.of(KERNEL, x[~out], (64, 96))
    ones = torch.ones(1)
    found = doubt_var(field, LeftOut(x[out], ones, 0.05 * ones, ones, 0.5 * ones)).view(64, 96)
    assert found[26, 42] == found.max() > 0.01
    away = (torch.arange(64)[:, None] - 26).square() + (torch.arange(96) - 42).square() > 32**2
    assert not found[away].any()
    assert (found >= 0).all()


def share_beyond_lines(rows, kernel):
    """Share of the residual of a point on the first scan line that pixels take over, at most by
    `doubt_var`, and by a dense Gaussian process of all points.
    """
    row, column = torch.meshgrid(torch.tensor(rows), torch.arange(0.0, 96, 4), indexing="ij")
    x = locate(row.flatten(), column.flatten(), 96)
    out = (row.flatten() == rows[0]) & (column.flatten() == 48)
    field, one = Field.of(kernel, x[~out], (64, 96)), torch.ones(1)
    left_out = LeftOut(x[out], one, kernel.nugget * one, one, 0.5 * one)
    places = kernel.scale(x).double()
    kept, own = places[~out], places[out]
    cov = kernel.correlation(kept, kept) + kernel.nugget * torch.eye(len(kept))
    row, column = torch.meshgrid(torch.arange(64.0), torch.arange(96.0), indexing="ij")
    at = kernel.scale(locate(row.flatten(), column.flatten(), 96)).double()
    b = torch.linalg.solve(cov, kernel.correlation(kept, torch.cat([own, at])))
    left = kernel.correlation(torch.cat([own, at]), own) - b.mT @ kernel.correlation(kept, own)
    dense = left[1:] / (left[0] + kernel.nugget)
    return float(2 * doubt_var(field, left_out).sqrt().max()), float(dense.abs().max())


def test_pixels_far_from_scan_lines_take_over_what_a_dense_process_says():
    """They have fewer neighbours on the line than the point itself, which these determine well."""
    found, dense = share_beyond_lines([40.0, 44, 48, 52, 56, 60], KERNEL)
    assert found == pytest.approx(dense, abs=0.1)


def test_no_pixel_takes_over_more_than_the_residual():
    """Corrections are bounded, although a dense process would extrapolate."""
    found, dense = share_beyond_lines([40.0, 42, 44, 46], replace(KERNEL, nugget=1e-4))
    assert dense > 1.3
    assert 0.9 < found < 1 + 1e-5
