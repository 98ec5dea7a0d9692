# SPDX-License-Identifier: Apache-2.0
"""Whole-map uncertainty against the dense Gaussian process of a small image and closed forms."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import deepbasis
from deepbasis import fit, joint
from deepbasis.conformal import ConformalTable
from deepbasis.data.packaged import packaged
from deepbasis.layer import CalibrationRow
from deepbasis.points import Points
from deepbasis.result import Completion
from layer.scenes import CHANNELS, make_scales
from models import make_model, set_prior

SIZE = (8, 10)
CAMERA = np.array([[12.0, 0, 4.5], [0, 11.0, 3.5], [0, 0, 1]])
FACTORS = 1.3, 0.6
# Beyond this many standard errors lies a normal number in 1.7 million.
SURE = 5


def make_completion(errors, n, *, student=True, amplitude=True):
    """A small image with n points, and the layer that completed it; with calibration factors."""
    draw = torch.Generator().manual_seed(n)
    layer = deepbasis.BasisFit(sum(CHANNELS), errors=errors).double().eval()
    set_prior(layer)
    layer.correlated.set_kernel(fit.Kernel(0.4, 0.3, 0.05, 1.5))
    calibration = layer.error_model().calibration
    calibration.set_factors(*FACTORS)
    calibration.set_rows([CalibrationRow(0, 1.0, 4.0, 0.8)] if student else [])
    guide = F.interpolate(torch.rand(1, 3, 3, 3, generator=draw).double(), SIZE, mode="bilinear")
    s = (0.4 * torch.randn(1, 1, *SIZE, generator=draw, dtype=torch.float64)).exp()
    at = torch.randperm(SIZE[0] * SIZE[1], generator=draw)[:n]
    depth = 2 + 2 * torch.rand(n, generator=draw, dtype=torch.float64)
    rows = torch.stack([at % SIZE[1], at // SIZE[1], depth], 1).numpy()
    points = Points.from_rows(rows)
    scales = [0.5 * scale for scale in make_scales(draw, SIZE)]
    batch = Points.pad([points]).to(torch.device("cpu"), torch.float64)
    seen = layer.observe(scales, batch, SIZE, guide, s if amplitude else None)
    fitted = layer.fit_details(seen)
    return Completion.of(fitted.prediction, points, fitted)


def dense_covariance(out):
    """Of all pixels given the points, with independent formulas: the joint Gaussian, conditioned.

    The two parts of the covariance, uncertain weights and errors, have factors of their own. So the
    error part is conditioned with known weights, and what remains is due to the weights.
    """
    fitted = out.fitted
    seen, post = fitted.observed, fitted.posterior
    phi = seen.pyramid.rows(0, SIZE[0])[0].mT
    n, beta = len(out.points), float(post.beta)
    weights = post.cov[0]
    if not hasattr(fitted, "kernel"):
        noise = torch.full((len(phi),), FACTORS[0] / beta).double()
        return FACTORS[1] * phi @ weights @ phi.mT, noise
    kernel = fitted.kernel
    row, column = (x.flatten() for x in torch.meshgrid(*map(torch.arange, SIZE), indexing="ij"))
    position = torch.stack([row, column], 1).double() / SIZE[1] / kernel.length
    colour = seen.guide[0][:, row, column].mT * kernel.colour / kernel.length
    x = torch.cat([position, colour], 1)
    apart = 3**0.5 * (x[:, None] - x[None]).square().sum(-1).sqrt()
    s = torch.ones(len(x)).double() if seen.amplitude is None else seen.amplitude.flatten()
    prior = torch.outer(s, s) * (1 + apart) * (-apart).exp() / beta
    at = torch.from_numpy(out.points[:, 1] * SIZE[1] + out.points[:, 0]).long()
    inner = prior[at][:, at] + kernel.nugget / beta * torch.eye(n).double()
    gain = torch.linalg.solve(inner, prior[at]).mT
    rest = phi - gain @ phi[at]
    cov = FACTORS[1] * rest @ weights @ rest.mT + FACTORS[0] * (prior - gain @ prior[at])
    return cov, torch.full((len(x),), FACTORS[0] * kernel.nugget / beta).double()


def correlation_of(out):
    cov, noise = dense_covariance(out)
    full = cov + noise.diag()
    return full / torch.outer(full.diagonal().sqrt(), full.diagonal().sqrt())


def reference_depths(out, draws, seed=0):
    """Depth maps from the dense correlation and scipy's distributions, [draws, pixels]."""
    normal = np.random.default_rng(seed).multivariate_normal(
        np.zeros(SIZE[0] * SIZE[1]), correlation_of(out).numpy(), draws, method="cholesky"
    )
    share = out.error_distribution.noise_share.double().numpy().ravel()
    dof = out.error_distribution.dof / share
    scale = np.sqrt(out.latent_var.ravel()) * out.error_distribution.width**share
    error = stats.t.ppf(stats.norm.cdf(normal), dof) * scale
    bound = out.half_width(joint.BOUND_LEVEL).ravel().clip(min=np.log(joint.BOUND_FACTOR))
    return np.exp(out.latent_mean.ravel() + error.clip(-bound, bound))


