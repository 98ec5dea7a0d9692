# SPDX-License-Identifier: Apache-2.0
"""A prior brought to new frames."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from deepbasis import fit
from deepbasis.fit import transfer
from problems import bayesian

NOISE = 0.1


def fits_of(p, old):
    """The fits of all frames of a problem at its true noise, under another prior."""
    frames = zip(p.phi, p.z, p.weight, strict=True)
    return [fit.posterior(*frame[:2], old, frame[2], beta=NOISE**-2) for frame in frames]


def shifted(prior, generator):
    """What a training elsewhere might have found: another mean, another spread."""
    m = len(prior.mean)
    off = torch.randn(m, dtype=torch.float64, generator=generator)
    return fit.Prior(prior.mean + 2 * off, prior.cov + torch.outer(off, off) + torch.eye(m))


def test_the_old_prior_counts_as_frames_seen_before(generator):
    """Frames without noise: the mean and scatter of all, as if the old ones had been kept."""
    before, now = torch.randn(2, 12, 4, dtype=torch.float64, generator=generator)
    now = now[:7] + 3
    old = fit.Prior(before.mean(0), torch.from_numpy(np.cov(before.T.numpy(), bias=True)))
    phi = torch.randn(7, 9, 4, dtype=torch.float64, generator=generator)
    z = (phi @ now[..., None])[..., 0]
    fits = [fit.posterior(a, b, old, beta=1e12) for a, b in zip(phi, z, strict=True)]
    found = fit.adapt_prior(fits, old, [fit.Strength(12, 12)]).prior
    both = np.concatenate([before, now])
    np.testing.assert_allclose(found.mean, both.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.cov, np.cov(both.T, bias=True), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("n", [3, 30])
def test_em_climbs_the_evidence_and_ends_where_it_is_flat(n, generator, monkeypatch):
    """The evidence of all points in its N x N form, and the old prior's made-up frames."""
    p = bayesian(n, 4, generator, batch=(6,), noise=NOISE)
    old, strength = shifted(p.prior, generator), fit.Strength(2.0, 5.0)

    def objective(mean, cov):
        spread = torch.diag_embed(NOISE**2 / p.weight) + p.phi @ cov @ p.phi.mT
        normal = torch.distributions.MultivariateNormal(p.phi @ mean, spread)
        moved = mean - old.mean
        squares = strength.cov * old.cov + strength.mean * torch.outer(moved, moved)
        made_up = strength.cov * cov.logdet() + torch.linalg.solve(cov, squares).trace()
        return normal.log_prob(p.z).sum() - made_up / 2

    values = []
    for steps in (0, 1, 2, 4, 60):
        monkeypatch.setattr(transfer, "STEPS", steps)
        found = fit.adapt_prior(fits_of(p, old), old, [strength]).prior
        values.append(float(objective(found.mean, found.cov)))
    assert all(after > before - 1e-9 for before, after in pairwise(values))  # or rounding
    assert values[1] > values[0] + 1
    mean, cov = found.mean.requires_grad_(), found.cov.requires_grad_()
    slopes = torch.autograd.grad(objective(mean, cov), (mean, cov))
    assert all(slope.abs().max() < 1e-3 for slope in slopes)


@pytest.mark.parametrize("n", [2, 40])
def test_a_frames_reduced_rows_tell_what_all_its_points_do(n, generator):
    p = bayesian(n, 5, generator, batch=(3,), noise=NOISE)
    fits = fits_of(p, p.prior)
    rows = transfer._stack([transfer.reduce(post) for post in fits])
    assert rows.phi.shape[1] == min(n, 6)
    got = rows.fit(p.prior)
    for index, want in enumerate(fits):
        torch.testing.assert_close(got.mean[index], want.mean)
        torch.testing.assert_close(got.cov[index], want.cov)
    other = shifted(p.prior, generator)  # evidences differ by what does not depend on the prior
    for index in range(3):
        change = rows.fit(other).log_evidence[index] - got.log_evidence[index]
        phi, noise = p.phi[index], torch.diag(NOISE**2 / p.weight[index])
        ends = [
            stats.multivariate_normal.logpdf(
                p.z[index], phi @ prior.mean, phi @ prior.cov @ phi.T + noise
            )
            for prior in (other, p.prior)
        ]
        assert float(change) == pytest.approx(ends[0] - ends[1], rel=1e-8)


def test_few_frames_of_many_bases_beat_the_old_prior_and_the_raw_covariance(generator):
    m, frames = 16, 12
    p = bayesian(60, m, generator, batch=(frames + 30,), noise=NOISE)
    old = shifted(p.prior, generator)
    fits = fits_of(p, old)
    found = fit.adapt_prior(fits[:frames], old)
    raw = fit.WeightSample.of(fit.ml(p.phi[:frames], p.z[:frames], p.weight[:frames])).prior()
    raw = fit.Prior(raw.mean, raw.cov + 1e-6 * torch.eye(m))  # 12 vectors span no 16 directions
    few = slice(0, 8)

    def loss(prior):
        unseen = (part[frames:, few] for part in (p.phi, p.z, p.weight))
        phi, z, weight = unseen
        return -float(fit.posterior(phi, z, prior, weight, beta=NOISE**-2).log_evidence.mean())

    assert loss(found.prior) < loss(old) - 1
    assert loss(found.prior) < loss(raw) - 1
    assert len(found.scores) == 16
    assert found.strength.mean < transfer.KEEP


def test_frames_of_the_old_domain_leave_its_covariance(generator):
    p = bayesian(60, 16, generator, batch=(8,), noise=NOISE)
    found = fit.adapt_prior(fits_of(p, p.prior), p.prior)
    assert found.strength.cov >= 16


def test_a_frame_without_points_changes_nothing(generator):
    p = bayesian(10, 4, generator, batch=(6,), noise=NOISE)
    fits = fits_of(p, p.prior)
    none = fit.evidence(torch.zeros(0, 4), torch.zeros(0), p.prior)
    strength = [fit.Strength(3.0, 3.0)]
    with_it = fit.adapt_prior([*fits, none], p.prior, strength).prior
    without = fit.adapt_prior(fits, p.prior, strength).prior
    assert torch.equal(with_it.cov, without.cov)
    with pytest.raises(ValueError, match="1 of 2 frames have points; a prior needs at least 2"):
        fit.adapt_prior([fits[0], none], p.prior)
