# SPDX-License-Identifier: Apache-2.0
"""`complete` on arrays: one answer whatever the form of the points, and what it tells of itself."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from deepbasis import fit
from deepbasis.counts import Tail
from deepbasis.measurements import Given
from deepbasis.model import Architecture, Completer, load
from models import NOISE, make_model
from refusals import refusals

SIZE = (32, 48)


@pytest.fixture(params=["independent", "local"])
def model(request):
    return make_model(errors=request.param)


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(256, size=(*SIZE, 3), dtype=np.uint8)


@pytest.fixture
def rows():
    """A wall of 3 m measured at 80 pixels with 2 % noise: u, v, metres."""
    rng = np.random.default_rng(1)
    pixel = rng.permutation(SIZE[0] * SIZE[1])[:80]
    depth = 3 * np.exp(NOISE * rng.standard_normal(80))
    return np.stack([pixel % SIZE[1], pixel // SIZE[1], depth.astype(np.float32)], 1)


def to_map(rows, fill=0.0):
    depth = np.full(SIZE, fill, np.float32)
    depth[rows[:, 1].astype(int), rows[:, 0].astype(int)] = rows[:, 2]
    return depth


def test_depth_std_and_intervals_are_quantiles_of_a_laplace(model, image, rows):
    out = model.complete(image, rows)
    spread = stats.laplace(out.latent_mean, np.sqrt(out.latent_var / 2))
    assert out.depth.shape == out.std.shape == SIZE
    assert out.depth.dtype == out.std.dtype == np.float32
    np.testing.assert_allclose(out.depth, np.exp(spread.median()), rtol=1e-5)
    one = stats.norm.cdf(1)
    std = (np.exp(spread.ppf(one)) - np.exp(spread.ppf(1 - one))) / 2
    np.testing.assert_allclose(out.std, std, rtol=1e-4)
    low, high = out.interval(0.9)
    np.testing.assert_allclose(low, np.exp(spread.ppf(0.05)), rtol=1e-4)
    np.testing.assert_allclose(high, np.exp(spread.ppf(0.95)), rtol=1e-4)
    np.testing.assert_allclose(out.half_width(0.9), np.log(high / low) / 2, rtol=1e-3)


def test_tails_that_were_learned_reach_std_and_intervals(image, rows):
    """Of noise alone the shape is a plain t: here the variance of a well measured wall."""
    model = make_model()
    plain = model.complete(image, rows)
    layer = model.networks[0].last
    layer.set_tails("independent", [Tail(0, 1, 3.0, 0.7)])
    out = model.complete(image, rows)
    noise = float(layer.calibration[0] / out.posterior.beta)
    share = noise / out.latent_var
    half = 0.7**share * np.sqrt(out.latent_var) * stats.t(3 / share).ppf(0.95)
    np.testing.assert_allclose(out.half_width(0.9), half, rtol=1e-3)
    assert not np.allclose(out.std, plain.std, rtol=0.01)


@pytest.mark.parametrize("tails", [None, (3.0, 0.7)])
def test_an_outliers_probability_is_that_of_a_mixture(image, rows, tails):
    model = make_model().assume(huber=1.345)
    if tails is not None:
        model.networks[0].last.set_tails("independent", [Tail(0, 1.7, *tails)])
    rows[:6, 2] *= np.linspace(1.2, 3, 6)
    out = model.complete(image, rows)
    error, var, share = (part.numpy() for part in out.left_out())
    inlier = stats.laplace(scale=np.sqrt(var / 2))
    if tails is not None:
        inlier = stats.t(tails[0] / share, scale=tails[1] ** share * np.sqrt(var))
    right, wrong = 0.99 * inlier.pdf(error), 0.01 / math.log(100 / 0.1)
    expected = np.sort((wrong / (wrong + right))[wrong > right])
    found = np.sort([one.probability for one in out.outliers])
    assert 2 <= len(found) <= 6
    assert found[0] < 0.999
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("depth_input", [False, True])
def test_the_answer_is_that_of_the_model(model, image, rows, depth_input):
    model = make_model(depth_input=depth_input, errors=model.architecture.errors)
    out = model.complete(image, rows)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
    same = model(pixels, torch.from_numpy(to_map(rows))[None, None])
    np.testing.assert_array_equal(out.latent_mean, same.mean[0, 0])
    np.testing.assert_array_equal(out.latent_var, same.var[0, 0])


def test_every_form_of_the_same_points_gives_the_same_bits(model, image, rows):
    expected = model.complete(image, rows)
    none = np.array([[5, 5, np.nan], [6, 6, 0], [np.nan, 7, 2]])
    behind = rows[:1] * [1, 1, 1.5]
    off_centre = rows + np.array([0.4, -0.4, 0])
    forms = {
        "map": to_map(rows),
        "NaN map": to_map(rows, np.nan),
        "double map": to_map(rows, np.inf).astype(np.float64),
        "other order": rows[::-1],
        "lists": rows.tolist(),
        "off centre": off_centre,
        "with others": np.concatenate([none, behind, rows, [[-1, 0, 2], [48, 0, 2], [0, 32, 2]]]),
        "again": expected.points,
    }
    for name, form in forms.items():
        out = model.complete(image, form)
        np.testing.assert_array_equal(out.latent_mean, expected.latent_mean, name)
        np.testing.assert_array_equal(out.std, expected.std, name)
        np.testing.assert_array_equal(out.points, expected.points, name)
        wrong = {"without a measurement": 3, "outside the image": 3}
        wrong["behind another point on its pixel"] = 1
        assert out.dropped == (wrong if name == "with others" else {})


def test_points_beyond_the_cap_are_dropped_and_counted(model, image, rows):
    far = np.concatenate([rows, [[0, 0, 9.0], [1, 0, 8.0]]])
    out = model.complete(image, far, max_depth=5)
    np.testing.assert_array_equal(out.depth, model.complete(image, rows).depth)
    assert out.dropped == {"beyond the largest depth, 5 m": 2}


def test_a_point_of_half_the_precision_counts_as_half_a_point(image, rows):
    """Its sensor's variance equals the usual one. Others twice, at half beta, are the same fit."""
    model = make_model()
    sigma = np.where(np.arange(80) < 20, NOISE * rows[:, 2], 0)
    out = model.complete(image, np.column_stack([rows, sigma]))
    points = out.posterior.points
    assert sorted(points.weight[0].tolist()) == pytest.approx([0.5] * 20 + [1.0] * 60, rel=1e-4)
    layer = model.networks[0].last
    prior = fit.Prior(layer.prior_mean.double(), layer.prior_cov.double())
    times = torch.where(points.weight[0] < 0.75, 1, 2)
    twin = fit.posterior(
        points.phi[0].repeat_interleave(times, 0), points.z[0].repeat_interleave(times), prior,
        alpha=out.alpha, beta=out.beta / 2,
    )  # fmt: skip
    torch.testing.assert_close(out.posterior.mean[0].double(), twin.mean, rtol=1e-3, atol=1e-5)