@cache
def reference_maps(errors, n):
    """10,000 of them for a case, made once for all tests."""
    return reference_depths(make_completion(errors, n), 10_000).reshape(-1, *SIZE)


def assert_quantile(draws, bound, probability, count):
    """A bound that was estimated from `count` draws, among many other draws."""
    below = np.mean(draws < bound)
    error = np.sqrt(probability * (1 - probability) * (1 / count + 1 / len(draws)))
    assert abs(below - probability) < SURE * error


def assert_quantity(draws, found, count, level=0.9):
    assert_quantile(draws, found.low, (1 - level) / 2, count)
    assert_quantile(draws, found.high, (1 + level) / 2, count)
    assert_quantile(draws, found.value, 0.5, count)


CASES = [("correlated", 0), ("correlated", 1), ("correlated", 9), ("independent", 0),
         ("independent", 1), ("independent", 9)]  # fmt: skip


@pytest.mark.parametrize(("errors", "n"), CASES)
@pytest.mark.parametrize("amplitude", [False, True])
def test_the_covariance_of_all_pixels_is_that_of_the_dense_process(errors, n, amplitude):
    out = make_completion(errors, n, amplitude=amplitude)
    row, column = joint.Lattice.of(SIZE).pixels
    cov, noise = out.joint.covariance(row, column)
    want, want_noise = dense_covariance(out)
    torch.testing.assert_close(cov, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(noise, want_noise, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        (cov.diagonal() + noise).float().view(SIZE), torch.from_numpy(out.latent_var)
    )


@pytest.mark.parametrize(("errors", "n"), CASES)
def test_samples_have_the_dense_correlation_and_the_calibrated_marginals(errors, n):
    """The image is small enough to be drawn at once, so there is no approximation."""
    out, draws = make_completion(errors, n), 4000
    maps = out.sample(draws, seed=1)
    assert maps.shape == (draws, *SIZE)
    assert maps.dtype == np.float32
    for level in (0.5, 0.9):
        low, high = out.interval(level)
        inside = ((maps >= low) & (maps <= high)).mean(0)
        assert (abs(inside - level) < SURE * np.sqrt(level * (1 - level) / draws)).all()
    error = np.log(maps) - out.latent_mean
    half = out.error_distribution.level(
        torch.from_numpy(error), torch.from_numpy(out.latent_var).expand(error.shape)
    )
    score = stats.norm.ppf((1 + np.sign(error) * half.numpy()) / 2).clip(-4, 4).reshape(draws, -1)
    have, want = score.T @ score / draws, correlation_of(out).numpy()
    assert (abs(have - want) < SURE * np.sqrt((1 + want**2) / draws) + 2e-3).all()


def test_samples_depend_on_their_seed_alone():
    out = make_completion("correlated", 5)
    assert np.array_equal(out.sample(3, seed=7), out.sample(3, seed=7))
    assert not np.array_equal(out.sample(3, seed=7), out.sample(3, seed=8))


@pytest.mark.parametrize(("errors", "n"), CASES)
def test_distances_have_the_distribution_of_the_dense_process(errors, n):
    out, (a, b) = make_completion(errors, n), ((2, 3), (4, 3))
    maps = reference_maps(errors, n)
    ends = [maps[:, v, u, None] * (np.linalg.inv(CAMERA) @ [u, v, 1]) for u, v in (a, b)]
    want = np.linalg.norm(ends[0] - ends[1], axis=1)
    assert_quantity(want, out.distance(a, b, CAMERA), joint.DRAWS)
    assert_quantity(want, out.distance(b, a, CAMERA, level=0.5), joint.DRAWS, 0.5)
    assert out.distance(a, b, CAMERA) == out.distance(b, a, CAMERA)


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("errors", "n"), CASES)
def test_regions_have_the_distribution_of_the_dense_process(errors, n, exact, monkeypatch):
    monkeypatch.setattr(joint, "REGION_DRAWS", 4096)
    if exact:  # as if the region were scattered
        monkeypatch.setattr(joint, "MOST_PIXELS", 0)
    out, mask = make_completion(errors, n), np.zeros(SIZE, dtype=bool)
    mask[2:5, 3:9] = True
    mask[5, 4] = True
    maps = reference_maps(errors, n)
    inside = maps[:, mask]
    found = out.size(mask, CAMERA)
    assert_quantity(inside.mean(1), found.depth, 4096)
    assert_quantity((inside**2).sum(1) / (12 * 11), found.area, 4096)
    line = np.where(mask, maps, np.nan)
    assert_quantity(np.nansum(np.nanmean(line[:, 2:6, 3:9], 1), 1) / 12, found.width, 4096)
    assert_quantity(np.nansum(np.nanmean(line[:, 2:6, 3:9], 2), 1) / 11, found.height, 4096)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("reach", [0, 2])
