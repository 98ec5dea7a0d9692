# SPDX-License-Identifier: Apache-2.0
"""The bundled models tell images that they know from others, and their error bars know it."""

import json

import numpy as np
import pytest

import deepbasis
from deepbasis.cli import main
from deepbasis.data.packaged import packaged
from deepbasis.result import FEW_POINTS, UNFAMILIAR

SENTENCE = "does not resemble those that the model was trained on"


@pytest.fixture(scope="module")
def indoor():
    return deepbasis.load("indoor")


@pytest.fixture(scope="module")
def road():
    return packaged("roads")[0]


@pytest.fixture(scope="module")
def scene(indoor, road):
    return indoor.prepare(road.image.permute(1, 2, 0).numpy())


def points_of(road, count):
    row, column = np.nonzero(road.mask[0].numpy())
    some = np.random.default_rng(0).permutation(len(row))[:count]
    row, column = row[some], column[some]
    return np.stack([column, row, road.depth[0].numpy()[row, column]], 1)


def test_a_street_is_unfamiliar_to_a_model_of_rooms(scene, road):
    out = scene.complete()
    assert out.familiarity < UNFAMILIAR
    assert any(SENTENCE in one for one in out.warnings)
    assert sum(SENTENCE in one for one in scene.complete(points_of(road, 5)).warnings) == 1
    with_points = scene.complete(points_of(road, FEW_POINTS))
    assert with_points.familiarity == out.familiarity
    assert not any(SENTENCE in one for one in with_points.warnings)


def test_error_bars_are_wider_without_points_and_the_same_with_many(scene, road):
    plain = deepbasis.load("indoor")
    plain.network.familiarity.forget()
    other = plain.prepare(road.image.permute(1, 2, 0).numpy())
    assert other.complete().familiarity is None
    assert not any(SENTENCE in one for one in other.complete().warnings)
    for errors in ("correlated", "independent"):
        wide, usual = (one.complete(errors=errors).half_width(0.9) for one in (scene, other))
        assert np.median(wide / usual) > 2
        many = points_of(road, 500)
        wide, usual = (one.complete(many, errors=errors) for one in (scene, other))
        assert np.quantile(np.abs(wide.latent_mean - usual.latent_mean), 0.99) < 0.05
        ratio = np.median(wide.half_width(0.9) / usual.half_width(0.9))
        assert ratio == pytest.approx(1, abs=0.05)


def test_a_longer_lens_means_farther_things(indoor, road):
    image = road.image.permute(1, 2, 0).numpy()
    width = image.shape[1]
    usual = float(indoor.network.familiarity.focal) * width
    cameras = [np.array([[f, 0, width / 2], [0, f, 80], [0, 0, 1]]) for f in (usual, 2 * usual)]
    depths = [np.median(indoor.prepare(image, one).complete().depth) for one in cameras]
    power = float(indoor.network.familiarity.focal_power)
    assert 0.1 < power < 1
    assert depths[1] / depths[0] == pytest.approx(2**power, rel=1e-3)
    with pytest.raises(ValueError, match="intrinsics"):
        indoor.prepare(image, np.zeros((3, 3)))


def test_the_command_says_so_once(tmp_path, capsys, monkeypatch):
    image = packaged("roads").images["000000"]
    words = ["deepbasis", "complete", str(image), "--out", str(tmp_path), "--no-figure"]
    monkeypatch.setattr("sys.argv", words)
    main()
    assert capsys.readouterr().err.count(SENTENCE) == 1
    assert json.loads((tmp_path / "000000.json").read_text())["familiarity"] < UNFAMILIAR
