# SPDX-License-Identifier: Apache-2.0
"""Conformal intervals: the guarantee, simulated; what is pooled; what is refused."""

import errno
import json
import math

import numpy as np
import pytest
from scipy import stats

from deepbasis.conformal import DISTANCES, FEWEST_SCORES, LEVELS, ConformalTable, quantile


@pytest.mark.parametrize("n", [19, 40, 100])
@pytest.mark.parametrize("level", [0.5, 0.68, 0.9])
def test_a_new_score_lies_within_with_the_probability_that_the_theorem_says(n, level):
    """Coverage is Beta distributed with mean ceil((n + 1) level) / (n + 1), of any distribution."""
    rng, trials = np.random.default_rng(0), 500
    bounds = np.array([quantile(rng.standard_cauchy(n) ** 2, level) for _ in range(trials)])
    coverage = stats.cauchy.cdf(np.sqrt(bounds)) - stats.cauchy.cdf(-np.sqrt(bounds))
    rank = math.ceil((n + 1) * level - 1e-9)
    expected = stats.beta(rank, n + 1 - rank)
    assert level - 1e-12 <= expected.mean() < level + 1 / (n + 1)
    assert coverage.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / trials**0.5)
    assert coverage.std() == pytest.approx(expected.std(), rel=0.15)


def test_too_few_scores_give_an_infinite_bound():
    assert quantile(np.arange(8.0), 0.9) == math.inf
    assert quantile(np.arange(9.0), 0.9) == 8
    many = np.arange(800.0)
    assert quantile(many, 0.9, np.repeat(np.arange(8), 100)) == math.inf
    assert quantile(many, 0.8, np.repeat(np.arange(8), 100)) < math.inf


def test_groups_of_one_are_scores():
    scores = np.random.default_rng(0).exponential(size=50)
    for level in (0.3, 0.68, 0.9):
        assert quantile(scores, level, np.arange(50)) == quantile(scores, level)


def test_a_point_of_a_new_frame_lies_within_though_points_of_a_frame_resemble_each_other():
    """Frames differ in the size of their errors, and those with small errors have more points."""
    rng, level, trials = np.random.default_rng(1), 0.9, 600
    grouped, pooled = [], []
    for _ in range(trials):
        scale = np.exp(rng.standard_normal(13))
        group = np.repeat(np.arange(12), np.where(scale[:12] < 1, 60, 15))
        scores = scale[group] * np.abs(rng.standard_normal(len(group)))
        new = scale[12] * np.abs(rng.standard_normal())
        grouped.append(new <= quantile(scores, level, group))
        pooled.append(new <= quantile(scores, level))
    error = 3 * (level * (1 - level) / trials) ** 0.5
    assert np.mean(grouped) > level - error
    assert np.mean(pooled) < level - error  # so the groups matter


def test_every_distance_has_its_own_factor_and_no_level_is_undercovered():
    rng = np.random.default_rng(2)
    distance = rng.uniform(0, 50, 2000)
    scores = np.abs(rng.standard_t(3, 2000)) * (1 + distance / 10)
    table = ConformalTable.learn(scores, distance)
    assert table.distances == (*DISTANCES, math.inf)
    assert sum(table.scores) == 2000
    one = np.full(2000, 1e-3)
    for level in (0.5, 0.6827, 0.9, 0.95):
        half = 1e3 * table.half_width(one, one, distance, level)
        for low, high in zip((0, *DISTANCES), table.distances, strict=True):
            inside = (distance > low) & (distance <= high)
            assert (scores <= half)[inside].mean() >= level
    assert (np.diff(table.factors[:, 179]) > 0).all()