@pytest.mark.parametrize(("errors", "n"), CASES)
def test_the_nearest_surface_has_the_distribution_of_averages_of_the_dense_process(
    errors, n, reach, exact, monkeypatch
):
    """Of a common scale of all pixels; averaged over the bounding box, or over the region."""
    monkeypatch.setattr(joint, "REGION_DRAWS", 4096)
    monkeypatch.setattr(joint, "SURFACE", reach / SIZE[1])
    if exact:
        monkeypatch.setattr(joint, "MOST_PIXELS", 0)
    out, mask = make_completion(errors, n), np.zeros(SIZE, dtype=bool)
    mask[2:5, 3:9] = True
    mask[5, 4] = True
    known, around = mask.copy(), []
    known[2:6, 3:9] |= not exact
    row, column = np.nonzero(known)
    for v, u in np.argwhere(mask):
        near = (abs(row - v) <= reach) & (abs(column - u) <= reach)
        around.append(near / near.sum())
    rng, share = np.random.default_rng(0), out.error_distribution.noise_share.double().numpy()
    normal = rng.multivariate_normal(np.zeros(80), correlation_of(out).numpy(), 10_000)
    score = normal.reshape(-1, *SIZE)[:, known] @ np.array(around).T
    dof, std = 4 / share[mask], 0.8 ** share[mask] * np.sqrt(out.latent_var[mask])
    std = std / np.sqrt(stats.chi2.isf(rng.uniform(size=(10_000, 1)), dof) / dof)
    nearest = np.exp(out.latent_mean[mask] + score * std).min(1)
    for metres in np.quantile(nearest, [0.1, 0.5, 0.9]):
        want = (nearest < metres).mean()
        error = np.sqrt(want * (1 - want) / 4096 + want * (1 - want) / 10_000)
        assert abs(out.probability_closer(float(metres), mask) - want) < SURE * error


def test_a_region_of_one_pixel_is_closer_with_the_probability_of_this_pixel(indoor):
    image, rows, _ = image_and_rows()
    out = indoor.complete(image, rows)
    mask = np.zeros(out.depth.shape, dtype=bool)
    mask[40, 70] = True
    for metres in out.depth[40, 70] * np.array([0.9, 1.0, 1.1]):
        want = out.probability_closer(metres)[40, 70]
        error = np.sqrt(want * (1 - want) / joint.REGION_DRAWS)
        assert abs(out.probability_closer(metres, mask) - want) < SURE * error


