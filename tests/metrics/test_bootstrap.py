# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals against scipy's bootstrap and the normal law."""

import numpy as np
import pytest
import torch
from scipy import stats

from deepbasis import metrics
from deepbasis.metrics import confidence, paired


def rows(generator, n=60):
    values = torch.rand(2, n, dtype=torch.float64, generator=generator)
    return {"mae": values[0].square(), "nll": values[1] - 1}


@pytest.mark.parametrize("level", [0.68, 0.95])
def test_interval_is_scipys(generator, level):
    table = rows(generator)
    got = confidence(table, level, draws=4000)
    for name, values in table.items():
        want = stats.bootstrap(
            (values.numpy(),), np.mean, confidence_level=level, method="percentile",
            n_resamples=4000, rng=np.random.default_rng(0),
        ).confidence_interval  # fmt: skip
        # Ends of a percentile interval of 4000 draws scatter by about a 25th of a standard error.
        error = float(values.std()) / len(values) ** 0.5
        assert got[name] == pytest.approx(tuple(want), abs=0.2 * error)


def test_it_holds_the_truth_as_often_as_it_says():
    """Of 200 samples, 95 % intervals hold the true mean; four standard errors are 6 %."""
    generator, held = torch.Generator().manual_seed(0), 0
    for seed in range(200):
        values = torch.randn(50, dtype=torch.float64, generator=generator)
        low, high = confidence({"x": values}, seed=seed, draws=300)["x"]
        held += low < 0 < high
    assert held / 200 == pytest.approx(0.95, abs=0.06)


def test_a_seed_makes_it_repeatable(generator):
    table = rows(generator)
    assert confidence(table, seed=3) == confidence(table, seed=3) != confidence(table, seed=4)


def test_metrics_are_drawn_together(generator):
    """The same images for each: a copy has the same interval, whatever stands beside it."""
    table = rows(generator)
    got = confidence(table | {"copy": 2 * table["mae"]})
    assert got["copy"] == pytest.approx(tuple(2 * end for end in got["mae"]))
    assert confidence({"mae": table["mae"]})["mae"] == pytest.approx(got["mae"])


def two_models(generator):
    """A model and one that is 2 % worse, over images of which some are very hard."""
    better, worse = metrics.Tally(), metrics.Tally()
    for i in range(20):
        true = 1 + torch.rand(8, 8, dtype=torch.float64, generator=generator)
        noise = torch.randn(8, 8, dtype=torch.float64, generator=generator)
        noise = noise * 0.01 * 2 ** (i % 5)
        var = torch.full_like(true, 0.01)
        better.add(f"{i}", true.log() + noise, var, true)
        worse.add(f"{i}", true.log() + 1.02 * noise, var, true)
    return better, worse


def test_pairs_see_what_single_intervals_cannot(generator):
    better, worse = two_models(generator)
    low, high = confidence(paired(worse, better))["mae"]
    assert 0 < low < worse.finish()["mae"] - better.finish()["mae"] < high
    ours, theirs = (confidence(t.per_image())["mae"] for t in (better, worse))
    assert ours[1] > theirs[0]


def test_refusals(generator):
    better, worse = two_models(generator)
    worse.add("more", *(torch.ones(2, 2) for _ in range(3)))
    with pytest.raises(
        ValueError, match="1 images were scored by only one of the models, such as 'more'"
    ):
        paired(better, worse)
    with pytest.raises(ValueError, match="needs two images or more, not 1"):
        confidence({"mae": torch.ones(1)})
    with pytest.raises(ValueError, match="pass a probability between 0 and 1"):
        confidence(rows(generator), 95.0)
