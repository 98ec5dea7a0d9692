# SPDX-License-Identifier: Apache-2.0
"""Errors and coverage against scikit-learn and by hand."""

import pytest
import torch
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from deepbasis import fit, metrics


def test_errors_are_scikit_learns_where_the_truth_is_known(generator):
    true = 1 + torch.rand(30, 40, dtype=torch.float64, generator=generator)
    depth = true + 0.1 * torch.randn(30, 40, dtype=torch.float64, generator=generator)
    holes = true.clone()
    holes[::2] = 0
    holes[1, 0] = torch.nan
    keep = holes.isfinite() & (holes > 0)
    for ours, theirs in (
        (metrics.mae, mean_absolute_error),
        (metrics.rmse, root_mean_squared_error),
    ):
        assert ours(depth, holes) == pytest.approx(theirs(true[keep], depth[keep]), rel=1e-12)


def test_errors_by_hand():
    depth, true = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([2.0, 4.0, 0.0])
    assert metrics.mae(depth, true) == pytest.approx(1.5)
    assert metrics.rmse(depth, true) == pytest.approx(2.5**0.5)


def test_coverage_counts_pixels_with_a_truth():
    low, high = torch.zeros(5), torch.tensor([1.0, 1.0, 1.0, 1.0, 9.0])
    true = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.0])
    assert metrics.coverage(low, high, true) == 0.5


def test_nees_is_the_fits():
    assert metrics.nees is fit.nees


@pytest.mark.parametrize("truth", [torch.zeros(3), torch.full((3,), torch.nan)])
def test_an_empty_truth_is_an_error_not_a_perfect_score(truth):
    ones = torch.ones(3)
    for call in (metrics.mae, metrics.rmse, lambda a, t: metrics.coverage(a, a, t)):
        with pytest.raises(ValueError, match="no pixel has a true depth"):
            call(ones, truth)