def test_sigma_is_relative_to_what_no_sensor_can_explain():
    rows = [[0, 0, 2.0, 0.0], [1, 0, 2.0, 0.2], [2, 0, 4.0, 0.4], [3, 0, 4.0, 4.0]]
    given = Given.of(rows, (1, 4), math.inf)
    trained = 0.01 / (0.01 + torch.tensor([0, 0.01, 0.01, 1.0]))
    torch.testing.assert_close(given.weight(0.01)[0, 0, 0], trained)
    torch.testing.assert_close(given.weight(0)[0, 0, 0], trained)  # the median point is 10 % off
    assert Given.of(given.points[:, :3], (1, 4), math.inf).weight(0.01) is None
    perfect = Given.of([[0, 0, 2.0, 0.0]], (2, 4), math.inf)
    assert (perfect.weight(0) == 1).all()


def test_a_wrong_point_is_named_and_huber_keeps_it_from_pulling(model, image, rows):
    good = model.complete(image, rows)
    assert good.outliers == []
    rows[7, 2] *= 3
    bad = model.complete(image, rows)
    worst = bad.outliers[0]
    assert (worst.u, worst.v, worst.depth) == tuple(rows[7])
    assert worst.residual == pytest.approx(math.log(3), abs=0.15)
    assert worst.expected == pytest.approx(3, rel=0.15)
    assert worst.probability > 0.99
    robust = model.assume(huber=1.345).complete(image, rows)
    assert (robust.outliers[0].u, robust.outliers[0].v) == (worst.u, worst.v)
    # That it lost its weight is no excuse: it is judged as the measurement that it claims to be.
    spread = robust.left_out().var
    place = [tuple(point) for point in robust.points[:, :2]].index(tuple(rows[7, :2]))
    assert spread[place] < 2 * spread.median()
    away = [np.abs(out.latent_mean - good.latent_mean).mean() for out in (bad, robust)]
    assert away[1] < 0.6 * away[0]


