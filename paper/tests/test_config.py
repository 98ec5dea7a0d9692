# SPDX-License-Identifier: Apache-2.0
"""Settings, presets and methods, as the paper has them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from deepbasis.train.config import TrainConfig
from deepbasis_paper.config import PRESETS, PaperConfig
from deepbasis_paper.methods import METHODS, table
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.plan import Training


def test_table_1_of_the_paper():
    """Trainings, copies, passes, aleatoric, epistemic."""
    rows = {
        name: (r.trainings, r.copies, r.passes, r.aleatoric, r.epistemic)
        for name, r in METHODS.items()
    }
    assert rows["log"] == (1, 1, 1, True, False)
    assert rows["dropout"] == (1, 1, 5, False, True)
    assert rows["snap"] == (1, 5, 5, False, True)
    assert rows["bootstrap"] == (5, 5, 5, False, True)
    assert rows["bdbf"] == (1, 1, 1, True, True)
    for name in ("dropout", "snap", "bootstrap"):
        assert rows[f"{name}+log"] == (*rows[name][:3], True, True)
    assert "snap+log               1       5       5        yes        yes" in table()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name):
    PRESETS[name][1].check()


def test_the_defaults_are_the_papers():
    config = PRESETS["custom"][1]
    assert config == PaperConfig()
    assert (config.input, config.fit_points, config.lr) == ("rgbd", "same", 2e-4)
    assert (config.schedule, config.halve_every, config.jitter) == ("halve", 5, 0.02)
    assert (config.recipe, config.clip, config.decoder) == ("paper", math.inf, "paper")
    epochs = {name: replace(config, method=name).with_epochs().epochs for name in METHODS}
    assert {epochs[name] for name in ("bdbf", "dbf")} == {20}
    assert {epochs[name] for name in ("log", "snap", "dropout+log", "bootstrap")} == {30}
    assert {epochs[name] for name in ("enet", "enet-bdbf", "ncnn", "pncnn-exp")} == {10}
    assert replace(config, epochs=7).with_epochs().epochs == 7


def test_the_batch_size_is_stated_once():
    """In the library's settings; neither a preset nor a plan has another."""
    batch = TrainConfig().batch
    assert {config.batch for _, config in PRESETS.values()} == {batch}
    assert Training(Plan(), "mid", "bdbf", "rgbd").config.batch == batch


def test_presets_are_the_papers_data():
    data = {name: config.data for name, (_, config) in PRESETS.items() if "-" in name}
    assert all(name.startswith(data[name]) for name in data)
    for name in ("nyu", "vkitti2"):
        many, few = PRESETS[f"{name}-5"][1], PRESETS[f"{name}-500"][1]
        assert many.input_points == "5%"
        assert few == replace(many, input_points="500")


def test_the_benchmark_entry_is_the_kitti_setting_with_a_larger_network_at_full_size():
    """In the paper only the submission is not halved, and only it has a ResNet-34."""
    usual = PRESETS["kitti"][1]
    assert usual.downscale == 2
    assert PRESETS["kitti-benchmark"][1] == replace(usual, encoder="resnet34", downscale=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "--batch 0 must be at least 1"),
        ({"epochs": -1}, "--epochs -1 must be at least 1"),
        ({"method": "snap", "epochs": 3}, "--epochs 3 is too few: snap needs at least 6"),
        ({"input_drop": 1.5}, "--input-drop 1.5 must be between 0 and 1"),
        ({"lr": 0.0}, "--lr 0.0 and --clip inf must be above 0"),
        ({"fit_points": "63"}, "cannot determine 63 weights in training; use at least 64"),
        ({"input_points": "0-500"}, "cannot determine 63 weights"),
        (
            {"method": "enet-bdbf", "encoder_weights": Path("x.pth")},
            "--encoder-weights is for methods on the basis network; enet-bdbf takes no weights",
        ),
        ({"method": "ncnn", "init_from": Path("x")}, "--init-from is for methods on the basis"),
        ({"method": "enet", "width": 1}, "--width 1 must be at least 2"),
        ({"halve_every": 0}, "--halve-every 0 at least 1"),
        ({"eval_frames": -1}, "--eval-frames -1 must not be negative"),
        (
            {"method": "enet-bdbf", "width": 8, "input_points": "9"},
            "cannot determine 9 weights in training; use at least 10",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PaperConfig(**settings).check()


@pytest.mark.parametrize(
    ("settings", "points"),
    [
        ({}, "5%"),
        ({"fit_points": "2000"}, "5%"),
        ({"fit_points": "2000", "input": "rgb"}, "2000"),
        ({"fit_points": "2000", "method": "enet-bdbf"}, "2000"),
    ],
)
def test_predictions_are_made_from_the_input_points_unless_the_network_sees_none(settings, points):
    assert PaperConfig(**settings).trained_points == points
