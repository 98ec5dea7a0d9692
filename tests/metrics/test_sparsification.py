# SPDX-License-Identifier: Apache-2.0
"""AUSE against a slow twin, closed forms and what must not change it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepbasis import metrics
from refusals import refusals

KINDS = ("mae", "rmse")


def twin_curve(error, uncertainty, kind, fractions):
    """Sort, remove, score, again and again."""
    rest = error[np.argsort(-uncertainty, kind="stable")]
    curve = []
    for k in range(fractions):
        left = np.abs(rest[k * len(rest) // fractions :])
        curve.append(left.mean() if kind == "mae" else np.sqrt((left**2).mean()))
    return np.array(curve)


def twin_ause(error, uncertainty, kind="mae", fractions=100):
    gap = twin_curve(error, uncertainty, kind, fractions)
    gap = gap - twin_curve(error, np.abs(error), kind, fractions)
    return np.trapezoid(gap, np.arange(fractions) / fractions)


def problem(generator, *size):
    true = 5 + torch.rand(*size, dtype=torch.float64, generator=generator)
    std = torch.rand(*size, dtype=torch.float64, generator=generator) + 0.1
    return true + std * torch.randn(*size, dtype=torch.float64, generator=generator), std, true


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 7, 100, 1234])
@pytest.mark.parametrize("fractions", [2, 50, 100])
def test_curves_are_the_twins(generator, kind, n, fractions):
    depth, std, true = problem(generator, n)
    got = metrics.sparsification_curve(depth, std, true, error=kind, fractions=fractions)
    error = (depth - true).numpy()
    for ours, order in ((got.error, std.numpy()), (got.oracle, np.abs(error))):
        np.testing.assert_allclose(ours, twin_curve(error, order, kind, fractions), rtol=1e-12)
    want = pytest.approx(twin_ause(error, std.numpy(), kind, fractions), abs=1e-13)
    assert metrics.ause(depth, std, true, error=kind, fractions=fractions) == want


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_without_truth_do_not_exist(generator, kind):
    depth, std, true = problem(generator, 300)
    holes = true.clone()
    holes[::3] = 0
    depth[::3], std[::3] = torch.nan, torch.inf
    keep = holes > 0
    alone = metrics.ause(depth[keep], std[keep], true[keep], error=kind)
    assert metrics.ause(depth, std, holes, error=kind) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_images_apart_or_together(generator, kind):
    depth, std, true = problem(generator, 3, 1, 8, 9)
    std[1] *= 10
    errors, stds = (depth - true).flatten(1).numpy(), std.flatten(1).numpy()
    each = [twin_ause(e, s, kind) for e, s in zip(errors, stds, strict=True)]
    assert metrics.ause(depth, std, true, error=kind) == pytest.approx(np.mean(each))
    together = metrics.ause(depth, std, true, error=kind, per_image=False)
    assert together == pytest.approx(twin_ause(errors.ravel(), stds.ravel(), kind))
    assert together != pytest.approx(np.mean(each), rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_normalised_starts_at_one_and_knows_no_units(generator, kind):
    depth, std, true = problem(generator, 40, 50)
    got = metrics.sparsification_curve(depth, std, true, error=kind, normalised=True)
    assert (float(got.error[0]), float(got.oracle[0])) == pytest.approx((1, 1))
    plain = metrics.ause(depth, std, true, error=kind)
    whole = getattr(metrics, kind)(depth, true)
    want = pytest.approx(plain / whole, rel=1e-12)
    assert metrics.ause(depth, std, true, error=kind, normalised=True) == want
    assert metrics.ause(3 * depth, std, 3 * true, error=kind, normalised=True) == want
    assert metrics.ause(3 * depth, std, 3 * true, error=kind) == pytest.approx(3 * plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rising", [torch.square, torch.sqrt, torch.expm1, lambda e: 7 * e])
def test_an_increasing_function_of_the_error_has_no_ause(generator, kind, rising):
    depth, _, true = problem(generator, 40, 50)
    std = rising((depth - true).abs())
    assert metrics.ause(depth, std, true, error=kind) == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_order_of_the_uncertainty_counts_and_no_order_of_pixels(generator, kind):
    depth, std, true = problem(generator, 2000)
    want = pytest.approx(metrics.ause(depth, std, true, error=kind), rel=1e-12)
    for rising in (torch.exp, torch.log, lambda s: s**3 - 5):
        assert metrics.ause(depth, rising(std), true, error=kind) == want
    mixed = torch.randperm(2000, generator=generator)
    assert metrics.ause(depth[mixed], std[mixed], true[mixed], error=kind) == want


def test_uninformed_and_perverse_uncertainty_have_closed_forms():
    """Errors spread evenly over 0 ... 1 m: random order keeps 1/2, the oracle (1 - r) / 2."""
    n = 10_000
    error = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    true = torch.ones(n, dtype=torch.float64)
    blind = metrics.ause(true + error, torch.ones_like(true), true)
    assert blind == pytest.approx(0.99**2 / 4, rel=1e-4)
    # The smallest errors leave first: (1 + r) / 2 - (1 - r) / 2 = r.
    assert metrics.ause(true + error, -error, true) == pytest.approx(0.99**2 / 2, rel=1e-4)


def test_ties_leave_evenly(generator):
    """A curve with ties is the mean of the curves of all ways to break them."""
    depth, _, true = problem(generator, 12)
    std = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 4.0, 4.0])
    got = metrics.sparsification_curve(depth, std, true, fractions=12)
    rng, error = np.random.default_rng(0), (depth - true).numpy()
    ways = [twin_curve(error, std.numpy() + 0.1 * rng.random(12), "mae", 12) for _ in range(20_000)]
    spread = np.std(ways, 0) / len(ways) ** 0.5
    assert (np.abs(got.error.numpy() - np.mean(ways, 0)) <= 4 * spread + 1e-12).all()


VALUES = st.lists(
    st.tuples(st.floats(0, 100), st.sampled_from([0.0, 0.1, 0.2, 1.0, 5.0])),
    min_size=1,
    max_size=60,
)


@given(VALUES, st.sampled_from(KINDS))
def test_between_the_oracle_and_its_opposite(pixels, kind):
    error, std = torch.tensor(pixels, dtype=torch.float64).T
    true = torch.ones_like(error)
    got = metrics.sparsification_curve(true + error, std, true, error=kind)
    worst = metrics.sparsification_curve(true + error, -error, true, error=kind)
    assert (got.error >= got.oracle - 1e-9).all()
    assert (got.error <= worst.error + 1e-9).all()
    whole = getattr(metrics, kind)(true + error, true)
    assert got.error[0].item() == pytest.approx(whole, abs=1e-9)
    assert got.oracle.diff().max() <= 1e-9  # the oracle's rest only gets better


def test_no_error_is_no_area():
    ones = torch.ones(4)
    assert metrics.ause(ones, ones, ones, normalised=True) == 0


def test_bad_choices_are_named():
    said = refusals(
        "from deepbasis.metrics import ause; o = ones(3)",
        ["ause(o, o, o, error='mse')", "ause(o, o, o, fractions=1)", "ause(o, ones(1, 3), o)"],
    )
    assert list(said.values()) == [
        "`error` is 'mse'; choose one of mae, rmse",
        "`fractions` is 1; a curve needs at least 2 steps",
        "`std_m` is [1, 3] but the true depth [3]; give both the same shape",
    ]
