# SPDX-License-Identifier: Apache-2.0
"""Prior, and what is learned of it from collected weights."""

import numpy as np
import pytest
import torch
from scipy import stats

from deepbasis import fit
from problems import bayesian


def gather(images: int, n: int, m: int, generator: torch.Generator, noise: float = 0.1):
    p = bayesian(n, m, generator, batch=(images,), noise=noise)
    return p, fit.ml(p.phi, p.z, p.weight)


def test_plain_prior_is_the_mean_and_scatter_of_the_weights(generator):
    _, post = gather(40, 30, 5, generator)
    prior = fit.WeightSample.of(post).prior(correct=False)
    np.testing.assert_allclose(prior.mean, np.mean(post.mean.numpy(), 0), rtol=1e-12)
    np.testing.assert_allclose(prior.cov, np.cov(post.mean.numpy().T), rtol=1e-10)


def test_two_samples_merged_are_one_that_saw_all(generator):
    p, _ = gather(40, 30, 5, generator)
    whole = fit.WeightSample.of(fit.ml(p.phi, p.z, p.weight))
    halves = [fit.WeightSample.of(fit.ml(p.phi[s], p.z[s], p.weight[s]))
              for s in (slice(0, 13), slice(13, 40))]  # fmt: skip
    merged = fit.WeightSample.merge(halves)
    for correct in (False, True):
        for name in ("mean", "cov"):
            got, want = (getattr(s.prior(correct=correct), name) for s in (merged, whole))
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    for got, want in zip(merged.hyperprior(), whole.hyperprior(), strict=True):
        assert got == pytest.approx(want)


def test_images_may_be_collected_one_by_one(generator):
    p, post = gather(3, 30, 5, generator)
    alone = fit.WeightSample.merge(
        fit.WeightSample.of(fit.ml(p.phi[i], p.z[i], p.weight[i])) for i in range(3)
    )
    together = fit.WeightSample.of(post)
    torch.testing.assert_close(alone.weights, together.weights)
    torch.testing.assert_close(alone.noise_cov, together.noise_cov)


def test_correction_finds_the_spread_of_the_true_weights(generator):
    """2000 noisy fits of 8 points: the scatter is too wide, the corrected prior is not."""
    p, post = gather(2000, 8, 3, generator, noise=1.5)
    sample = fit.WeightSample.of(post)
    true = p.prior.cov.trace()
    plain, right = (sample.prior(correct=c).cov.trace() for c in (False, True))
    assert plain / true > 1.25
    assert abs(right / true - 1) < 0.12


def test_correction_leaves_a_positive_prior_when_noise_drowns_the_weights(generator):
    _, post = gather(50, 12, 3, generator, noise=100.0)
    sample = fit.WeightSample.of(post)
    values = torch.linalg.eigvalsh(sample.prior().cov)
    assert values.min() > 0
    assert values.max() < torch.linalg.eigvalsh(sample.prior(correct=False).cov).max()


def test_fewer_images_than_bases_still_give_a_prior_that_fits(generator):
    p, post = gather(4, 30, 6, generator)
    sample = fit.WeightSample.of(post)
    for correct in (False, True):
        again = fit.evidence(p.phi, p.z, sample.prior(correct=correct), p.weight)
        assert again.mean.isfinite().all()
    assert sample.hyperprior().beta.shape > 0


def test_gamma_of_beta_is_scipys(generator):
    """Noise precisions drawn from a known Gamma come back, and as scipy's own fit has them."""
    shape, rate, images = 2.0, 0.02, 400
    drawn = stats.gamma(shape, scale=1 / rate).rvs(images, random_state=generator.initial_seed())
    zeros = torch.zeros(images, 8, dtype=torch.float64)
    w = torch.randn(images, 8, dtype=torch.float64, generator=generator)
    sample = fit.WeightSample(w + zeros, torch.from_numpy(drawn), torch.zeros(8, 8).double())
    got = sample.hyperprior().beta
    want = stats.gamma.fit(drawn, floc=0)
    assert (got.shape, 1 / got.rate) == pytest.approx((want[0], want[2]), rel=1e-6)
    assert got.shape == pytest.approx(shape, rel=0.25)
    assert got.rate == pytest.approx(rate, rel=0.35)


def test_alphas_gamma_has_mean_one_and_knows_heavy_tails(generator):
    """Weights whose scale varies from image to image ask for a smaller shape."""
    m, images = 10, 500
    w = torch.randn(images, m, dtype=torch.float64, generator=generator)
    scale = torch.randn(images, 1, dtype=torch.float64, generator=generator).exp()
    empty = torch.zeros(m, m, dtype=torch.float64)
    even, uneven = (
        fit.WeightSample(x, torch.ones(images).double(), empty).hyperprior().alpha
        for x in (w, w * scale)
    )
    assert even.rate == even.shape <= m / 2
    assert uneven.shape < even.shape / 2


def test_images_all_alike_give_the_strongest_hyperprior_allowed():
    beta = torch.full((5,), 100.0, dtype=torch.float64)
    w = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = fit.WeightSample(w, beta, torch.zeros(4, 4).double()).hyperprior().beta
    assert got.shape == 2.0
    assert got.shape / got.rate == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("mean", "cov", "message"),
    [
        (torch.zeros(2), torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "not symmetric"),
        (torch.zeros(2), torch.full((2, 2), torch.nan), "NaN"),
    ],
)
def test_a_prior_that_is_none_is_refused(mean, cov, message):
    with pytest.raises(ValueError, match=message):
        fit.Prior(mean, cov)


def test_a_covariance_with_a_negative_eigenvalue_is_refused():
    prior = fit.Prior(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(ValueError, match="negative eigenvalue, -1"):
        fit.evidence(torch.ones(3, 2), torch.ones(3), prior)


def test_nothing_collected_says_so(generator):
    with pytest.raises(ValueError, match="no weights were collected"):
        fit.WeightSample.merge([])
    _, post = gather(1, 30, 6, generator)
    for learn in (fit.WeightSample.of(post).prior, fit.WeightSample.of(post).hyperprior):
        with pytest.raises(ValueError, match="at least 2 images"):
            learn()
