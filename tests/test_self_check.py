# SPDX-License-Identifier: Apache-2.0
"""The check without ground truth: what it must contradict, with a bundled model, and what not."""

import numpy as np
import pytest
from scipy import stats

import deepbasis
from deepbasis.data.packaged import packaged
from deepbasis.registration import check_registration
from deepbasis.self_check import (
    CONFIDENCE,
    ENOUGH,
    LEVELS,
    WANTED,
    Check,
    bound_share,
    check,
    draw_rounds,
)


@pytest.fixture(scope="module")
def rooms():
    return [packaged("rooms")[i] for i in range(2)]


@pytest.fixture(scope="module")
def scene(rooms):
    return deepbasis.load("indoor").prepare(rooms[0].image)


def measure(room, count=300):
    """Points of a room, u v metres, drawn uniformly."""
    depth = room.depth[0].numpy().astype(np.float64)
    v, u = depth.nonzero()
    chosen = np.random.default_rng(0).permutation(len(u))[:count]
    return np.stack([u, v, depth[v, u]], 1)[chosen]


def swapped(rows):
    return rows[:, [1, 0, 2]]


def mirrored(rows):
    return np.stack([319 - rows[:, 0], *rows.T[1:]], 1)


def upside_down(rows):
    return np.stack([rows[:, 0], 239 - rows[:, 1], rows[:, 2]], 1)


def shifted(rows):
    return rows + np.array([20, 0, 0])


def scaled(rows):
    return rows * [1, 1, 10]


def zoomed(rows):
    return (rows - [160, 120, 0]) * [1.25, 1.25, 1] + [160, 120, 0]


def contaminated(rows):
    wrong = rows.copy()
    wrong[::10, 2] *= 2.5
    return wrong


def inside(rows):
    return rows[(rows[:, :2] >= 0).all(1) & (rows[:, 0] < 320) & (rows[:, 1] < 240)]


CORRUPTIONS = [
    (swapped, "u (column) and v (row) look swapped"),
    (mirrored, "u (column) looks mirrored"),
    (upside_down, "v (row) looks mirrored"),
    (shifted, "pixels to the right"),
    (scaled, "times too large: check the unit"),
    (zoomed, "check the intrinsics"),
    (contaminated, "of the points look wrong"),
]
# Found like `swapped`, by moving the points.
ALIKE = (mirrored, upside_down, zoomed)


@pytest.mark.parametrize(
    ("corrupt", "cause"),
    [pytest.param(*row, marks=pytest.mark.slow) if row[0] in ALIKE else row for row in CORRUPTIONS],
)
def test_corrupt_points_are_contradicted_and_the_cause_is_named(rooms, scene, corrupt, cause):
    answer = scene.complete(inside(corrupt(measure(rooms[0]))))
    found = check(scene, answer)
    assert found.verdict == "contradicted"
    assert cause in found.cause
    assert found.statement.startswith("contradicted: ")


def test_points_of_another_camera_are_contradicted(rooms, scene):
    found = check(scene, scene.complete(measure(rooms[1])))
    assert found.verdict == "contradicted"
    assert "another image or camera" in found.cause


def test_good_points_are_not_contradicted_and_the_report_says_on_what_it_rests(rooms, scene):
    found = check(scene, scene.complete(measure(rooms[0])))
    assert found.verdict == "not contradicted"
    assert found.cause is None
    share, low, high = found.coverage[2]
    assert low < 0.9 < high
    assert 0.05 < high - low < 0.4
    near, far = found.parts.values()
    assert min(len(near), len(far)) > 20
    assert near.distance.max() < far.distance.min()
    assert f"{len(found)} points held out" in found.statement
    assert f"{share:.0%} ({low:.0%} to {high:.0%})" in found.statement
    assert "near points" in found.statement
    assert "far from points" in found.statement


def test_few_points_are_too_few_to_tell(rooms, scene):
    found = check(scene, scene.complete(measure(rooms[0], 20)))
    assert 0 < len(found) < ENOUGH
    assert found.verdict == "too few points to tell"
    assert found.registration is None
    assert check(scene, scene.complete(None)).verdict == "too few points to tell"
    assert check_registration(scene, measure(rooms[0], 39)) is None


def test_conformal_intervals_never_undercover_the_held_out_points(rooms, scene):
    found = check(scene, scene.complete(measure(rooms[0])))
    table = found.table()
    for level in (0.5, 0.8, 0.9):
        half = table.half_width(found.half[1], found.half[1], found.distance, level)
        assert (np.abs(found.error) <= half).mean() >= level
    answer = scene.complete(measure(rooms[0])).with_conformal(table)
    low, high = answer.interval(0.9)
    truth = rooms[0].depth[0].numpy()
    covered = ((truth >= low) & (truth <= high))[truth > 0].mean()
    assert 0.85 < covered < 0.97
    assert (answer.interval(0.5)[0] >= low).all()


