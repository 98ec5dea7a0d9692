# SPDX-License-Identifier: Apache-2.0
"""`complete` on arrays: one answer whatever the form of the points, and all that it reports."""

import importlib
import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from deepbasis import fit
from deepbasis.conformal import ConformalTable
from deepbasis.data.packaged import packaged
from deepbasis.data.with_points import WithPoints
from deepbasis.latent import ONE_SIGMA
from deepbasis.layer import CalibrationRow
from deepbasis.model import load
from deepbasis.nets import Architecture
from deepbasis.patterns import parse
from deepbasis.points import Points, distance_to_points
from models import NOISE, make_model
from refusals import refusals

SIZE = (64, 96)


@pytest.fixture(params=["independent", "correlated"])
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


def test_a_wrong_point_at_the_very_border_is_named():
    room = packaged("rooms")[0]
    depth = room.depth[0].numpy()
    v, u = np.random.default_rng(0).permutation(np.argwhere(depth > 0))[:60].T
    rows = np.stack([u, v, depth[v, u]], 1).astype(np.float64)
    width = depth.shape[1]
    out = load("indoor").complete(room.image, np.vstack([rows, [width - 0.5 - 1e-9, 120, 60.0]]))
    assert any(one.u > width - 1 for one in out.outliers)


def test_integer_millimetres_are_refused_and_integer_metres_are_not(model, image):
    size = model.prepare(image).pyramid.size
    depth = np.zeros(size, np.uint16)
    depth[2, 3] = 3
    assert len(model.complete(image, depth).points) == 1
    for millimetres in (1000 * depth, torch.from_numpy((1000 * depth).astype(np.int32))):
        with pytest.raises(ValueError, match="integers, which look like millimetres"):
            model.complete(image, millimetres)


def test_places_from_0_to_1_are_noticed(model, image):
    rows = np.random.default_rng(0).uniform((0, 0, 2), (1, 1, 3), (50, 3))
    assert "not shares from 0 to 1" in model.complete(image, rows).warnings[0]


def test_the_largest_depth_is_not_beyond_itself(model, image):
    out = model.complete(image, [[1, 1, 10.0], [2, 2, 10.0], [3, 3, 5.0]], max_depth=10)
    assert (len(out.points), out.dropped) == (3, {})


def test_of_equal_points_on_a_pixel_the_most_certain_counts(model, image):
    rows = [[1, 1, 2.0, 0.001], [1, 1, 2.0, 5.0], [4, 4, 3.0, 0.1]]
    one, other = (model.complete(image, some) for some in (rows, rows[1::-1] + rows[2:]))
    assert one.points[0, 3] == pytest.approx(0.001)
    np.testing.assert_array_equal(one.depth, other.depth)


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


def test_an_error_distribution_that_was_learned_reaches_std_and_intervals(image, rows):
    """That of noise alone is a plain t: here the variance of a well measured wall."""
    model = make_model()
    plain = model.complete(image, rows, errors="independent")
    calibration = model.network.fit.error_model("independent").calibration
    calibration.set_factors(1.4, 1.0)
    calibration.set_rows([CalibrationRow(0, 1, 3.0, 0.7)])
    out = model.complete(image, rows, errors="independent")
    noise = float(1.4 / out.posterior.beta)
    share = noise / out.latent_var
    half = 0.7**share * np.sqrt(out.latent_var) * stats.t(3 / share).ppf(0.95)
    np.testing.assert_allclose(out.half_width(0.9), half, rtol=1e-3)
    assert not np.allclose(out.std, plain.std, rtol=0.01)


