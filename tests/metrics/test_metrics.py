# SPDX-License-Identifier: Apache-2.0
"""Errors and coverage against scikit-learn and by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    mean_absolute_error,
    mean_absolute_percentage_error,
    root_mean_squared_error,
)

from deepbasis import fit, metrics

ERRORS = (metrics.mae, metrics.rmse, metrics.rel, metrics.delta, metrics.imae, metrics.irmse)


def depths(generator, holes=True):
    """Predicted and true depth; every other row and one more pixel have no truth."""
    true = 1 + torch.rand(30, 40, dtype=torch.float64, generator=generator)
    depth = true * (0.3 * torch.randn(30, 40, dtype=torch.float64, generator=generator)).exp()
    if holes:
        true[::2] = 0
        true[1, 0] = torch.nan
    return depth, true


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (metrics.mae, mean_absolute_error),
        (metrics.rmse, root_mean_squared_error),
        (metrics.rel, mean_absolute_percentage_error),
        (metrics.imae, lambda t, d: 1000 * mean_absolute_error(1 / t, 1 / d)),
        (metrics.irmse, lambda t, d: 1000 * root_mean_squared_error(1 / t, 1 / d)),
    ],
)
def test_errors_are_scikit_learns_where_the_truth_is_known(generator, ours, theirs):
    depth, true = depths(generator)
    keep = true.isfinite() & (true > 0)
    assert ours(depth, true) == pytest.approx(theirs(true[keep], depth[keep]), rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_delta_counts_ratios_either_way(generator, k):
    depth, true = depths(generator, holes=False)
    ratios = [max(d / t, t / d) for d, t in zip(depth.view(-1), true.view(-1), strict=True)]
    assert metrics.delta(depth, true, k) == pytest.approx(100 * np.mean(np.array(ratios) < 1.25**k))
    assert metrics.delta(torch.tensor([1.25**k]), torch.ones(1), k) == 0  # below, not at


def test_errors_by_hand():
    depth, true = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 4.0, 0.0])
    assert metrics.mae(depth, true) == pytest.approx(1.5)
    assert metrics.rmse(depth, true) == pytest.approx(2.5**0.5)
    assert metrics.rel(depth, true) == pytest.approx(0.5)
    assert metrics.imae(depth, true) == pytest.approx(375)
    assert metrics.irmse(depth, true) == pytest.approx(1000 * (0.15625) ** 0.5)
    assert [metrics.delta(depth, true, k) for k in (1, 2, 3)] == [0, 0, 0]


def test_units(generator):
    """In feet, errors grow as depth does, inverse errors shrink, and ratios stay."""
    depth, true = depths(generator)
    powers = dict(zip(ERRORS, (1, 1, 0, 0, -1, -1), strict=True))
    for error, power in powers.items():
        want = error(depth, true) * 3.28**power
        assert error(3.28 * depth, 3.28 * true) == pytest.approx(want, rel=1e-12)


def test_coverage_and_sharpness_count_pixels_with_a_truth():
    low, high = torch.zeros(5), torch.tensor([1.0, 1.0, 1.0, 1.0, 9.0])
    true = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.0])
    assert metrics.coverage(low, high, true) == 0.5
    assert metrics.sharpness(low, high, true) == 1.0


def test_nees_is_the_fits():
    assert metrics.nees is fit.nees


def calls(value):
    """Every metric of one map, with `value` for all that is predicted."""
    ones = torch.ones_like(value)
    return {
        **{error.__name__: lambda t, e=error: e(value, t) for error in ERRORS},
        "coverage": lambda t: metrics.coverage(value, value, t),
        "sharpness": lambda t: metrics.sharpness(value, value, t),
        "ause": lambda t: metrics.ause(value, ones, t),
        "sparsification_curve": lambda t: metrics.sparsification_curve(ones, value, t),
        "nll": lambda t: metrics.nll(value, ones, t),
        "auce": lambda t: metrics.auce(value, ones, t),
        "calibration_curve": lambda t: metrics.calibration_curve(ones, value, t),
        "tally": lambda t: metrics.Tally().add("one", value, ones, t),
    }


@pytest.mark.parametrize("truth", [torch.zeros(3), torch.full((3,), torch.nan)])
@pytest.mark.parametrize("name", calls(torch.ones(3)))
def test_an_empty_truth_is_an_error_not_a_perfect_score(name, truth):
    with pytest.raises(ValueError, match="no pixel has a true depth"):
        calls(torch.ones(3))[name](truth)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", calls(torch.ones(3)))
def test_what_is_not_a_number_is_refused_where_it_would_count(name, bad):
    call = calls(torch.tensor([1.0, bad, 1.0]))[name]
    with pytest.raises(ValueError, match="is NaN or infinite at 1 of 3 pixels"):
        call(torch.ones(3))
    call(torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("error", [metrics.delta, metrics.imae, metrics.irmse])
def test_ratios_need_positive_depths(error):
    with pytest.raises(ValueError, match="`depth_m` is 0 or negative at 1 of 2 pixels"):
        error(torch.tensor([0.0, 1.0]), torch.ones(2))
    with pytest.raises(ValueError, match="`k` is 4"):
        metrics.delta(torch.ones(2), torch.ones(2), 4)


def test_no_gradient_is_kept(generator):
    depth, true = depths(generator)
    assert metrics.mae(depth.requires_grad_(), true) > 0
