# SPDX-License-Identifier: Apache-2.0
"""Metres and log depth against scipy's distributions and samples."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Laplace, StudentT

from deepbasis import latent


def test_there_and_back_over_eight_orders_of_magnitude():
    depth = torch.logspace(-3, 5, 50, dtype=torch.float64)
    torch.testing.assert_close(latent.to_depth(latent.to_latent(depth)), depth, rtol=1e-14, atol=0)
    assert latent.to_latent(torch.tensor(torch.e)) == pytest.approx(1)


def test_no_measurement_is_masked_and_harmless():
    depth = torch.tensor([0.0, torch.nan, torch.inf, 2.0])
    assert latent.is_valid(depth).tolist() == [False, False, False, True]
    assert latent.to_latent(depth).tolist() == pytest.approx([0, 0, 0, np.log(2)])


@pytest.mark.parametrize("level", [0.5, 0.6827, 0.9, 0.99])
def test_interval_is_scipys_and_holds_that_share_of_a_sample(level):
    torch.manual_seed(0)
    mean, var = torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.08, dtype=torch.float64)
    low, high = latent.interval(mean, var, level)
    want = np.exp(stats.laplace(0.7, (0.08 / 2) ** 0.5).interval(level))
    assert (low.item(), high.item()) == pytest.approx(tuple(want), rel=1e-12)
    n = 100_000
    drawn = Laplace(mean, (var / 2).sqrt()).sample((n,)).exp()
    inside = ((drawn > low) & (drawn < high)).double().mean()
    assert inside == pytest.approx(level, abs=4 * (level * (1 - level) / n) ** 0.5)
    assert drawn.median() == pytest.approx(latent.to_depth(mean).item(), rel=0.01)


def test_std_is_half_the_one_sigma_interval():
    mean, var = torch.tensor(1.0), torch.tensor(0.01)
    low, high = latent.interval(mean, var, 0.682689492)
    assert latent.std(mean, var) == pytest.approx((high - low).item() / 2, rel=1e-5)
    assert latent.std(mean, torch.tensor(0.0)) == 0


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0])
def test_a_level_is_a_probability(level):
    with pytest.raises(ValueError, match="pass a probability between 0 and 1"):
        latent.interval(torch.tensor(0.0), torch.tensor(1.0), level)


DOF, WIDTH = 1.3, 0.25
SHARES = torch.tensor([0.0, 1e-4, 0.05, 0.37, 0.9, 1.0], dtype=torch.float64)


def student():
    """Six pixels, and the same distributions by scipy."""
    var = torch.linspace(0.5, 2, len(SHARES), dtype=torch.float64)
    dof = np.where(SHARES > 0, DOF / SHARES.clamp(min=1e-9), 1e12)
    return var, latent.StudentT(DOF, WIDTH, SHARES), stats.t(dof, 0, var.sqrt() * WIDTH**SHARES)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9, 0.99])
def test_students_intervals_are_scipys(level):
    var, distribution, theirs = student()
    half = distribution.half_width(var, level)
    np.testing.assert_allclose(half, theirs.ppf((1 + level) / 2), rtol=2e-3)
    np.testing.assert_allclose(distribution.level(half, var), level, rtol=2e-3)
    np.testing.assert_allclose(distribution.half_width(var.float(), level), half, rtol=1e-4)
    gauss = var[0].sqrt() * stats.norm.ppf((1 + level) / 2)
    assert half[0] == pytest.approx(float(gauss), rel=2e-3)


@pytest.mark.parametrize("error", [0.0, -0.3, 4.0])
def test_students_density_is_scipys_and_the_slope_of_its_level(error):
    var, distribution, theirs = student()
    error = torch.full_like(var, error)
    np.testing.assert_allclose(
        distribution.log_density(error, var), theirs.logpdf(error), atol=2e-3
    )
    np.testing.assert_allclose(
        distribution.level(error, var), 2 * theirs.cdf(error.abs()) - 1, atol=1e-4
    )
    step = 1e-6
    slope = (distribution.level(error.abs() + step, var) - distribution.level(error.abs(), var)) / (
        2 * step
    )
    np.testing.assert_allclose(
        slope, distribution.log_density(error, var).exp(), rtol=1e-3, atol=1e-9
    )


def test_some_pixels_of_a_distribution(generator):
    var, distribution, _ = student()
    where = torch.rand(len(var), generator=generator) > 0.4
    some = distribution.at(where).half_width(var[where], 0.9)
    assert torch.equal(some, distribution.half_width(var, 0.9)[where])
    assert latent.LAPLACE.at(where) is latent.LAPLACE


def test_images_of_a_batch_keep_their_own_distribution(generator):
    dof, width = torch.tensor([1.3, 5.0, 2.0]), torch.tensor([0.25, 0.9, 0.5])
    share, var, error = torch.rand(3, 3, 1, 4, 5, dtype=torch.float64, generator=generator) + 1e-3
    batch = latent.StudentT(
        *(x.view(3, 1, 1, 1).double() for x in (dof, width)), share.clamp(max=1)
    )
    where = torch.rand(3, 1, 4, 5, generator=generator) > 0.4
    for i in range(3):
        one = latent.StudentT(float(dof[i]), float(width[i]), batch.noise_share[i])
        for name in ("level", "log_density"):
            got, some = (getattr(x, name) for x in (batch, batch.at(where)))
            want = getattr(one, name)(error[i], var[i])
            torch.testing.assert_close(got(error, var)[i], want, rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(
                some(error[where], var[where])[where[:i].sum() : where[: i + 1].sum()],
                want[where[i]], rtol=1e-6, atol=1e-9,
            )  # fmt: skip
        want = one.half_width(var[i], 0.9)
        torch.testing.assert_close(batch.half_width(var, 0.9)[i], want, rtol=1e-6, atol=0)
        some = batch.at(where).half_width(var[where], 0.9)
        part = slice(int(where[:i].sum()), int(where[: i + 1].sum()))
        torch.testing.assert_close(some[part], want[where[i]], rtol=1e-6, atol=0)


def test_an_error_distribution_is_found_again(generator):
    torch.manual_seed(100 + generator.initial_seed())
    n = 100_000
    share, var = torch.rand(2, n, dtype=torch.float64, generator=generator) + 1e-3
    share = share.clamp(max=1)
    error = StudentT(DOF / share).sample() * WIDTH**share * var.sqrt()
    dof, width = latent.fit_error_distribution(error, var, share)
    assert dof == pytest.approx(DOF, rel=0.05)
    assert width == pytest.approx(WIDTH, rel=0.05)


def test_the_distribution_of_noise_alone_is_scipys_fit(generator):
    torch.manual_seed(100 + generator.initial_seed())
    error = 0.4 * StudentT(torch.tensor(3.0, dtype=torch.float64)).sample((3000,))
    found = latent.fit_error_distribution(error, torch.ones_like(error), torch.ones_like(error))
    dof, _, width = stats.t.fit(error.numpy(), floc=0)
    assert found == pytest.approx((dof, width), rel=1e-3)


@pytest.mark.parametrize("dof", [1.3, 4.0])
def test_normal_scores_become_errors_of_the_same_probability(dof):
    """Against scipy, from the centre to 1 in a million."""
    score, share = torch.linspace(-5, 5, 101)[:, None], torch.linspace(0.01, 1, 23)
    var, sign = torch.full_like(share, 0.04), np.sign(score.numpy())
    found = latent.StudentT(dof, 0.4, share).from_normal(score.expand(101, 23), var)
    tail = stats.norm.cdf(-score.abs().double().numpy())
    shares = share.double().numpy()
    want = -stats.t.ppf(tail, dof / shares) * 0.4**shares * 0.2 * sign
    np.testing.assert_allclose(found.numpy(), want, rtol=2e-3, atol=1e-6)
    laplace = latent.LAPLACE.from_normal(score, var[:1])
    want = -stats.laplace.ppf(tail, scale=0.02**0.5) * sign
    np.testing.assert_allclose(laplace.numpy(), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dof", [1.3, 4.0, None])
def test_gaussians_of_a_random_scale_have_the_distribution(dof):
    """Averaged over the scales, against scipy."""
    share, var = torch.linspace(0.01, 1, 23), torch.full((23,), 0.04)
    mixture = latent.StudentT(dof, 0.4, share) if dof else latent.LAPLACE
    std = mixture.gaussian_std((torch.arange(20_000) + 0.5) / 20_000, var).numpy()
    for error in (0.02, 0.1, 0.5):
        if dof:
            shares = share.double().numpy()
            want = stats.t.cdf(error / (0.4**shares * 0.2), dof / shares)
        else:
            want = stats.laplace.cdf(error, scale=0.02**0.5)
        np.testing.assert_allclose(stats.norm.cdf(error / std).mean(0), want, atol=1e-3)
