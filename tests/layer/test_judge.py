# SPDX-License-Identifier: Apache-2.0
"""Wrong points of whole images, with the bundled models."""

import itertools

import numpy as np
import pytest
import torch

import deepbasis
from deepbasis import patterns
from deepbasis.data.packaged import packaged
from deepbasis.data.worlds import Worlds

LARGE = np.log(1.25)
# Depths of wrong points.
KINDS = {
    "x2.5": lambda depth, _: 2.5 * depth,
    "/2.5": lambda depth, _: depth / 2.5,
    "random": lambda depth, rng: rng.uniform(0.5, 10, len(depth)),
}
# By share of wrong points: limits on the MAE relative to right points without the search, on the
# share of points that are far off that are named, and on the share of right points that are.
LIMITS = {
    0: (1.02, 0.9, 0.01),
    0.01: (1.08, 0.9, 0.01),
    0.05: (1.18, 0.9, 0.01),
    0.1: (1.28, 0.9, 0.01),
    0.3: (2.12, 0.85, 0.02),
}


def draw(sample, count, seed):
    """Rows of right points."""
    generator = torch.Generator().manual_seed(seed)
    pattern = patterns.parse(str(count))
    sparse = pattern(sample.depth, sample.image, sample.intrinsics, generator)[0]
    v, u = sparse.nonzero().T.numpy()
    return np.stack([u, v, sparse[v, u]], 1).astype(np.float64)


def contaminate(rows, share, seed):
    """Half of the wrong points are 2.5 times too far, half anywhere from 0.5 to 10 m."""
    rng, wrong = np.random.default_rng(seed), rows.copy()
    chosen = rng.permutation(len(rows))[: round(share * len(rows))]
    half = len(chosen) // 2
    wrong[chosen[:half], 2] *= 2.5
    wrong[chosen[half:], 2] = rng.uniform(0.5, 10, len(chosen) - half)
    return wrong


def score(out, depth):
    """MAE, coverage of the 90 % interval, and NEES."""
    known, (low, high) = depth > 0, out.interval(0.9)
    true, mean, var = depth[known], out.latent_mean[known], out.latent_var[known]
    inside = (low[known] <= true) & (true <= high[known])
    square = (mean - np.log(true)) ** 2 / var
    return np.abs(out.depth[known] - true).mean(), inside.mean(), square.mean()


def count_named(out, rows, right):
    """Points that are off, those of them that are named, right points, those named."""
    off = np.abs(np.log(rows[:, 2] / right[:, 2]))
    named = {(one.u, one.v) for one in out.outliers}
    is_named = np.array([tuple(place) in named for place in rows[:, :2]])
    return [
        mask.sum()
        for mask in (off > LARGE, (off > LARGE) & is_named, off == 0, ~off.astype(bool) & is_named)
    ]


def test_right_points_of_a_street_are_not_wrong_to_a_model_of_rooms():
    """They are far, and unlike what the prior of the weights expects."""
    model, flagged = deepbasis.load("indoor"), []
    for i, sample in enumerate(packaged("roads")):
        scene = model.prepare(sample.image)
        for seed in range(4):
            rows = draw(sample, 50, i + 10 * seed)
            flagged.append(len(scene.complete(rows).outliers) / len(rows))
    assert np.mean(flagged) < 0.04


def test_indoor_finds_wrong_points_and_loses_little_on_right_ones():
    """In rooms that it does not know, where what it loses differs much between draws of points."""
    model, frames = deepbasis.load("indoor"), packaged("rooms")
    scores, counts, clean_counts = [], [], []
    for i, seed in itertools.product(range(len(frames)), range(4)):
        sample = frames[i]
        scene, depth = model.prepare(sample.image), sample.depth[0].numpy()
        right = draw(sample, 500, i + 10 * seed)
        wrong = contaminate(right, 0.1, i + 10 * seed)
        plain, clean = scene.complete(right, robust=False), scene.complete(right)
        found = scene.complete(wrong)
        scores.append([score(out, depth) for out in (plain, clean, found)])
        counts.append(count_named(found, wrong, right))
        clean_counts.append(count_named(clean, right, right))
    plain, clean, found = np.mean(scores, 0)
    (mae, coverage, nees), (clean_mae, clean_coverage, clean_nees) = plain, clean
    found_mae, found_coverage, _ = found
    assert clean_mae < 1.1 * mae
    assert abs(clean_coverage - coverage) < 0.02
    assert clean_nees < 1.5 * nees  # where right points are lost, the error bars say so
    assert found_mae < 1.25 * mae
    assert 0.84 < found_coverage < 0.95
    large, found, same, false = np.sum(counts, 0)
    assert found >= 0.9 * large
    assert false <= 0.01 * same
    assert np.sum(clean_counts, 0)[3] <= 0.01 * same


