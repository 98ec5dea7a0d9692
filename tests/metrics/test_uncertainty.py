# SPDX-License-Identifier: Apache-2.0
"""Likelihood and calibration against scipy, torch, uncertainty-toolbox and closed forms."""

import math

import numpy as np
import pytest
import torch
import uncertainty_toolbox as uct
from scipy import integrate, stats

from deepbasis import latent, metrics
from deepbasis.metrics.uncertainty import count_levels, curve_from_counts
from metrics.distributions import DISTRIBUTIONS

# Steps of a trapezoid rule over a smooth curve, and of a sample of quantiles.
CLOSE = 2e-4


@pytest.fixture(params=DISTRIBUTIONS)
def pair(request):
    """A distribution, and scipy's distribution of variance 1 that it should be."""
    distribution, unit = DISTRIBUTIONS[request.param]
    return distribution, type(unit)(unit.dist, *unit.args, scale=1 / unit.std())


def draw(generator, n=500):
    mean = torch.randn(n, dtype=torch.float64, generator=generator)
    var = torch.rand(n, dtype=torch.float64, generator=generator) + 0.1
    true = latent.to_depth(torch.randn(n, dtype=torch.float64, generator=generator))
    return mean, var, true


def quantiles(unit, scale, n=20_000):
    """Means, variances and truths: errors as regular as a sample can be, `scale` the true std."""
    error = torch.as_tensor(scale * unit.ppf((np.arange(n) + 0.5) / n))
    return torch.zeros(n, dtype=torch.float64), torch.ones_like(error), error.exp()


def test_distributions_agree_with_scipy(generator, pair):
    distribution, unit = pair
    assert isinstance(distribution, metrics.ErrorDistribution)
    error, var, _ = draw(generator)
    scale = var.sqrt().numpy()
    want = unit.logpdf(error.numpy() / scale) - np.log(scale)
    # A log density may be near 0, where its relative error says nothing: it is a difference.
    np.testing.assert_allclose(distribution.log_density(error, var), want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        distribution.level(error, var), 2 * unit.cdf(np.abs(error.numpy()) / scale) - 1, atol=1e-12
    )
    for level in (0.05, 0.5, 0.99):
        half = distribution.half_width(var, level)
        np.testing.assert_allclose(half, scale * unit.ppf((1 + level) / 2), rtol=1e-9)
        np.testing.assert_allclose(distribution.level(half, var), level, atol=1e-12)


def test_pixels_keep_their_own_distribution(generator):
    """Pixels without truth go, and with them their distribution: against the same pixels alone."""
    mean, var, true_m = (part.view(2, 25, 10) for part in draw(generator))
    share = torch.rand(2, 25, 10, dtype=torch.float64, generator=generator)
    true_m = torch.where(torch.rand(2, 25, 10, generator=generator) < 0.3, 0, true_m)
    distribution, known = metrics.StudentT(1.5, 0.4, share), true_m > 0
    alone = metrics.StudentT(1.5, 0.4, share[known])
    parts = mean[known], var[known], true_m[known]
    want = metrics.nll(*parts, distribution=alone)
    assert metrics.nll(mean, var, true_m, distribution=distribution) == pytest.approx(
        want, rel=1e-12
    )
    pooled = metrics.auce(mean, var, true_m, distribution=distribution, per_image=False)
    assert pooled == pytest.approx(metrics.auce(*parts, distribution=alone), rel=1e-12)
    own = [{"distribution": metrics.StudentT(1.5, 0.4, share[i])} for i in range(2)]
    each = [metrics.auce(mean[i], var[i], true_m[i], **own[i]) for i in range(2)]
    assert metrics.auce(mean, var, true_m, distribution=distribution) == pytest.approx(
        sum(each) / 2, rel=1e-12
    )
    tally = metrics.Tally()
    for i in range(2):
        tally.add(str(i), mean[i], var[i], true_m[i], **own[i])
    assert tally.finish()["auce"] == pytest.approx(sum(each) / 2, rel=1e-9)
    own_nll = [metrics.nll(mean[i], var[i], true_m[i], **own[i]) for i in range(2)]
    assert tally.finish()["nll"] == pytest.approx(sum(own_nll) / 2, rel=1e-9)
    assert tally.calibration().area == pytest.approx(pooled, rel=1e-9)


def test_nll_is_torchs_and_scipys(generator):
    mean, var, true = draw(generator)
    got = metrics.nll(mean, var, true)
    scale = (var / 2).sqrt()
    assert got == pytest.approx(
        -torch.distributions.Laplace(mean, scale).log_prob(true.log()).mean()
    )
    want = -stats.laplace(mean.numpy(), scale.numpy()).logpdf(np.log(true.numpy())).mean()
    assert got == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("std", [0.05, 0.3, 1.0])  # depths beyond 1e9 m are no measurements
