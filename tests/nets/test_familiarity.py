# SPDX-License-Identifier: Apache-2.0
"""Familiarity against distances computed otherwise, and what follows from it."""

import numpy as np
import pytest
import scipy.linalg
import torch

from deepbasis import fit
from deepbasis.nets.familiarity import (
    DISCRIMINANT_SHRINKAGE,
    DISCRIMINANT_WEIGHT,
    RAMP,
    SHRINKAGE,
    Familiarity,
    discriminant,
)

CHANNELS = (2, 3, 1, 6)


@pytest.fixture
def summaries(generator):
    """Of 200 frames, correlated between channels."""
    mix = torch.randn(12, 12, generator=generator)
    return torch.randn(200, 12, generator=generator) @ mix + 3


@pytest.fixture
def distorted(summaries, generator):
    """The same frames, in which two channels are larger and two vary more."""
    moved = summaries.clone()
    moved[:, [1, 7]] += 4
    moved[:, [2, 3]] += 2 * torch.randn(200, 2, generator=generator)
    return moved


@pytest.fixture
def known(summaries, distorted):
    found = Familiarity()
    found.learn_summaries(summaries, distorted, CHANNELS)
    typical = found.distance(summaries).sort().values
    found.store(typical=typical, scale=3.0, offset_var=0.5, focal=0.8, focal_power=0.5)
    return found


def test_distance_is_the_mahalanobis_distance_of_each_stage(known, summaries):
    x = summaries.double().numpy()
    squares, start = [], 0
    for c in CHANNELS:
        part = x[:, start : start + c]
        std = part.std(0, ddof=1)
        cov = np.cov(part.T).reshape(c, c) + SHRINKAGE * np.diag(std**2)
        off = part - part.mean(0)
        squares.append((off @ np.linalg.inv(cov) * off).sum(1) / c)
        start += c
    expected = np.sqrt(np.mean(squares, 0))
    known.store(direction=None)  # as in files of earlier versions
    np.testing.assert_allclose(known.distance(summaries).numpy(), expected, rtol=1e-4)
    assert expected.mean() == pytest.approx(1, abs=0.1)


def test_the_discriminant_separates_most(summaries, distorted):
    """The largest ratio of the variance between classes to that within, by eigenvectors."""
    std = summaries.double().std(0).numpy()
    parts = [part.double().numpy() / std for part in (summaries, distorted)]
    within = np.concatenate([part - part.mean(0) for part in parts])
    cov = np.cov(within.T, bias=True) + DISCRIMINANT_SHRINKAGE * np.eye(12)
    apart = parts[1].mean(0) - parts[0].mean(0)
    expected = scipy.linalg.eigh(np.outer(apart, apart), cov)[1][:, -1]
    found = discriminant(summaries, distorted).numpy() * std
    np.testing.assert_allclose(found, expected * np.sign(expected @ apart), rtol=1e-4, atol=1e-5)


def test_distorted_frames_are_farther_away_because_of_the_discriminant(known, summaries, distorted):
    far, near = known.distance(distorted), known.distance(summaries)
    along = DISCRIMINANT_WEIGHT * discriminant(summaries, distorted)
    torch.testing.assert_close(known.direction, along.float())
    direction = known.direction
    known.store(direction=None)
    change = (distorted - summaries.mean(0)) @ direction
    torch.testing.assert_close(far - known.distance(distorted), change, atol=1e-4, rtol=1e-4)
    assert change.mean() > DISCRIMINANT_WEIGHT
    assert float((near - known.distance(summaries)).mean()) == pytest.approx(0, abs=1e-4)


def test_familiarity_is_the_share_of_frames_that_are_as_unusual(known, summaries):
    shares = [known.of(one[None]) for one in summaries]
    # Alone or in a batch, distances are rounded differently, so neighbours may change places.
    assert sorted(shares) == pytest.approx([(2 + i) / 201 for i in range(200)], abs=1.5 / 201)
    assert known.of(summaries[:1] + 100) == pytest.approx(1 / 201)


def test_the_prior_is_widened_for_unusual_images_only(known, summaries):
    start, end = known.typical.quantile(torch.tensor(RAMP))
    usual = known.distance(summaries) <= start
    scale, offset_var, shift = known.widening(summaries)
    assert (scale[usual] == 1).all()
    assert (offset_var[usual] == 0).all()
    assert shift == 0
    between = ~usual & (known.distance(summaries) < end)
    assert ((scale[between] > 1) & (scale[between] < 3)).all()
    scale, offset_var, _ = known.widening(summaries[:1] + 100)
    assert (float(scale), float(offset_var)) == pytest.approx((3, 0.5))


def test_a_wider_prior_adds_its_offset_and_vanishes_with_points(generator):
    """Without points all variances grow as asked; with many, hardly anything changes."""
    m = 5
    root = torch.randn(m, m, generator=generator, dtype=torch.float64)
    prior = fit.Prior(torch.randn(m, generator=generator).double(), root @ root.mT)
    by = fit.Widening(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.7]), 0.3)
    wide = prior.widened(by)
    phi = torch.randn(2, 400, m, generator=generator, dtype=torch.float64)
    phi[..., 0] = 1
    z = (phi @ torch.ones(m).double()) + 0.05 * torch.randn(2, 400, generator=generator)
    hyper = fit.Hyperprior(beta=fit.Gamma(1, 0.0025))
    none = fit.evidence(phi[:, :0], z[:, :0], wide, hyperprior=hyper).predict(phi)
    plain = fit.evidence(phi[:, :0], z[:, :0], prior, hyperprior=hyper).predict(phi)
    torch.testing.assert_close(none[0], plain[0] + 0.3)
    torch.testing.assert_close(none[1][0], plain[1][0])
    torch.testing.assert_close(none[1][1], 2 * plain[1][1] + 0.7)
    many, same = (fit.evidence(phi, z, one, hyperprior=hyper).predict(phi) for one in (wide, prior))
    torch.testing.assert_close(many[0], same[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(many[1], same[1], atol=0, rtol=0.02)


def test_nothing_is_known_before_it_is_learned_and_a_file_brings_it_back(known, summaries):
    fresh = Familiarity()
    assert fresh.of(summaries[:1]) is fresh.widening(summaries) is None
    assert fresh.depth_factor(2.0) == 1
    assert not fresh.state_dict()
    fresh.load_state_dict(known.state_dict())
    torch.testing.assert_close(fresh.distance(summaries), known.distance(summaries))
    old = {name: value for name, value in known.state_dict().items() if name != "direction"}
    earlier = Familiarity()
    earlier.load_state_dict(old)
    known.store(direction=None)
    torch.testing.assert_close(earlier.distance(summaries), known.distance(summaries))
    known.forget()
    assert not known.state_dict()


def test_a_longer_lens_makes_things_farther(known):
    assert known.depth_factor(0.8) == pytest.approx(1)
    assert known.depth_factor(3.2) == pytest.approx(2)
    assert known.depth_factor(0.4) == 1