def compare(scene, sample, seed):
    """By share of wrong points: ratios of MAE, one for each kind, and sums of `count_named`."""
    depth, right = sample.depth[0].numpy(), draw(sample, 500, seed)
    plain, _, _ = score(scene.complete(right, robust=False), depth)
    ratios, counts = {}, {}
    for share in LIMITS:
        outs = []
        for change in KINDS.values() if share else [KINDS["x2.5"]]:
            rng, rows = np.random.default_rng(seed), right.copy()
            chosen = rng.permutation(len(rows))[: round(share * len(rows))]
            rows[chosen, 2] = change(rows[chosen, 2], rng)
            outs.append((scene.complete(rows), rows))
        ratios[share] = [score(out, depth)[0] / plain for out, _ in outs]
        counts[share] = np.sum([count_named(out, rows, right) for out, rows in outs], 0)
    return ratios, counts


@pytest.mark.slow
def test_indoor_is_robust_to_any_share_of_wrong_points():
    """Geometric means over 27 rooms that it does not know and three kinds of wrong points."""
    model, frames = deepbasis.load("indoor"), [packaged("rooms")]
    frames += [Worlds("rooms", 12, seed=seed, size=(240, 320)) for seed in (0, 5)]
    samples = [one[i] for one in frames for i in range(len(one))]
    found = [compare(model.prepare(one.image), one, i) for i, one in enumerate(samples)]
    for share, (ratio, named, false) in LIMITS.items():
        assert np.exp(np.mean(np.log([ratios[share] for ratios, _ in found]))) < ratio, share
        large, large_named, same, same_named = np.sum([counts[share] for _, counts in found], 0)
        assert large_named >= named * large, share
        assert same_named <= false * same, share


@pytest.mark.parametrize(("name", "world"), [("open", "rooms"), ("outdoor", "roads")])
@pytest.mark.parametrize("errors", [None, "independent"])
def test_other_models_find_them_too(name, world, errors):
    """The wrong points may be farther than anything in the scene."""
    sample = packaged(world)[0]
    scene, depth, right = (
        deepbasis.load(name).prepare(sample.image),
        sample.depth[0].numpy(),
        draw(sample, 300, 0),
    )
    wrong = right.copy()
    wrong[::10, 2] *= 2.5
    clean, plain, robust = (
        scene.complete(rows, robust=robust, errors=errors)
        for rows, robust in ((right, True), (wrong, False), (wrong, True))
    )
    large, found, same, false = count_named(robust, wrong, right)
    assert found >= 0.8 * large
    assert false <= 0.02 * same
    known = depth > 0
    errors_m = [np.abs(out.depth - depth)[known].mean() for out in (clean, plain, robust)]
    assert errors_m[2] - errors_m[0] < 0.5 * (errors_m[1] - errors_m[0])


def test_a_wall_seen_through_a_near_surface_is_left_out():
    """Between the dense points on the road, some are three times as far."""
    sample = packaged("roads")[0]
    scene, depth = deepbasis.load("outdoor").prepare(sample.image), sample.depth[0].numpy()
    height = len(depth)
    rows = [[u, v, depth[v, u]] for v in range(height - 24, height, 2) for u in range(100, 160, 2)]
    through = [
        [u, v, 3 * depth[v, u]] for v in (height - 13, height - 9) for u in range(111, 150, 8)
    ]
    out = scene.complete(np.array(rows + through))
    named = {(one.u, one.v) for one in out.outliers}
    assert {(u, v) for u, v, _ in through} == named