def test_nll_of_calibrated_noise_is_the_entropy(pair, std):
    """For a Laplace 1 + ln 2b, for a Gaussian 0.5 ln(2 pi e var)."""
    distribution, unit = pair
    mean, var, true = quantiles(unit, std)
    got = metrics.nll(mean, var * std**2, true, distribution=distribution)
    assert got == pytest.approx(float(unit.entropy()) + math.log(std), abs=1e-3)


def test_nll_is_lowest_at_the_right_variance(pair):
    distribution, unit = pair
    mean, var, true = quantiles(unit, 1)
    right = metrics.nll(mean, var, true, distribution=distribution)
    assert right < min(
        metrics.nll(mean, k * var, true, distribution=distribution) for k in (0.8, 1.25)
    )


def test_calibration_curve_is_the_uncertainty_toolboxs(generator):
    mean, var, true = draw(generator)
    got = metrics.calibration_curve(mean, var, true, distribution=DISTRIBUTIONS["gauss"][0])
    arrays = mean.numpy(), var.sqrt().numpy(), true.log().numpy()
    level, observed = uct.get_proportion_lists_vectorized(*arrays, num_bins=101)
    np.testing.assert_allclose(got.level, level[1:-1], rtol=1e-12)
    np.testing.assert_allclose(got.observed, observed[1:-1], rtol=1e-12)
    # Theirs also has the ends, 0 to 0.01 and 0.99 to 1, where the curve is 0 or missing.
    area = uct.mean_absolute_calibration_error(*arrays, num_bins=101) * 101 / 100
    ends = (got.observed - got.level).abs()[[0, -1]].sum() / 2 / 100
    uncounted = abs(observed[0]) / 100 + abs(1 - observed[-1]) / 100
    assert got.area == pytest.approx(area - float(ends) - uncounted, abs=1e-12)


@pytest.mark.parametrize("k", [0.5, 1.0, 2.0])
def test_auce_of_a_scale_wrong_by_k_is_an_integral(pair, k):
    distribution, unit = pair
    mean, var, true = quantiles(unit, k)
    want, _ = integrate.quad(
        lambda p: abs(2 * unit.cdf(unit.ppf((1 + p) / 2) / k) - 1 - p), 0.01, 0.99
    )
    assert metrics.auce(mean, var, true, distribution=distribution) == pytest.approx(
        want, abs=CLOSE
    )


@pytest.mark.parametrize("k", [0.5, 1.0, 2.0])
def test_auce_of_a_laplace_wrong_by_k_has_a_closed_form(k):
    """Intervals of level p hold 1 - q^(1/k), q = 1 - p: integrate |q - q^(1/k)|."""
    mean, var, true = quantiles(stats.laplace(scale=0.5**0.5), k)
    high, low = (q**2 / 2 - q ** (1 / k + 1) / (1 / k + 1) for q in (0.99, 0.01))
    assert metrics.auce(mean, var, true) == pytest.approx(abs(high - low), abs=CLOSE)


def test_auce_over_images_does_not_let_wide_and_narrow_cancel():
    narrow, wide = (quantiles(stats.laplace(), k) for k in (0.4, 1.3))
    both = [torch.stack(pair).view(2, 1, 100, 200) for pair in zip(narrow, wide, strict=True)]
    each = [metrics.auce(*one) for one in (narrow, wide)]
    assert metrics.auce(*both) == pytest.approx(sum(each) / 2, rel=1e-12)
    pooled = metrics.auce(*(torch.cat(pair) for pair in zip(narrow, wide, strict=True)))
    assert metrics.auce(*both, per_image=False) == pooled < 0.7 * metrics.auce(*both)


def test_curve_is_the_coverage_of_intervals(generator, pair):
    distribution, _ = pair
    mean, var, true = draw(generator)
    true[::7] = 0
    got = metrics.calibration_curve(mean, var, true, distribution=distribution)
    for i in (0, 49, 89, 98):
        ends = latent.interval(mean, var, float(got.level[i]), distribution)
        assert got.observed[i] == metrics.coverage(*ends, true)


def test_a_truth_at_the_end_of_an_interval_is_count_levels():
    """As `coverage` counts it: a pixel that needs exactly 0.5 is held by the interval of 0.5."""
    curve = curve_from_counts(count_levels(torch.tensor([0.0, 0.5, 0.5, 1.0], dtype=torch.float64)))
    assert curve.observed.tolist() == [0.25] * 49 + [0.75] * 50


@pytest.mark.parametrize("var", [0.0, -1.0])
def test_no_variance_is_no_certainty(var):
    for call in (metrics.nll, metrics.auce, metrics.calibration_curve):
        with pytest.raises(
            ValueError, match="a variance of 0 would mean a depth without any error: add the"
        ):
            call(torch.zeros(2), torch.tensor([1.0, var]), torch.ones(2))