def test_a_wall_that_is_known_has_its_true_size():
    out = make_completion("correlated", 9)
    flat = np.full(SIZE, np.log(3.0), dtype=np.float32)
    wall = replace(out, latent_mean=flat, latent_var=0 * flat + 1e-12)
    mask = np.zeros(SIZE, dtype=bool)
    mask[1:5, 2:9] = True
    depth, area, width, height = (found.value for found in wall.size(mask, CAMERA))
    assert depth == pytest.approx(3, rel=1e-4)
    assert width == pytest.approx(7 * 3 / 12, rel=1e-4)
    assert height == pytest.approx(4 * 3 / 11, rel=1e-4)
    assert area == pytest.approx(width * height, rel=1e-4)
    far = wall.distance((2, 3), (8, 3), CAMERA)
    assert far.value == pytest.approx(6 * 3 / 12, rel=1e-4)
    assert far.high - far.low < 1e-3


@pytest.mark.parametrize("student", [False, True], ids=["Laplace", "Student"])
def test_each_pixel_is_closer_with_the_probability_of_its_distribution(student):
    out = make_completion("independent", 9, student=student)
    error = (np.log(2.7) - out.latent_mean) / np.sqrt(out.latent_var)
    if student:
        share = out.error_distribution.noise_share.numpy()
        want = stats.t.cdf(error / 0.8**share, 4 / share)
    else:
        want = stats.laplace.cdf(error, scale=np.sqrt(0.5))
    np.testing.assert_allclose(out.probability_closer(2.7), want, atol=1e-4)


def test_a_region_is_not_closer_than_the_image_and_at_least_as_close_as_its_pixels():
    out = make_completion("correlated", 9)
    mask = np.zeros(SIZE, dtype=bool)
    mask[2:5, 3:9] = True
    one = out.probability_closer(2.0)[mask]
    both = out.probability_closer(2.0, mask)
    error = np.sqrt(0.25 / joint.REGION_DRAWS)
    assert one.max() - SURE * error < both < one.sum() + SURE * error


@pytest.mark.parametrize(("errors", "n"), CASES)
def test_next_points_lower_the_total_variance_most(errors, n):
    """By measuring every pixel in turn, in the dense process."""
    out = make_completion(errors, n)
    cov, noise = dense_covariance(out)
    depth = torch.from_numpy(out.depth).double().flatten()
    cov, noise = cov * torch.outer(depth, depth), noise * depth.square()
    for u, v in out.next_points(3):
        left = [
            float((cov - torch.outer(cov[:, c], cov[c]) / (cov[c, c] + noise[c])).trace())
            for c in range(len(cov))
        ]
        best = int(v) * SIZE[1] + int(u)
        assert left[best] == pytest.approx(min(left), rel=1e-4)
        cov = cov - torch.outer(cov[:, best], cov[best]) / (cov[best, best] + noise[best])


def test_a_large_region_is_drawn_on_a_coarser_lattice_that_still_meets_thin_ones():
    whole, thin = torch.ones(240, 320).bool(), torch.zeros(240, 320).bool()
    thin[:60, 40:45] = True
    assert len(joint._cover(whole).pixels[0]) < 2 * joint.BOX_PIXELS
    lattice = joint._cover(thin)
    met = thin[lattice.rows][:, lattice.columns].sum()
    assert met >= min(joint.REGION_PIXELS, thin.sum())


def test_a_scattered_region_is_drawn_at_its_own_pixels(indoor, monkeypatch):
    """Whose bounding box would take seconds and hundreds of MB."""
    image, rows, camera = image_and_rows()
    out = indoor.complete(image, rows)
    mask = np.zeros(out.depth.shape, dtype=bool)
    mask[::5, ::5] = True
    drawn = out.joint._region(torch.from_numpy(mask))[0]
    assert drawn.shape == (joint.REGION_DRAWS, joint.REGION_PIXELS)
    scattered = out.size(mask, camera).depth
    assert scattered.value == pytest.approx(out.size(mask | True, camera).depth.value, rel=0.02)
    ends = np.zeros_like(mask)
    ends[0, 0] = ends[-1, -1] = True
    monkeypatch.setattr(joint.Joint, "_scores", None)  # not called
    assert 0 < out.probability_closer(2.0, ends) < 1
    mean = (out.depth[0, 0] + out.depth[-1, -1]) / 2
    assert out.size(ends, camera).depth.value == pytest.approx(mean, rel=0.2)