def test_without_points_it_is_the_prior_and_says_so(model, image):
    for nothing in (None, np.zeros(SIZE), np.zeros((0, 3))):
        out = model.complete(image, nothing)
        assert len(out.points) == 0
        assert out.outliers == []
        assert "there are no points" in out.warnings[0]
        np.testing.assert_array_equal(
            out.posterior.mean[0], model.networks[0].last.prior_mean.numpy()
        )


def test_what_was_decided_is_told(image, rows):
    out = make_model().complete(image, rows)
    assert (out.alpha, out.beta) == (float(out.posterior.alpha), float(out.posterior.beta))
    assert out.noise_percent == pytest.approx(100 * NOISE, rel=0.2)
    assert 1 <= out.steps <= 8
    assert math.isfinite(out.log_evidence)
    assert out.warnings == ()


def test_millimetres_for_metres_are_doubted_with_the_evidence(model, image, rows):
    out = model.complete(image, rows * [1, 1, 1000])
    assert len(out.warnings) == 1
    assert "where the model expects 3 m of the image alone, a factor of 1e+03" in out.warnings[0]
    assert "millimetres or centimetres taken for metres" in out.warnings[0]
    assert "a wrong scale" in model.complete(image, rows / [1, 1, 1000]).warnings[0]


def test_rescaled_error_bars_leave_the_depth(model, image, rows):
    out = model.complete(image, rows)
    twice = out.rescale(2)
    np.testing.assert_array_equal(twice.depth, out.depth)
    np.testing.assert_allclose(twice.half_width(0.9), 2 * out.half_width(0.9), rtol=1e-5)


@pytest.mark.parametrize("method", ["log", "snap"])
def test_networks_that_do_not_fit_answer_too(method, image, rows):
    torch.manual_seed(0)
    out = Completer(Architecture(method, depth_input=True), copies=2).complete(image, rows)
    assert out.depth.shape == SIZE
    assert (out.std > 0).all()
    assert out.outliers == []
    assert (out.posterior, out.alpha, out.beta, out.noise_percent, out.steps) == (None,) * 5


def test_misuse_is_one_sentence():
    setup = (
        "import numpy as np; from deepbasis.model import Architecture, Completer\n"
        "model = Completer(Architecture()); image = np.zeros((32, 48, 3), np.uint8)\n"
    )
    cases = {
        "model.complete(image / 255)": "the image is float64 [32, 48, 3]; expected RGB, uint8",
        "model.complete(image[..., 0])": "the image is uint8 [32, 48]; expected RGB",
        "model.complete(image, np.ones((48, 32)))": "sparse depth is [48, 32], the image [32, 48]",
        "model.complete(image, [[1, 2, -3.0]])": "negative, first of the point [1.0, 2.0, -3.0]",
        "model.complete(image, [[1, 2, 3.0, -0.1]])": "a depth or sigma is negative",
        "model.complete(image, [[1, 40, 3.0]])": "all 1 points are outside the image: u (column)",
        "model.complete(image, [[1, 2, 7.2]], max_depth=5)":
            "all 1 points are beyond the largest depth, 5 m: u (column) from 1 to 1, v (row) from "
            "2 to 2, depth from 7.2 to 7.2 m",
        "model.complete(image, [[1, 2, nan]])": "all 1 points are without a measurement",
    }  # fmt: skip
    said = refusals(setup, cases)
    for case, message in cases.items():
        assert message in said[case], case


def test_models_are_found_by_name_by_file_and_by_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("deepbasis.model.WEIGHTS", tmp_path)
    make_model().save(tmp_path / "indoor.safetensors")
    make_model().save(tmp_path / "model.safetensors")
    for name in ("indoor", tmp_path / "indoor.safetensors", tmp_path):
        assert load(name).architecture == Architecture()
    with pytest.raises(ValueError, match=r"no model 'indor' .* mean 'indoor'\? Models are indoor,"):
        load("indor")
