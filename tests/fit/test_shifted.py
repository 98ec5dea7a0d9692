# SPDX-License-Identifier: Apache-2.0
"""Points that are shifted together, on problems whose shifted points are known."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from deepbasis import fit
from deepbasis.fit.shifted import RANGE, densities, find_pairs, find_shifted, join

KERNEL = fit.Kernel(length=0.3, nugget=1e-3, smoothness=1.5)
M = 3
PRIOR = fit.Prior(torch.zeros(M), torch.eye(M))


def make_surface(generator, n=300):
    """Points of a plane, seen by a network that knows planes, and some noise."""
    x = torch.rand(n, 2, generator=generator).double() * torch.tensor([0.75, 1.0])
    phi = torch.cat([torch.ones(n, 1), x], -1)
    z = phi @ torch.tensor([0.5, 0.3, -0.4]).double()
    return x, phi, z + 0.003 * torch.randn(n, generator=generator).double()


def find(x, phi, z, features=None):
    places = x if features is None else torch.cat([x, features], -1)
    return find_shifted(KERNEL, PRIOR, places, phi, z, torch.ones(len(z)), torch.ones(len(z)))


def is_near(x, radius):
    return (x - torch.tensor([0.35, 0.5])).norm(dim=-1) < radius


@pytest.mark.parametrize("radius", [0.1, 0.2])
@pytest.mark.parametrize("shift", [0.4, -0.4])
def test_a_part_of_a_surface_that_is_shifted_is_found(radius, shift, generator):
    x, phi, z = make_surface(generator)
    assert not find(x, phi, z).any()
    part = is_near(x, radius)
    assert 5 < part.sum() < 80
    assert torch.equal(find(x, phi, z + shift * part), part)


def test_an_object_that_the_image_shows_is_not_wrong(generator):
    """The same shift, where the network sees another thing."""
    x, phi, z = make_surface(generator)
    part = is_near(x, 0.2)
    thing = 20.0 * part[:, None].double()
    assert not find(x, phi, z + 0.4 * part, thing).any()


def test_the_larger_side_of_a_jump_is_right(generator):
    x, phi, z = make_surface(generator)
    left = x[:, 1] < 0.3
    assert torch.equal(find(x, phi, z - 0.4 * left), left)
    assert torch.equal(find(x, phi, z - 0.4 * ~left), left)


@pytest.mark.parametrize("n", [0, 1, 8])
def test_few_points_are_not_judged(n, generator):
    x, phi, z = make_surface(generator, n)
    assert not find(x, phi, z + torch.arange(n)).any()


def test_points_of_equal_depth_are_not_wrong(generator):
    """Nothing is left of them, so that any difference would be improbable."""
    x, phi, z = make_surface(generator)
    assert not find(x, phi, torch.ones_like(z)).any()


def test_the_variance_of_a_difference_is_that_of_the_kernel(generator):
    x, _, _ = make_surface(generator, 30)
    s, weight = torch.rand(2, 30, generator=generator).double() + 0.5
    index, var, correlation = find_pairs(KERNEL, x, s, weight)
    place = KERNEL.scale(x)
    cov = KERNEL.correlation(place, place) * s * s[:, None] + torch.diag(KERNEL.nugget / weight)
    i, j = index.T
    assert (i < j).all()
    assert len({(int(a), int(b)) for a, b in index}) == len(index)
    torch.testing.assert_close(correlation, cov[i, j] / s[i] / s[j])
    torch.testing.assert_close(var, cov[i, i] + cov[j, j] - 2 * cov[i, j])


def test_densities_are_those_of_a_mixture():
    difference, var = torch.linspace(-1, 1, 9).double(), torch.linspace(0.001, 0.03, 9).double()
    same, jump = densities(difference, var)
    chance = jump * RANGE
    np.testing.assert_allclose(
        same / (1 - chance), stats.t(3, scale=var.sqrt()).pdf(difference), rtol=1e-10
    )
    assert (chance.diff() > 0).all()


def test_groups_are_the_best_of_all_partitions_of_a_few_points():
    """Two triangles that contradict each other, whose one doubtful pair agrees."""
    pairs = np.array([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3), (1, 4), (0, 5)])
    odds = np.array([3.0, 2, 1, 3, 2, 1, 2.5, -4, -1])
    group = join(pairs, odds, 6)

    def joined(labels):
        return sum(odds[labels[pairs[:, 0]] == labels[pairs[:, 1]]])

    best = max(joined(np.array(labels)) for labels in itertools.product(range(6), repeat=6))
    assert joined(group) == best
    assert len(set(group)) == 2