def test_wrong_points_are_named_left_out_and_told(model, image, rows):
    right = model.complete(image, rows[6:])
    rows[:6, 2] *= np.array([1.5, 2, 3, 0.6, 0.5, 0.3])
    out, plain = (model.complete(image, rows, robust=robust) for robust in (True, False))
    wrong = sorted(map(tuple, rows[:6, :2]))
    for one in (out, plain):
        assert sorted((point.u, point.v) for point in one.outliers) == wrong
        assert len(one.points) == 80
    assert sorted(map(tuple, out.points[out.left_out, :2])) == wrong
    assert not plain.left_out.any()
    assert "74 points, 6 points left out as wrong" in repr(out)
    # The fit is that of the right points; the variance may be larger.
    np.testing.assert_allclose(out.latent_mean, right.latent_mean, rtol=0, atol=1e-5)
    assert (out.latent_var > 0.999 * right.latent_var).all()
    assert np.abs(plain.latent_mean - right.latent_mean).mean() > 0.01
    for point in out.outliers:
        column, row = int(point.u), int(point.v)
        assert point.expected == pytest.approx(out.depth[row, column], rel=1e-3)
        assert point.residual == pytest.approx(math.log(point.depth / point.expected), abs=1e-6)
        assert 0.5 < point.probability <= 1


