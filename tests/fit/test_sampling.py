# SPDX-License-Identifier: Apache-2.0
"""Drawn maps against the dense Gaussian process: every covariance of a small image, exactly."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from deepbasis.fit import Kernel, correlated, kernel, sampling
from problems import conditioned

SIZE = (12, 16)
KERNELS = [Kernel(0.4, 0.5, 0.02, 0.5), Kernel(0.3, 0.4, 0.001, 1.5)]
BASES = 3


def make_field(generator, n, kernel, size=SIZE, k=correlated.NEIGHBOURS):
    height, width = size
    guide = F.interpolate(torch.rand(1, 3, 4, 4, generator=generator).double(), size)[0]
    at = torch.randperm(height * width, generator=generator)[:n]
    x = correlated.locate((at // width).double(), (at % width).double(), width, guide)
    weight = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
    return correlated.Field.of(kernel, x, size, guide, weight, k=k), at


def all_pixels(size=SIZE):
    return tuple(x.flatten() for x in torch.meshgrid(*map(torch.arange, size), indexing="ij"))


def dense(field, n, size=SIZE):
    """Weights of the points and covariance of the rest, with every point as a neighbour."""
    row, column = all_pixels(size)
    at, points = field.places_of(row * field.size[1] + column), field.places[:n]
    of = field.kernel.correlation
    inner = of(points, points) + field.noise[:n].diag()
    b = torch.linalg.solve(inner, of(points, at)).mT
    return b, of(at, at) - b @ of(points, at)


def linear_map(field, n, size=SIZE, **options):
    """Simulation is linear in the numbers that it draws and in what is known: as two matrices."""
    pixels, drawn = size[0] * size[1], itertools.count()

    def normal(count):
        rows = torch.zeros(count, n + pixels, dtype=torch.float64)
        for i in range(count):
            rows[i, n + next(drawn)] = 1
        return rows

    known = torch.eye(n, n + pixels, dtype=torch.float64)
    lines = (torch.arange(length) for length in size)
    found = sampling.simulate(field, known, *lines, normal, **options).flatten(0, 1)
    assert next(drawn) == pixels  # one number for each pixel
    return found[:, :n], found[:, n:]


@pytest.mark.parametrize("kernel", KERNELS, ids=["rough", "smooth"])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_kriged_pixels_have_the_covariance_of_the_dense_process(generator, n, kernel):
    field, _ = make_field(generator, n, kernel)
    near, b, cov = sampling.krige(field, *all_pixels())
    want, want_cov = dense(field, n)
    torch.testing.assert_close(cov, want_cov, rtol=0, atol=1e-9)
    weights = torch.zeros(len(b), n + field.k).double().scatter_add(1, near, b)
    torch.testing.assert_close(weights[:, :n], want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [0, 1, 30])
def test_the_diagonal_is_the_variance_of_the_prediction(generator, n):
    field, _ = make_field(generator, n, KERNELS[0])
    cov = sampling.krige(field, *all_pixels()).cov
    left = field.without_ring(conditioned(field, 0, field.down).left)[..., None]
    want = field.in_reading_order(left)[: len(cov), 0]
    torch.testing.assert_close(cov.diagonal(), want)
    assert torch.linalg.eigvalsh(cov).min() > -1e-9


def test_many_places_are_conditioned_side_by_side_as_one_by_one(generator):
    at, near = (torch.rand(*shape, 5, generator=generator).double() for shape in ((7,), (7, 6)))
    noise = torch.rand(7, 6, generator=generator).double()
    for each in KERNELS:
        b, left = sampling.condition_each(each, at, near, noise)
        want, rest = kernel.condition(each, at[:, None], near, noise)
        torch.testing.assert_close(b, want[:, 0])
        torch.testing.assert_close(left, rest[:, 0])


@pytest.mark.parametrize("kernel", KERNELS, ids=["rough", "smooth"])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_a_map_drawn_at_once_is_the_dense_process(generator, n, kernel):
    """Up to the jitter of the first lattice, which is a variance of 1e-5."""
    field, _ = make_field(generator, n, kernel)
    b, root = linear_map(field, n, dense=SIZE[0] * SIZE[1])
    want, cov = dense(field, n)
    torch.testing.assert_close(b, want, rtol=0, atol=1e-9)
    torch.testing.assert_close(root @ root.mT, cov, rtol=0, atol=1e-5 + 1e-9)


@pytest.mark.parametrize("kernel", KERNELS, ids=["rough", "smooth"])
@pytest.mark.parametrize("n", [0, 1, 9])
def test_a_map_drawn_from_coarse_to_fine_is_nearly_the_dense_process(generator, n, kernel):
    """The error of the neighbours' approximation itself: there is no chance in this test.

    The sum of the variances is within 2 % of the process's, covariances are within 0.04 in the root
    mean square over all pairs, and the variance of the mean of the map, their sum, within 10 %.
    """
    field, _ = make_field(generator, n, kernel)
    b, root = linear_map(field, n, dense=16)
    want, cov = dense(field, n)
    found = root @ root.mT
    assert abs(found.trace() / cov.trace() - 1) < 0.02
    assert (found - cov).square().mean().sqrt() < 0.04
    assert abs(found.sum() / cov.sum() - 1) < 0.1
    if n:
        assert (b - want).square().mean().sqrt() < 0.015


def test_drawn_maps_have_the_covariance_of_the_map_that_draws_them(generator):
    """Empirical covariance of 4000 maps; its standard error is sqrt((c_pp c_qq + c_pq^2) / n)."""
    n, draws, size = 4, 4000, (5, 6)
    field, _ = make_field(generator, n, KERNELS[1], size)
    _, root = linear_map(field, n, size)
    want = root @ root.mT
    lines = (torch.arange(length) for length in size)

    def normal(count):
        return torch.randn(count, draws, generator=generator, dtype=torch.float64)

    maps = sampling.simulate(field, torch.zeros(n, draws).double(), *lines, normal).flatten(0, 1)
    have = maps @ maps.mT / draws
    var = want.diagonal()
    error = ((torch.outer(var, var) + want.square()) / draws).sqrt()
    assert ((have - want).abs() < 5 * error).all()  # of 900, none beyond: probability 5e-4
    assert ((have - want).abs() > 0.5 * error).any()


def test_measured_pixels_stay_within_the_noise_of_their_measurement(generator):
    """With one measurement, v / (1 + v) of a variance of 1 is left: less than its noise v."""
    field, at = make_field(generator, 9, KERNELS[0])
    b, root = linear_map(field, 9, dense=16)
    assert (root.square().sum(1)[at] < field.noise[:9]).all()
    own = b[at, torch.arange(9)]
    assert (own > 0.8).all()


def test_a_part_of_the_image_is_drawn_as_it_is_in_the_whole(generator):
    field, _ = make_field(generator, 9, KERNELS[1])
    rows, columns = torch.arange(2, 11, 3), torch.arange(1, 16, 2)
    _, cov = dense(field, 9)
    inside = (rows[:, None] * SIZE[1] + columns).flatten()
    count, drawn = len(inside), itertools.count()

    def normal(some):
        return torch.eye(count).double()[[next(drawn) for _ in range(some)]]

    found = sampling.simulate(field, torch.zeros(9, count).double(), rows, columns, normal)
    root = found.flatten(0, 1)
    torch.testing.assert_close(root @ root.mT, cov[inside][:, inside], rtol=0, atol=2e-5)


def test_the_chosen_measurements_are_the_best_of_all(generator):
    """Each against the variance that the process has after measuring any one, in full."""
    mix = torch.randn(7, 7, generator=generator, dtype=torch.float64)
    cov, noise = mix @ mix.mT / 7, 0.1 + torch.rand(7, generator=generator).double()

    def left(measured):
        inner = cov[measured][:, measured] + noise[measured].diag()
        return (cov - cov[:, measured] @ torch.linalg.solve(inner, cov[measured])).trace()

    chosen = sampling.choose_measurements(cov, noise, 3).tolist()
    for i, one in enumerate(chosen):
        before = chosen[:i]
        best = min(range(7), key=lambda c: left([*before, c]))
        assert one == best or math.isclose(left([*before, one]), left([*before, best]))


def test_no_place_is_chosen_twice_with_or_without_noise():
    root = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for noise in (0.0, 0.01, 10.0):
        chosen = sampling.choose_measurements(root @ root.mT, torch.full((12,), noise), 12)
        assert sorted(chosen.tolist()) == list(range(12))


def test_a_noisy_place_is_chosen_last():
    """It has the largest variance, but a measurement there says little."""
    cov = torch.diag(torch.tensor([2.0, 1.0, 0.5]))
    chosen = sampling.choose_measurements(cov, torch.tensor([10.0, 0.0, 0.0]), 3)
    assert chosen.tolist() == [1, 2, 0]
