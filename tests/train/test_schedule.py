# SPDX-License-Identifier: Apache-2.0
"""Learning rates and boundaries, against the papers' formulas."""

import math
from dataclasses import replace

import pytest
import torch

from deepbasis.methods import METHODS
from deepbasis.train.config import PRESETS, TrainConfig, read_preset
from deepbasis.train.schedule import Schedule


def test_the_rate_is_halved_every_five_epochs_as_in_the_paper():
    schedule = Schedule(TrainConfig(), steps_per_epoch=10)
    rates = [schedule.rate(10 * epoch + 3) for epoch in range(20)]
    assert rates == [2e-4] * 5 + [1e-4] * 5 + [5e-5] * 5 + [2.5e-5] * 5


def test_it_is_what_torch_calls_step_lr():
    parameter = torch.nn.Parameter(torch.zeros(()))
    adam = torch.optim.Adam([parameter], 2e-4)
    theirs = torch.optim.lr_scheduler.StepLR(adam, step_size=5 * 7)
    theirs.gamma = 0.5
    schedule = Schedule(TrainConfig(), steps_per_epoch=7)
    for step in range(schedule.total):
        assert schedule.rate(step) == pytest.approx(adam.param_groups[0]["lr"])
        adam.step()
        theirs.step()


@pytest.mark.parametrize("per_epoch", [1, 4, 7])
def test_snapshots_follow_huang(per_epoch):
    """Huang et al., 2017, eq. 2: t from 1, T steps in C cycles."""
    schedule = Schedule(TrainConfig(method="snap"), per_epoch)
    total, cycles = schedule.total, 6
    for t in range(1, total + 1):
        turn = math.ceil(total / cycles)
        theirs = 2e-4 / 2 * (math.cos(math.pi * ((t - 1) % turn) / turn) + 1)
        assert schedule.rate(t - 1) == pytest.approx(theirs)
    assert [step for step in range(1, total + 1) if schedule.ends_member(step)] == [
        5 * per_epoch * (cycle + 1) for cycle in range(6)
    ]


def test_independent_trainings_start_afresh_and_end_in_a_member_each():
    schedule = Schedule(TrainConfig(method="bootstrap", epochs=3), steps_per_epoch=4)
    assert schedule.total == 5 * 12
    assert [s for s in range(60) if schedule.starts_training(s)] == [0, 12, 24, 36, 48]
    assert [s for s in range(1, 61) if schedule.ends_member(s)] == [12, 24, 36, 48, 60]
    assert [schedule.rate(s) for s in range(12)] == [schedule.rate(s) for s in range(12, 24)]


def test_the_cosine_rises_then_falls_to_nothing():
    schedule = Schedule(TrainConfig(schedule="cosine", epochs=10), steps_per_epoch=100)
    rates = [schedule.rate(step) for step in range(schedule.total)]
    top = rates.index(max(rates))
    assert top == pytest.approx(100, abs=2)
    assert max(rates) == pytest.approx(2e-4, rel=0.02)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] < 1e-3 * max(rates)


def test_table_1_of_the_paper():
    """Trainings, copies, passes, aleatoric, epistemic."""
    table = {
        name: (r.trainings, r.copies, r.passes, r.aleatoric, r.epistemic)
        for name, r in METHODS.items()
    }
    assert table["log"] == (1, 1, 1, True, False)
    assert table["dropout"] == (1, 1, 5, False, True)
    assert table["snap"] == (1, 5, 5, False, True)
    assert table["bootstrap"] == (5, 5, 5, False, True)
    assert table["bdbf"] == (1, 1, 1, True, True)
    for name in ("dropout", "snap", "bootstrap"):
        assert table[f"{name}+log"] == (*table[name][:3], True, True)


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_preset_is_a_configuration(path):
    read_preset(path.stem).check()
    assert read_preset(path.stem).preset == path.stem


def test_the_benchmark_entry_is_the_kitti_setting_with_a_larger_network_at_full_size():
    """In the paper only the submission is not halved, and only it has a ResNet-34."""
    usual = replace(read_preset("kitti"), preset="kitti-benchmark")
    assert usual.halvings == 1
    entry = replace(usual, encoder="resnet34", halvings=0)
    assert read_preset("kitti-benchmark") == entry


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "--batch 0 must be at least 1"),
        ({"method": "snap", "epochs": 3}, "snap needs at least 6"),
        ({"input_drop": 1.5}, "--input-drop 1.5 must be between 0 and 1"),
        ({"lr": 0.0}, "--lr 0.0 and --clip 1.0 must be above 0"),
        ({"fit_points": "63"}, "cannot determine 63 weights in training; use at least 64"),
        ({"input_points": "0-500"}, "cannot determine 63 weights"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings).check()


def test_an_unknown_preset_is_told_the_known_ones():
    with pytest.raises(ValueError, match=r"there is no preset 'tny'; choose one of .*tiny"):
        read_preset("tny")