def image_and_rows():
    room = packaged("rooms")[0]
    image = room.image[:, 40:168, 60:220].permute(1, 2, 0).numpy()
    rng = np.random.default_rng(0)
    v, u = rng.integers(0, 128, 60), rng.integers(0, 160, 60)
    camera = room.intrinsics - torch.tensor([[0, 0, 60], [0, 0, 40], [0, 0, 0]])
    return image, np.stack([u, v, room.depth[0, 40:168, 60:220].numpy()[v, u]], 1), camera


@pytest.fixture(scope="module")
def indoor():
    return deepbasis.load("indoor")


def test_samples_of_a_bundled_model_keep_its_marginals(indoor):
    """Drawn from coarse to fine: variances are within a few per cent of the prediction's."""
    image, rows, _ = image_and_rows()
    out = indoor.complete(image, rows)
    maps = out.sample(200, 0)
    for level in (0.5, 0.9):
        low, high = out.interval(level)
        assert ((maps >= low) & (maps <= high)).mean() == pytest.approx(level, abs=0.025)
    assert np.median(np.median(maps, 0) / out.depth) == pytest.approx(1, abs=0.005)
    measured = maps[:, rows[:, 1].astype(int), rows[:, 0].astype(int)]
    known = rows[:, 2] > 0
    away = np.median(abs(np.log(measured[:, known] / rows[known, 2])))
    assert away < 0.25 * np.median(abs(np.log(maps / out.depth)))


def test_the_nearest_surface_of_rendered_rooms_is_expected_about_where_it_is(indoor):
    """The probability at the true nearest depth; the nearest of drawn pixels is nearer (0.92)."""
    found = []
    for seed, room in enumerate(packaged("rooms")):
        depth = room.depth[0].numpy()
        v, u = np.random.default_rng(seed).permutation(np.argwhere(depth > 0))[:200].T
        out = indoor.complete(room.image.permute(1, 2, 0).numpy(), np.stack([u, v, depth[v, u]], 1))
        for top, left in itertools.product((20, 100, 150), (30, 130, 230)):
            mask = np.zeros(depth.shape, dtype=bool)
            mask[top : top + 60, left : left + 60] = True
            mask &= depth > 0
            found.append(out.probability_closer(float(depth[mask].min()), mask))
    assert 0.3 < np.mean(found) < 0.8


def test_four_threads_that_share_a_model_give_the_same_bits_as_one(indoor):
    image, rows, _ = image_and_rows()
    images = [np.roll(image, 10 * i, 1) for i in range(4)]

    def work(one):
        out = indoor.complete(one, rows)
        return out.depth, out.std, out.sample(2, 0)

    alone = [work(one) for one in images]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(work, images))
    for have, want in zip(together, alone, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(have, want, strict=True))


def test_points_that_change_one_by_one_are_completed_as_on_a_new_scene(indoor):
    """Also by four threads that share the scene."""
    image, rows, _ = image_and_rows()
    rng, scene = np.random.default_rng(0), indoor.prepare(image)
    free = replace(scene, memory=None)
    used, sets = list(range(len(rows) - 10)), []
    for new in rng.permutation(range(len(rows) - 10, len(rows))):
        i = rng.integers(len(used))
        if new % 3:
            used.pop(i)
        if new % 3 != 1:
            used.insert(i, new)
        sets.append(rows[used] * [1, 1, 1 + (new % 4 == 0)])  # some have other depths
    want = [free.complete(one) for one in sets]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(scene.complete, sets))
    for found in ([scene.complete(one) for one in sets], together):
        for have, expected in zip(found, want, strict=True):
            for name in ("latent_mean", "latent_var"):
                one, other = getattr(have, name), getattr(expected, name)
                np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_one_scene_is_completed_from_several_sets_of_points():
    image, rows, _ = image_and_rows()
    scene = make_model().prepare(image)
    sets = [rows[:20], None, Points.from_rows(rows[20:])]
    for have, points in zip(scene.complete(sets), sets, strict=True):
        assert np.array_equal(have.depth, scene.complete(points).depth)
    assert len(scene.complete(rows[:9].tolist()).points) == 9  # rows, not sets
    lists = [[[5.0, 6.0, 2.0]], [[7.0, 8.0, 3.0], [1.0, 2.0, 2.0]]]
    assert [len(out.points) for out in scene.complete(lists)] == [1, 2]