def test_the_answer_is_that_of_the_model(model, image, rows):
    out = model.complete(image, rows)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
    same = model(pixels, torch.from_numpy(to_map(rows))[None, None])
    # Folded batch norms round differently.
    np.testing.assert_allclose(out.latent_mean, same.mean[0, 0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(out.latent_var, same.var[0, 0], rtol=1e-3)


def test_every_form_of_the_same_points_gives_the_same_bits(model, image, rows):
    expected = model.complete(image, rows)
    none = np.array([[5, 5, np.nan], [6, 6, 0], [np.nan, 7, 2]])
    behind = rows[:1] * [1, 1, 1.5]
    forms = {
        "map": to_map(rows),
        "NaN map": to_map(rows, np.nan),
        "double map": to_map(rows, np.inf).astype(np.float64),
        "other order": rows[::-1],
        "lists": rows.tolist(),
        "points": Points.from_rows(rows),
        "with others": np.concatenate([none, behind, rows, [[-1, 0, 2], [96, 0, 2], [0, 64, 2]]]),
        "again": expected.points,
    }
    for name, form in forms.items():
        out = model.complete(image, form)
        np.testing.assert_array_equal(out.latent_mean, expected.latent_mean, name)
        np.testing.assert_array_equal(out.std, expected.std, name)
        np.testing.assert_array_equal(out.points, expected.points, name)
        wrong = {"without a measurement": 3, "outside the image": 3}
        wrong["on the pixel of a nearer or equal point"] = 1
        assert out.dropped == (wrong if name == "with others" else {})


def test_points_beyond_the_cap_are_dropped_and_counted(model, image, rows):
    far = np.concatenate([rows, [[0, 0, 9.0], [1, 0, 8.0]]])
    out = model.complete(image, far, max_depth=5)
    np.testing.assert_array_equal(out.depth, model.complete(image, rows).depth)
    assert out.dropped == {"beyond the largest depth, 5 m": 2}


def test_a_point_of_half_the_precision_counts_as_half_a_point(image, rows):
    """Its sensor's variance equals the usual one. Others twice, at half beta, are the same fit."""
    model = make_model(errors="independent")
    sigma = np.where(np.arange(80) < 20, NOISE * rows[:, 2], 0)
    out = model.complete(image, np.column_stack([rows, sigma]))
    points = out.posterior.points
    assert sorted(points.weight[0].tolist()) == pytest.approx([0.5] * 20 + [1.0] * 60, rel=1e-4)
    layer = model.network.fit
    prior = fit.Prior(layer.prior.mean.double(), layer.prior.cov.double())
    times = torch.where(points.weight[0] < 0.75, 1, 2)
    twin = fit.posterior(
        points.phi[0].repeat_interleave(times, 0), points.z[0].repeat_interleave(times), prior,
        alpha=float(out.posterior.alpha), beta=float(out.posterior.beta) / 2,
    )  # fmt: skip
    torch.testing.assert_close(out.posterior.mean[0].double(), twin.mean, rtol=1e-3, atol=1e-5)


def test_points_between_pixels_are_fitted_where_they_are(model, image, rows):
    """A depth that is one of the bases: points read it between pixels, and the fit is exact."""
    off = np.random.default_rng(2).uniform(-0.45, 0.45, (80, 2))
    moved = rows + np.column_stack([off, np.zeros(80)])
    out, centred = model.complete(image, moved), model.complete(image, rows)
    np.testing.assert_allclose(sorted(out.points.tolist()), sorted(moved.tolist()), rtol=1e-12)
    assert not np.array_equal(out.latent_mean, centred.latent_mean)
    scene = model.prepare(image)
    u, v = (torch.from_numpy(column)[None] for column in out.points[:, :2].T)
    weights = torch.zeros(1, 63)
    weights[:, 0], weights[:, -3:] = 1.0, 2.0
    exact = (scene.pyramid.at(v, u) @ weights[0]).exp()[0].double().numpy()
    found = model.complete(image, np.column_stack([out.points[:, :2], exact]))
    error = np.abs(found.latent_mean - scene.pyramid.combine(weights)[0].numpy())
    rounded = model.complete(image, np.column_stack([np.round(out.points[:, :2]), exact]))
    worse = np.abs(rounded.latent_mean - scene.pyramid.combine(weights)[0].numpy())
    assert error.mean() < 0.5 * worse.mean()


def test_a_point_at_the_very_border_is_inside(model, image):
    """In float32 it lies on the border itself."""
    edge = np.array([[SIZE[1] - 0.5 - 1e-9, SIZE[0] - 0.5 - 1e-9, 3.0], [-0.5, -0.5, 2.0]])
    out = model.complete(image, edge)
    assert len(out.points) == 2
    assert np.isfinite(out.depth).all()


def test_a_scene_completes_as_the_model_does_to_the_bit(model, image, rows):
    scene = model.prepare(image)
    for points in (rows, None, to_map(rows), rows[:5]):
        one, other = scene.complete(points), model.complete(image, points)
        np.testing.assert_array_equal(one.latent_mean, other.latent_mean)
        np.testing.assert_array_equal(one.latent_var, other.latent_var)
        np.testing.assert_array_equal(one.points, other.points)
        assert one.outliers == other.outliers
    options = {"errors": "independent", "huber": 1.345, "max_depth": 3.0}
    one, other = scene.complete(rows, **options), model.complete(image, rows, **options)
    np.testing.assert_array_equal(one.std, other.std)
    assert one.dropped == other.dropped != {}


def test_options_of_one_call_do_not_reach_the_next(model, image, rows):
    rows[7, 2] *= 3
    first = model.complete(image, rows)
    huber = model.complete(image, rows, huber=1.345)
    plain = model.complete(image, rows, robust=False)
    other = model.complete(image, rows, errors="paper")
    again = model.complete(image, rows)
    for changed in (huber, plain, other):
        assert not np.array_equal(changed.latent_var, first.latent_var)
    np.testing.assert_array_equal(again.latent_mean, first.latent_mean)
    np.testing.assert_array_equal(again.std, first.std)
    assert again.outliers == first.outliers


def test_a_result_is_not_changed_by_what_happens_to_the_model(model, image, rows):
    """Neither what was computed already nor what is computed only when it is asked for."""
    rows[7, 2] *= 3
    expected, out = (model.complete(image, rows) for _ in range(2))
    want = {
        "outliers": expected.outliers, "noise": expected.noise_percent,
        "interval": expected.interval(0.9), "std": expected.std,
        "left out": [part.numpy() for part in expected.fitted.leave_one_out()],
    }  # fmt: skip
    layer = model.network.fit
    mean = torch.full((63,), 0.5)
    hyperprior = fit.Hyperprior(fit.Gamma(2.0, 9.0), fit.Gamma(3.0, 7.0))
    layer.set_prior(fit.Prior(mean, 9 * torch.eye(63)), hyperprior)
    layer.correlated.set_kernel(fit.Kernel(0.9, 0.9, 0.9, 1.5))
    for each in layer.models.values():
        each.calibration.set_factors(40.0, 50.0)
        each.calibration.set_rows([CalibrationRow(0, 3.0, 2.0, 0.3)])
        each.noise.set(fit.Gamma(5.0, 5.0))
    assert out.outliers == want["outliers"] != []
    assert out.noise_percent == want["noise"]
    np.testing.assert_array_equal(out.interval(0.9), want["interval"])
    np.testing.assert_array_equal(out.std, want["std"])
    for have, part in zip(out.fitted.leave_one_out(), want["left out"], strict=True):
        np.testing.assert_array_equal(have, part)
    assert not np.array_equal(model.complete(image, rows).std, want["std"])


def test_depths_are_finite_however_far_the_bases_extrapolate(model, image, rows):
    out = model.complete(image, rows)
    far = np.where(np.arange(SIZE[1]) < 10, 300, -300) + np.zeros(SIZE)
    out = replace(out, latent_mean=far.astype(np.float32))
    low, high = out.interval(0.9)
    for values in (out.depth, out.std, low, high):
        assert np.isfinite(values).all()
    assert (low <= out.depth).all()
    assert (out.depth <= high).all()


def test_an_outlier_that_no_other_point_predicts_has_finite_numbers(
    model, image, rows, monkeypatch
):
    rows[7, 2] *= 3
    out = model.complete(image, rows, robust=False)
    left_out = out.fitted.leave_one_out()
    far = left_out._replace(residual=-1e12 * left_out.residual.sign())
    monkeypatch.setattr(type(out.fitted), "leave_one_out", lambda self: far)
    (worst, *_) = out.outliers
    assert np.isfinite(worst).all()
    assert worst.residual == pytest.approx(math.log(worst.depth / worst.expected))


def test_a_wrong_point_is_named_and_huber_keeps_it_from_pulling(model, image, rows):
    good = model.complete(image, rows)
    assert good.outliers == []
    rows[7, 2] *= 3
    bad = model.complete(image, rows, robust=False)
    worst = bad.outliers[0]
    assert (worst.u, worst.v) == tuple(rows[7, :2])
    assert worst.depth == pytest.approx(rows[7, 2], rel=1e-12)
    assert worst.residual == pytest.approx(math.log(3), abs=0.15)
    assert worst.expected == pytest.approx(3, rel=0.15)
    assert worst.probability > 0.9
    robust = model.complete(image, rows, robust=False, huber=1.345)
    assert (robust.outliers[0].u, robust.outliers[0].v) == (worst.u, worst.v)
    # That it lost its weight is no excuse: it is judged as the measurement that it claims to be.
    spread = robust.fitted.leave_one_out().var
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
        np.testing.assert_array_equal(out.posterior.mean[0], model.network.fit.prior.mean.numpy())


def test_what_was_decided_is_told(image, rows):
    out = make_model(errors="independent").complete(image, rows)
    assert out.noise_percent == pytest.approx(100 * NOISE, rel=0.2)
    assert out.noise_percent == pytest.approx(100 / float(out.posterior.beta) ** 0.5, rel=1e-6)
    assert 1 <= int(out.posterior.steps) <= 8
    assert math.isfinite(float(out.posterior.log_evidence))
    assert out.warnings == ()


def test_millimetres_for_metres_are_doubted_with_the_evidence(model, image, rows):
    out = model.complete(image, rows * [1, 1, 1000])
    assert len(out.warnings) == 1
    factor = 1000 * np.quantile(rows[:, 2], 0.5, method="lower") / 3
    expected = f"where the model expects 3 m from the image alone, a factor of {factor:.3g}"
    assert expected in out.warnings[0]
    assert "millimetres or centimetres read as metres" in out.warnings[0]
    assert "a wrong scale" in model.complete(image, rows / [1, 1, 1000]).warnings[0]


@pytest.mark.parametrize("world", ["rooms", "roads"])
@pytest.mark.parametrize("name", ["indoor", "outdoor", "open"])
def test_bundled_models_doubt_other_units_than_metres(name, world):
    frame = packaged(world)[0]
    rows = Points.from_map(frame.depth[0]).rows[::500]
    scene = load(name).prepare(frame.image)
    assert not scene.complete(rows).warnings
    for factor, said in ((1000, "millimetres or centimetres read"), (0.001, "a wrong scale")):
        (warning,) = scene.complete(rows * [1, 1, factor]).warnings
        assert said in warning


def test_far_from_scan_lines_intervals_are_no_wider_than_without_points():
    """Also if points are left out in doubt: a 64-beam LiDAR does not see the upper half."""
    room = WithPoints(packaged("rooms"), parse("lidar64"))[1]
    scene = load("indoor").prepare(room.image)
    out = scene.complete(room.sparse[0])
    assert out.left_out.any()
    assert (out.half_width(0.9) < 1.2 * scene.complete().half_width(0.9)).all()


def test_printing_a_result_is_one_line(model, image, rows):
    out = model.complete(image, np.concatenate([rows, [[99, 5, 3.0]]]))
    assert repr(out) == str(out)
    assert "\n" not in repr(out)
    assert repr(out).startswith("Completion(64 x 96 pixels (height x width), depth 2.")
    assert f"median std {np.median(out.std):.2g} m, 80 points, 1 outside the image)" in repr(out)
    assert "warning: there are no points" in repr(model.complete(image))


def test_too_little_memory_is_one_sentence():
    """In a process of its own, which may take 300 MB more than the model."""
    program = (
        "import resource, numpy as np, torch; from deepbasis import load\n"
        "torch.set_num_threads(1)\n"
        "model = load('indoor'); model.complete(np.zeros((64, 64, 3), np.uint8))\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 300_000_000,) * 2)\n"
        "try: model.complete(np.zeros((3000, 4000, 3), np.uint8))\n"
        "except ValueError as error: print(error)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "the network on an image of 3000 x 4000 pixels (height x width) needs more memory than "
        "is available\n"
    )


def test_conformal_intervals_leave_the_depth_and_depend_on_the_distance(model, image, rows):
    out = model.complete(image, rows)
    scores, distance = np.repeat([2.0, 3.0], 50), np.repeat([1.0, 400.0], 50)
    other = out.with_conformal(ConformalTable.learn(scores, distance, narrows=True))
    np.testing.assert_array_equal(other.depth, out.depth)
    near = distance_to_points(out.points, out.depth.shape) <= 2
    assert near.any()
    assert not near.all()
    std = out.half_width(ONE_SIGMA)
    for level in (0.5, 0.9):
        np.testing.assert_allclose(other.half_width(level)[near], 2 * std[near], rtol=1e-5)
        np.testing.assert_allclose(other.half_width(level)[~near], 3 * std[~near], rtol=1e-5)
    low, high = other.interval(0.9)
    np.testing.assert_allclose(np.log(high / low) / 2, other.half_width(0.9), rtol=1e-3)
    low, high = other.interval(ONE_SIGMA)
    np.testing.assert_allclose(other.std, (high - low) / 2)


def test_distances_to_points():
    rows = np.array([[1.2, 0.8, 2.0], [6.0, 1.0, 2.0]])
    found = distance_to_points(rows, (3, 8))
    row, column = np.mgrid[:3, :8]
    slow = np.minimum(np.hypot(row - 1, column - 1), np.hypot(row - 1, column - 6))
    np.testing.assert_allclose(found, slow, rtol=1e-6)
    assert np.isinf(distance_to_points(rows[:0], (3, 8))).all()


def test_misuse_is_one_sentence():
    setup = (
        "import numpy as np; from deepbasis.model import Completer\n"
        "from deepbasis.nets import Architecture\n"
        "from deepbasis.self_check import Check, check, check_frame\n"
        "from deepbasis.stream import Stream\n"
        "model = Completer(Architecture()); image = np.zeros((32, 48, 3), np.uint8)\n"
    )
    cases = {
        "model.complete(image + 2.0)": "float64 [32, 48, 3] with values from 2 to 2; floating",
        "model.complete(image[..., :2])": "the image is uint8 [32, 48, 2]; pass a path, a PIL",
        "model.complete(image[:0])": "the image is uint8 [0, 48, 3]: it has no pixel",
        "model.complete(image[:3])": "not clear whether channels come first or last",
        "model.complete(image.astype(int))": "the image is int64 [32, 48, 3]; pass a path",
        "model.complete(image > 0)": "the image is bool [32, 48, 3]; pass a path",
        "model.complete({'image': image})": "the image is of type dict; pass",
        "model.complete(np.ma.masked_array(image, image < 9))": "the image is a masked array; fill",
        "model.complete(image + nan)": "holds NaN or infinity",
        "model.complete([image, image], [None])": "images has the length 2, that of points 1; pass",
        "model.complete([image, image], np.ones((2, 32, 48)))": "points are of type ndarray; pass",
        "model.complete(image, {'depth': 1})": "expected real numbers",
        "model.complete(image, 'lidar.csv')": "the points: numbers are needed, not the path "
            "'lidar.csv'; read the file with `deepbasis.data.clouds.read_points` or",
        "model.complete(image, robust='no')": "`robust` is 'no'; pass True or False",
        "list(model.stream([image], robust=1))": "`robust` is 1; pass True or False",
        "list(model.stream(5))": "pass a list of images, or one image to `complete`",
        "list(model.stream('a.mp4'))": "pass the frames of a.mp4 as `deepbasis.data.video.Video(",
        "model.complete(image).with_conformal('x.json')": "the table is 'x.json'; pass a `Con",
        "check(model.prepare(image), [[1, 2, 3.0]])": "the completion to check is [[1, 2, 3.0]]; ",
        "check(model.prepare(image), model.complete(image[1:]))":
            "the completion is 31 x 48 pixels (height x width), the scene 32 x 48; pass a",
        "check(None, model.complete(image))": "the scene is None; pass what `model.prepare(image)`",
        "Check.join([])": "the checks to join are []; pass those",
        "Check.join(check(model.prepare(image), model.complete(image)))": "the checks to join are",
        "check_frame(Stream(model.network.fit), image)": "pass what `model.prepare(image)` gave",
        "check_frame(3, model.prepare(image))": "the stream is 3; pass a",
        "Stream(model.network.fit).add('i.png')": "the scene is 'i.png'; pass what `model.prepare",
        "Stream(model.network.fit).add(None)": "the scene is None; pass what `model.prepare",
        "Stream(model)": "pass `model.network.fit`",
        "Stream('indoor')": "the layer is 'indoor'; pass `model.network.fit`",
        "model.prepare(image, 'camera.txt')": "`deepbasis.data.folder.read_intrinsics`",
        "model.complete(image).distance((1, 2), 'b', [[40, 0, 24], [0, 40, 16], [0, 0, 1]])":
            "u and v of a pixel: numbers are needed, not the path 'b'",
        "list(model.stream([(image, None, 'pose.txt')], intrinsics=[[40, 0, 24], [0, 40, 16], "
        "[0, 0, 1]]))": "pose of frame 0: numbers are needed, not the path 'pose.txt'; read the",
        "model.complete(image, np.ones((2, 3), complex))": "the points hold complex128 values",
        "model.complete(image, [[1, 2], [3]])": "cannot be read as an array of numbers",
        "model.complete(np.zeros((7, 3)), np.ones((7, 3)))": "this could be a map or rows",
        "model.complete(image, [[1, 2, 3.0, nan]])": "no sigma is finite; if the",
        "model.complete(image, [[1, 2, 3.0]], max_depth=nan)": "`max_depth` is nan; pass a",
        "model.complete(image, [[1, 2, 3.0]], huber=float('inf'))": "`huber` is inf; pass a positi",
        "model.complete(image, [[1, 2, 1e39]])": "the only point is without a measurement",
        "model.complete(image, np.ones((48, 32)))": "the points are [48, 32], the image [32, 48]",
        "model.complete(image, errors='local')": "`errors` is 'local'; choose one of 'independent'",
        "model.complete(image, [[1, 2, 3.0]], huber=-1.0)": "`huber` is -1.0; pass a positive",
        "model.complete(image, [[1, 2, -3.0]])": "negative, first at the point [1.0, 2.0, -3.0]",
        "model.complete(image, [[1, 2, 3.0, -0.1]])": "a depth or sigma is negative",
        "model.complete(image, [[1, 40, 3.0]])": "the only point is outside the image: u (column)",
        "model.complete(image, [[1, 2, 7.2]], max_depth=5)":
            "the only point is beyond the largest depth, 5 m: u (column) from 1 to 1, v (row) from "
            "2 to 2, depth from 7.2 to 7.2 m",
        "model.complete(image, [[1, 2, nan]])": "the only point is without a measurement",
    }  # fmt: skip
    said = refusals(setup, cases)
    for case, message in cases.items():
        assert message in said[case], case
        assert "\n" not in said[case]
        for module, name in re.findall(r"`(deepbasis\.data\.\w+)\.(\w+)", said[case]):
            assert hasattr(importlib.import_module(module), name)


def test_a_principal_point_far_from_the_centre_is_doubted(image):
    """As of images of twice the size."""
    model, camera = make_model(), np.array([[80, 0, 47.5], [0, 80, 31.5], [0, 0, 1]])
    double = camera * [[2], [2], [1]]
    said = "cx = 95 and cy = 63, is far from the centre of the image, which is 64 x 96 pixels"
    points = [[5, 6, 3.0]]
    for wrong in (False, True):
        used = double if wrong else camera
        scene = model.prepare(image, used)
        outs = [scene.complete(points, robust=robust) for robust in (False, True)]
        for out in (*outs, *model.stream([(image, points)] * 2, intrinsics=used)):
            assert sum(said in warning for warning in out.warnings) == wrong


def test_models_are_found_by_name_by_file_and_by_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("deepbasis.pretrained.WEIGHTS", tmp_path)
    make_model().save(tmp_path / "indoor.safetensors")
    make_model().save(tmp_path / "model.safetensors")
    for name in ("indoor", tmp_path / "indoor.safetensors", tmp_path):
        assert load(name).architecture == Architecture()
    with pytest.raises(ValueError, match=r"no model 'indor'; .* mean 'indoor'\? Pass one of"):
        load("indor")


def test_a_list_of_images_gives_a_list(image, rows):
    model = make_model()
    both = model.complete([image, image / 255], [rows, None])
    np.testing.assert_array_equal(both[0].depth, model.complete(image, rows).depth)
    np.testing.assert_array_equal(both[1].depth, model.complete(image).depth)
    assert model.complete([]) == []


def test_files_tensors_and_grey_are_images(image, rows, tmp_path):
    model = make_model()
    Image.fromarray(image).save(tmp_path / "a.png")
    want = model.complete(image, rows).depth
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    for form in (tmp_path / "a.png", str(tmp_path / "a.png"), tensor, tensor / 255.0):
        np.testing.assert_array_equal(model.complete(form, rows).depth, want)
    grey = image[..., 0].astype(np.uint16) * 100
    assert np.isfinite(model.complete(grey, rows).depth).all()


def test_extreme_depths_among_the_points_leave_finite_answers(model, image, rows):
    odd = [[3, 3, 1e39], [4, 4, 1e-46], [5, 5, 1e-30], [6, 6, 1e30], [7, 7, 1e8], [8, 8, 1e-5]]
    out = model.complete(image, np.concatenate([rows, odd]))
    assert out.dropped["without a measurement"] == 4
    assert np.isfinite(out.depth).all()
    assert np.isfinite(out.std).all()
    assert all(np.isfinite(one).all() for one in out.outliers)


def test_a_small_image_and_points_outside_are_doubted(image, rows):
    model = make_model()
    for small in (image[:63], image[:, :63]):
        warning = model.complete(small).warnings[0]
        assert "below 64 x 64 the network helps little" in warning
    wrong = np.concatenate([rows[:72], rows[:8] + np.array([100, 0, 0])])
    assert not model.complete(image, wrong).warnings  # a tenth, and not more
    said = model.complete(image, np.concatenate([wrong, [[99, 5, 3.0]]])).warnings
    assert "9 of 81 points fall outside the image; check the order of u" in said[0]


def test_most_of_a_cloud_may_be_outside_the_view(image):
    camera = torch.tensor([[60.0, 0, 47], [0, 60, 35], [0, 0, 1]])
    angle = torch.arange(0, 2 * np.pi, 0.02)
    around = torch.stack([angle.sin(), 0 * angle, angle.cos()], 1) * 3
    out = make_model().complete(image, Points.from_cloud(around, camera, None, SIZE))
    assert out.dropped["outside the camera's view"] > len(out.points)
    assert not out.warnings


def test_a_point_that_no_other_predicts_is_no_outlier(image):
    """Its leave-one-out variance is huge; a depth of 0 or infinity was expected of it once."""
    draw = np.random.default_rng(3)
    rows = np.column_stack([draw.uniform(0, 5, (22, 2)), draw.uniform(1, 5, 22)])
    rows[13, 2] = 1e7
    for out in make_model().complete(image, rows).outliers:
        assert np.isfinite(out).all()
        assert out.expected > 0