@pytest.mark.parametrize("n", [12, 60, 300, 3000])
def test_points_are_held_out_once_singly_and_in_blocks(n):
    rng = np.random.default_rng(n)
    rows = np.column_stack([rng.uniform(0, 319, n), rng.uniform(0, 239, n), np.ones(n)])
    rounds = list(draw_rounds(rows, (240, 320), rng))
    scored = np.sum([one for _, one in rounds], 0)
    assert scored.max() == 1
    assert all((removed & one).sum() == one.sum() for removed, one in rounds)
    assert all(removed.mean() < 0.5 for removed, _ in rounds)
    assert scored.sum() >= min(0.5 * n, 0.8 * WANTED)


def laplace_check(factor, n=2000, cells=2000):
    """Laplace errors of scale 1, and error bars that are wrong by a factor."""
    rng = np.random.default_rng(3)
    half = np.stack([np.full(n, factor * stats.laplace.ppf((1 + level) / 2)) for level in LEVELS])
    one = np.ones(n)
    cell = np.arange(n) % cells
    return Check(one, one, rng.laplace(size=n), half, one, 0 * one, cell * 1.0, 0 * one)


@pytest.mark.parametrize("factor", [0.5, 1, 2])
def test_a_verdict_is_right_about_errors_of_known_size(factor):
    found = laplace_check(factor)
    assert found.verdict == ("contradicted" if factor < 1 else "not contradicted")
    assert ("too narrow" in found.cause) if factor < 1 else (found.cause is None)
    wide = f"wider than they need to be: the 50% interval contains {found.coverage[0].share:.0%}"
    assert (wide in found.statement) == (factor > 1)
    expected = [stats.laplace.cdf(row[0]) - stats.laplace.cdf(-row[0]) for row in found.half]
    for one, share in zip(found.coverage, expected, strict=True):
        assert one.low <= share <= one.high
    half = found.table().half_width(found.half[2], found.half[1], found.distance, 0.9)
    assert half[0] == pytest.approx(max(factor, 1) * stats.laplace.ppf(0.95), rel=0.1)
    joined = Check.join([laplace_check(factor, 500)] * 2)
    assert (len(joined), joined.half.shape) == (1000, (len(LEVELS), 1000))
    assert sorted(set(joined.frame)) == [0, 1]


def test_bounds_of_a_share_are_those_of_clopper_and_pearson():
    inside = np.arange(50) < 43
    found = bound_share(inside, np.arange(50))
    exact = stats.binomtest(43, 50).proportion_ci(CONFIDENCE, method="exact")
    assert found.low == pytest.approx(exact.low, abs=0.01)
    assert found.high == pytest.approx(exact.high, abs=0.01)
    assert bound_share(np.ones(10, bool), np.arange(10)).high == 1
    assert bound_share(np.zeros(10, bool), np.arange(10)).low == 0


def test_bounds_are_wider_if_points_of_a_cell_are_alike():
    """Cells whose points are all inside or all outside are as many independent points."""
    cell = np.repeat(np.arange(40), 25)
    inside = cell < 36
    found = bound_share(inside, cell)
    alone = bound_share(np.arange(40) < 36, np.arange(40))
    assert found.share == alone.share == 0.9
    assert found.low == pytest.approx(alone.low, abs=1e-9)
    assert found.low < bound_share(inside, np.arange(1000)).low


def test_calibrated_error_bars_are_seldom_doubted_however_few_the_points():
    rng = np.random.default_rng(0)
    half = np.array([stats.laplace.ppf((1 + level) / 2) for level in LEVELS])[:, None]
    one = np.ones(ENOUGH)
    columns = np.repeat(half, ENOUGH, 1), one, 0 * one, np.arange(ENOUGH) * 1.0, 0 * one
    doubted = [
        Check(one, one, rng.laplace(size=ENOUGH), *columns).verdict == "contradicted"
        for _ in range(300)
    ]
    assert np.mean(doubted) < 0.03  # each of two levels in about 1 of 200


@pytest.mark.parametrize("factor", [1e6, 1e-5])
def test_depths_of_any_wrong_unit_are_contradicted(rooms, scene, factor):
    found = check_registration(scene, measure(rooms[0], 120) * [1, 1, factor])
    assert found.contradicted
