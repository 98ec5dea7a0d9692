# SPDX-License-Identifier: Apache-2.0
"""Wrong points, on problems whose wrong points are known."""

import numpy as np
import pytest
import torch
from scipy import stats

from deepbasis import fit
from deepbasis.fit import wrong_points
from deepbasis.fit.neighbours import others
from deepbasis.fit.wrong_points import (
    Places,
    estimate_alpha,
    find_suspects,
    fit_bases,
    gaussian,
    probability_wrong,
    solve,
    student_t,
    weighted_median,
)

M, NOISE = 6, 0.02
KERNEL = fit.Kernel(length=0.1, nugget=0.5)
PRIOR = fit.Prior(torch.zeros(M), torch.eye(M))


def make_points(n, generator, z=None):
    """Places in an image of height 3/4, and log depths of known weights with some noise."""
    x = torch.rand(n, 2, generator=generator).double() * torch.tensor([0.75, 1.0])
    waves = [torch.sin(2 * x @ torch.randn(2, generator=generator).double()) for _ in range(M - 1)]
    phi = torch.stack([torch.ones(n), *waves], -1)
    if z is None:
        z = phi @ (0.1 * torch.randn(M, generator=generator).double())
    else:
        phi[:, 1:], z = 0, z(x)
    z = z + NOISE * torch.randn(n, generator=generator).double()
    return Places(x, phi, z, torch.ones(n), torch.ones(n), torch.zeros(n))


def find(points):
    return probability_wrong(KERNEL, PRIOR, NOISE**2, points) > 0.5


def is_near(points, row, column, radius):
    return (points.x - torch.tensor([row, column])).norm(dim=-1) < radius


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("n", [60, 300])
def test_a_third_of_the_points_may_be_off_to_the_same_side(n, share, generator):
    points, wrong = make_points(n, generator), round(share * n)
    points.z[:wrong] += 0.9
    for found in (fit_bases(points, PRIOR, NOISE**2).wrong > 0.5, find(points)):
        assert found[:wrong].all()
        assert found[wrong:].double().mean() < 0.03


@pytest.mark.parametrize("factor", [1e-6, 1000, 1e6])
def test_a_scale_that_all_points_share_contradicts_nothing(factor, generator):
    points = make_points(40, generator)
    points.z[:4] += 0.9
    found = find(points._replace(z=points.z + np.log(factor)))
    assert found[:4].all()
    assert not found[4:].any()


def test_weights_may_be_far_larger_than_the_prior_expects(generator):
    """As in an image unlike those of training."""
    narrow = fit.Prior(torch.zeros(M), 1e-4 * torch.eye(M))
    points = make_points(40, generator)
    points = points._replace(z=4 * points.z)
    points.z[:4] += 0.9

    def find_with(least_alpha):
        return probability_wrong(KERNEL, narrow, NOISE**2, points, least_alpha=least_alpha) > 0.5

    assert not find_with(1.0)[:4].all()  # nothing fits the bases, so nothing contradicts them
    found = find_with(1e-5)
    assert found[:4].all()
    assert not found[4:].any()


@pytest.mark.parametrize(("alpha", "least", "clamped"), [(0.3, 0.01, False), (0.3, 0.9, True)])
def test_alpha_is_the_expected_squares_of_the_weights(alpha, least, clamped, generator):
    phi = torch.randn(50, M, generator=generator).double()
    z, precision = 3 * phi @ torch.ones(M).double(), torch.rand(50, generator=generator).double()
    mean, chol = solve(phi, z, precision, alpha)
    cov = torch.linalg.inv(alpha * torch.eye(M) + phi.T @ torch.diag(precision) @ phi)
    assert torch.allclose(mean, cov @ phi.T @ (precision * z))
    squares = torch.trace(cov + torch.outer(mean, mean))
    assert estimate_alpha(mean, chol, least) == pytest.approx(
        least if clamped else float(M / squares)
    )


def test_a_share_of_the_points_determines_the_bases(generator, monkeypatch):
    points = make_points(900, generator)
    points.z[:200] -= 0.7
    want = find(points)
    monkeypatch.setattr(wrong_points, "ENOUGH", 300)
    assert (find(points) == want).double().mean() > 0.98
    assert want[:200].double().mean() > 0.9
    assert not want[200:].any()


