# SPDX-License-Identifier: Apache-2.0
"""Metres and log depth against scipy's Laplace and a sample."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Laplace

from deepbasis import latent


def test_there_and_back_over_eight_orders_of_magnitude():
    depth = torch.logspace(-3, 5, 50, dtype=torch.float64)
    torch.testing.assert_close(latent.to_depth(latent.to_latent(depth)), depth, rtol=1e-14, atol=0)
    assert latent.to_latent(torch.tensor(torch.e)) == pytest.approx(1)


def test_no_measurement_is_masked_and_harmless():
    depth = torch.tensor([0.0, torch.nan, torch.inf, 2.0])
    assert latent.measured(depth).tolist() == [False, False, False, True]
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
