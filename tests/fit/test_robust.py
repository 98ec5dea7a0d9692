# SPDX-License-Identifier: Apache-2.0
"""Huber's option: what an outlier may do, and what clean points lose."""

import pytest
import torch
from scipy import integrate, stats

from deepbasis import fit
from deepbasis.fit.robust import clipped_square

K = 1.345


def points_at_5_m(m: int, generator: torch.Generator):
    """100 points, 5 m away with 1 cm noise, seen through m bases."""
    phi = torch.randn(100, m, dtype=torch.float64, generator=generator)
    phi[:, 0] = 1
    depth = 5 + 0.01 * torch.randn(100, dtype=torch.float64, generator=generator)
    prior = fit.Prior(torch.zeros(m).double(), torch.eye(m).double())
    return phi, depth, prior


@pytest.mark.parametrize("m", [1, 3, 10])
@pytest.mark.parametrize("outlier", [3.0, -3.0])
def test_an_outlier_of_3_m_loses_99_percent_of_its_pull(generator, m, outlier):
    phi, depth, prior = points_at_5_m(m, generator)
    depth[-1] += outlier

    def pull(huber):
        with_it, without = (
            fit.evidence(phi[:n], depth[:n].log(), prior, huber=huber).predict(phi)[0].exp()
            for n in (100, 99)
        )
        return (with_it - without).abs().mean()

    assert pull(None) > 0.01
    assert pull(K) < 0.01 * pull(None)


def test_outliers_do_not_inflate_the_noise(generator):
    phi, depth, prior = points_at_5_m(5, generator)
    depth[::10] += 2
    noise_m = [5 / fit.evidence(phi, depth.log(), prior, huber=k).beta.sqrt() for k in (None, K)]
    assert noise_m[0] > 0.3
    assert noise_m[1] < 0.02


def test_final_weights_tell_the_outlier_from_the_rest(generator):
    phi, depth, prior = points_at_5_m(5, generator)
    depth[17] += 3
    post = fit.evidence(phi, depth.log(), prior, huber=K)
    assert post.weight.argmin() == 17
    assert post.weight[17] < 0.01
    assert post.weight.median() == 1
    assert post.loo_residual[17] == pytest.approx(torch.tensor(8 / 5).log().item(), abs=0.02)


def test_the_fit_is_the_weighted_fit_by_its_final_weights(generator):
    phi, depth, prior = points_at_5_m(5, generator)
    depth[17] += 3
    post = fit.evidence(phi, depth.log(), prior, huber=K)
    at = {"alpha": post.alpha, "beta": post.beta}
    again = fit.posterior(phi, depth.log(), prior, post.weight, **at)
    torch.testing.assert_close(again.mean, post.mean)
    e = post.beta.sqrt() * (depth.log() - phi @ post.mean)
    pulls = (post.weight * e).abs()
    assert pulls.max() < 1.05 * K  # Huber's bound; the residual's own spread gives the 5 %


def test_clean_points_lose_little(generator):
    phi, depth, prior = points_at_5_m(5, generator)
    plain, huber = (fit.evidence(phi, depth.log(), prior, huber=k) for k in (None, K))
    change = (huber.predict(phi)[0] - plain.predict(phi)[0]).abs().max()
    assert change < 3 * plain.predict(phi)[1].max().sqrt()
    assert huber.beta / plain.beta == pytest.approx(1, abs=0.35)


def test_a_threshold_beyond_all_residuals_changes_nothing(generator):
    phi, depth, prior = points_at_5_m(5, generator)
    plain, huber = (
        fit.evidence(phi, depth.log(), prior, huber=k, steps=200, tol=1e-10) for k in (None, 50.0)
    )
    torch.testing.assert_close(huber.mean, plain.mean, rtol=1e-6, atol=1e-8)
    assert (huber.weight == 1).all()


@pytest.mark.parametrize("k", [0.5, K, 3.0])
def test_clipped_square_is_its_integral(k):
    want, _ = integrate.quad(lambda x: min(x * x, k * k) * stats.norm.pdf(x), -9, 9, points=[-k, k])
    assert clipped_square(k) == pytest.approx(want, rel=1e-8)


def test_one_or_two_points_are_never_outliers(generator):
    phi, depth, prior = points_at_5_m(5, generator)
    for n in (0, 1, 2):
        post = fit.evidence(phi[:n], depth[:n].log(), prior, huber=K)
        assert post.mean.isfinite().all()
        assert (post.weight > 0.5).all()


def test_a_threshold_that_is_not_positive_is_refused(generator):
    phi, depth, prior = points_at_5_m(5, generator)
    with pytest.raises(ValueError, match=r"`huber` is -1.0; pass a positive number"):
        fit.evidence(phi, depth.log(), prior, huber=-1.0)