REFUSED = {
    "sample(0)": "`n` is 0; draw at least 1 map",
    "distance((10, 2), (1, 1), camera)": "the pixel u, v = 10, 2 is outside the image of 10 col",
    "distance((1, 1), (2, -0.6), camera)": "the pixel u, v = 2, -0.6 is outside the image",
    "distance((1, float('nan')), (2, 2), camera)": "the pixel u, v = 1, nan is outside the image",
    "distance((1, 1), (2, 2, 3), camera)": "a pixel is [3]; pass u and v",
    "distance((1, 1), (1.2, 0.9), camera)": "both ends are the pixel u, v = (1, 1); pass two",
    "distance((1, 1), (2, 2))": "sizes in metres need the camera's intrinsics; pass [[fx",
    "distance((1, 1), (2, 2), camera[:2])": "the camera's intrinsics are [2, 3]; pass [[fx",
    "distance((1, 1), (2, 2), -camera)": "the camera's intrinsics are [[-12.0",
    "distance((1, 1), (2, 2), camera, level=90)": "the level of an interval is 90; pass a prob",
    "distance((1, 1), (2, 2), np.eye(3))": "principal point of the camera, cx = 0 and cy = 0, is",
    "size(mask, camera * [[2], [2], [1]])": "cx = 9 and cy = 7, is far from the centre of the",
    "size(np.where(mask, 0.5, 0), camera)": "other than 0 and 1; compare it with a threshold first",
    "probability_closer(1.0, mask * 2.0)": "the mask holds numbers other than 0 and 1; compare",
    "size(mask, None)": "sizes in metres need the camera's intrinsics",
    "size(~mask, camera)": "the mask is empty; set at least one pixel",
    "size(mask[1:], camera)": "the mask is [7, 10], the image [8, 10] (height, width)",
    "probability_closer(1.0, ~mask)": "the mask is empty",
    "probability_closer(-1.0)": "the distance is -1.0 m; pass a positive number of metres",
    "next_points(0)": "`k` is 0; choose from 1 to 80 next points in this image",
    "next_points(81)": "`k` is 81; choose from 1 to 80",
}


@pytest.mark.parametrize("call", REFUSED)
def test_bad_input_is_refused_in_one_sentence(call):
    out = make_completion("correlated", 3)
    names = {"out": out, "camera": CAMERA, "mask": np.ones(SIZE, dtype=bool), "np": np}
    with pytest.raises(ValueError, match=re.escape(REFUSED[call])) as refusal:
        eval(f"out.{call}", names)
    assert "\n" not in str(refusal.value)


def test_a_conformal_table_changes_the_intervals_alone():
    out = make_completion("correlated", 5)
    table = ConformalTable.learn(np.linspace(0, 9, 99), np.zeros(99))
    wider = out.with_conformal(table)
    assert (wider.std > out.std).all()
    assert np.array_equal(wider.sample(2), out.sample(2))
    assert wider.distance((1, 1), (5, 5), CAMERA) == out.distance((1, 1), (5, 5), CAMERA)
    assert np.array_equal(wider.probability_closer(2.0), out.probability_closer(2.0))


def test_without_a_fit_there_is_no_joint_distribution():
    flat = np.zeros(SIZE, dtype=np.float32)
    with pytest.raises(ValueError, match="this completion has no fit"):
        Completion(flat, flat + 1, np.zeros((0, 3)), {}).sample(1)