def test_distances_with_too_few_scores_are_joined():
    rng = np.random.default_rng(3)
    near, far = rng.uniform(0, 1.9, 300), rng.uniform(6, 11, FEWEST_SCORES - 1)
    table = ConformalTable.learn(rng.exponential(size=len(near) + len(far)), np.r_[near, far])
    assert table.distances == (math.inf,)
    far = np.r_[far, 20.0]
    table = ConformalTable.learn(rng.exponential(size=len(near) + len(far)), np.r_[near, far])
    assert table.distances == (2.0, math.inf)
    assert table.scores == (300, FEWEST_SCORES)


def test_where_nothing_was_held_out_intervals_never_shrink():
    scores, distance = np.full(100, 0.5), np.full(100, 3.0)
    table = ConformalTable.learn(scores, distance, narrows=True)
    own, std = np.full(2, 1.6), np.ones(2)
    half = table.half_width(own, std, np.array([3.0, 3.1]), 0.9)
    np.testing.assert_allclose(half, [0.5, 1.6])
    half = ConformalTable.learn(scores, distance).half_width(own, std, np.array([3.0, 3.1]), 0.9)
    np.testing.assert_allclose(half, 1.6)


def test_too_few_points_or_frames_are_refused():
    with pytest.raises(ValueError, match="39 held-out points are too few for conformal intervals"):
        ConformalTable.learn(np.ones(39), np.ones(39))
    with pytest.raises(ValueError, match=r"80 held-out points of 8 frames are too few .* 9 frames"):
        ConformalTable.learn(np.ones(80), np.ones(80), np.repeat(np.arange(8), 10))
    table = ConformalTable.learn(np.arange(90.0), np.ones(90), np.repeat(np.arange(9), 10))
    assert table.largest_level == 0.9
    one = np.ones(1)
    assert table.half_width(one, one, one, 0.9)
    with pytest.raises(ValueError, match=r"level 0.95 cannot be guaranteed with 9 frames"):
        table.half_width(one, one, one, 0.95)
    with pytest.raises(ValueError, match=r"level 0.999 cannot be guaranteed"):
        table.half_width(one, one, one, 0.999)


def test_a_table_reads_back_and_a_damaged_one_is_named(tmp_path):
    rng = np.random.default_rng(4)
    table = ConformalTable.learn(rng.exponential(size=200), rng.uniform(0, 40, 200))
    file = tmp_path / "camera.json"
    table.save(file)
    back = ConformalTable.load(file)
    assert np.array_equal(back.factors, table.factors)
    assert (back.distances, back.scores, back.groups, back.reach) == (
        table.distances, table.scores, table.groups, table.reach,
    )  # fmt: skip
    assert file.stat().st_size < 40_000
    content = json.loads(file.read_text())
    damaged = [{}, [], content | {"format": 2}, content | {"factors": content["factors"][1:]}]
    damaged += [content | {"distances": [None] * len(table.distances)}, content | {"reach": "x"}]
    damaged += [content | {"groups": 0}, content | {"reach": -1}]
    damaged += [content | {"groups": math.inf}, content | {"scores": content["scores"][1:]}]
    damaged += [content | {"distances": [-math.inf], "factors": content["factors"][:1]}]
    for one in damaged:
        file.write_text(json.dumps(one))
        with pytest.raises(ValueError, match=r"camera.json is not a conformal table"):
            ConformalTable.load(file)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing.json"):
        ConformalTable.load(tmp_path / "nothing.json")
    with pytest.raises(OSError, match="there is no folder"):
        table.save(tmp_path / "no" / "camera.json")


def test_a_table_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    table = ConformalTable.learn(rng.exponential(size=200), rng.uniform(0, 40, 200))
    file = tmp_path / "camera.json"
    file.write_text("the old one")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*camera\.json \(No space left on device\)"):
        table.save(file)
    assert file.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [file]


def test_a_level_between_two_columns_is_rounded_up():
    table = ConformalTable.learn(np.arange(199.0), np.ones(199))
    one = np.ones(1)
    assert table.half_width(one, one, one, float(LEVELS[99])) == 99
    assert table.half_width(one, one, one, float(LEVELS[99]) + 1e-4) == 100