def test_an_object_is_not_wrong_but_as_many_scattered_points_are(generator):
    points = make_points(400, generator)
    on_object = is_near(points, 0.4, 0.5, 0.1)
    assert 10 < on_object.sum() < 30
    scattered = torch.zeros_like(on_object)
    scattered[: int(on_object.sum())] = True
    moved = points._replace(z=points.z + 0.6 * on_object)
    assert fit_bases(moved, PRIOR, NOISE**2).wrong[on_object].min() > 0.5
    assert not find(moved).any()
    assert torch.equal(find(points._replace(z=points.z + 0.6 * scattered)), scattered)


def test_two_surfaces_have_no_wrong_points_at_their_edge(generator):
    """The bases are a constant, so that every point of the nearer surface is an error."""
    points = make_points(400, generator, lambda x: -0.8 * (x.amax(-1) < 0.25).double())
    assert 20 < (points.z < -0.4).sum() < 50
    assert not find(points).any()
    points.z[:8] += torch.tensor([1.6, -1.6]).repeat(4)  # behind both, or in front of them
    found = find(points)
    assert found[:8].sum() >= 7
    assert not found[8:].any()


def test_suspects_with_like_neighbours_are_an_object_unless_there_are_many(generator):
    points = make_points(500, generator)
    near = others(points.x[:, :2], wrong_points.CLUSTER)
    residual = torch.zeros(500).double()
    cluster = is_near(points, 0.3, 0.3, 0.08)
    residual[cluster] = 0.5
    assert find_suspects(near, residual, cluster).sum() < 0.3 * cluster.sum()
    # If every third point is a suspect of the same residual, chance explains their neighbours.
    third = torch.arange(500) % 3 == 0
    assert find_suspects(near, 0.5 * third.double(), third).sum() > 0.97 * third.sum()


def test_a_poor_measurement_may_be_off_by_more(generator):
    points = make_points(100, generator)
    points.z[:2] += 0.5
    assert find(points)[:2].tolist() == [True, True]
    poor = torch.ones(100)
    poor[0] = 0.02 * NOISE**2 / 0.25  # sigma 0.5, as a share of the noise of a point
    found = find(points._replace(weight=poor, noise=torch.where(poor < 1, 0.25, 0.0)))
    assert found[:2].tolist() == [False, True]


def test_what_is_off_by_little_is_not_wrong(generator):
    """A perfect fit makes any deviation improbable."""
    points = make_points(100, generator)
    exact = points.phi @ (0.1 * torch.ones(M).double())
    exact[0] += 0.09
    exact[1] += 0.8
    assert find(points._replace(z=exact)).nonzero().tolist() == [[1]]


@pytest.mark.parametrize("n", [0, 1, 4])
def test_few_points_contradict_nothing(n, generator):
    points = make_points(n, generator)
    points.z[:2] += 3
    assert not find(points).any()


def test_densities_and_medians_are_those_of_scipy(generator):
    error, dof = torch.linspace(-2, 2, 7).double(), torch.linspace(1.5, 30, 7).double()
    scale2 = torch.rand(7, generator=generator).double() + 0.1
    t = stats.t(dof, scale=scale2.sqrt()).pdf(error)
    np.testing.assert_allclose(student_t(*(x.numpy() for x in (error, scale2, dof))), t, rtol=1e-10)
    normal = stats.norm(scale=scale2.sqrt()).pdf(error)
    np.testing.assert_allclose(gaussian(error, scale2), normal, rtol=1e-10)
    assert wrong_points.median_of_t(2.5) == pytest.approx(stats.t(2.5).ppf(0.75))
    for q in (0.0, 0.3, 0.5, 1.0):
        assert wrong_points.quantile(t, q) == pytest.approx(np.quantile(t, q))
    values, weight = torch.tensor([3.0, 1, 2, 9]), torch.tensor([1.0, 1, 1, 4])
    assert float(weighted_median(values, weight)) == 9
    assert float(weighted_median(values, torch.ones(4))) == 2


@pytest.mark.parametrize("after", [[], [0], [0, 1]])
def test_neighbours_are_asked_again_only_if_other_points_are_suspects(
    after, generator, monkeypatch
):
    """Points that they clear are not judged by each other."""
    points, asked = make_points(60, generator), []
    points.z[:2] += 0.9

    def judge(points, _, whitened):
        asked.append(set(range(60)) - set(whitened.near.flatten().tolist()))
        wrong = torch.zeros(60, dtype=torch.float64)
        wrong[after] = 0.9
        return wrong

    monkeypatch.setattr(wrong_points, "judge", judge)
    assert find(points).nonzero()[:, 0].tolist() == after
    assert asked == [{0, 1}, {0}][: 1 + (after == [0])]
