# SPDX-License-Identifier: Apache-2.0
"""Trainings: each is made once, by its command, and never taken for another."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deepbasis_paper import cli, commands
from deepbasis_paper.config import PaperConfig
from deepbasis_paper.targets import plan as plans
from deepbasis_paper.targets import shift
from deepbasis_paper.targets.cells import source_of
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.plan import (
    ROWS,
    Training,
    command,
    ensure,
    points_to_test,
    trainings,
)

PRIOR = "members.0.fit.prior.cov"
PLANS = [
    Plan(),
    Plan(
        data="nyu", root=Path("a folder"), downscale=2, epochs=4, seeds=2,
        encoder_weights=Path("weights.pth"),
    ),
    Plan(data="roads", frames=20, size=(64, 96), runs=Path("elsewhere"), cache=True),
    Plan(
        data="kitti", root=Path("k"), encoder="resnet34", normalisation="symmetric",
        mixed_precision=True,
    ),
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.data)
def test_the_printed_command_gives_the_same_settings(plan, monkeypatch):
    seen: list[PaperConfig] = []
    monkeypatch.setattr(commands, "train", seen.append)
    for regime in ROWS:
        for training in trainings(plan, regime):
            monkeypatch.setattr(sys, "argv", ["deepbasis-paper", *command(training.config)])
            cli.main()
            assert seen.pop() == training.config


def test_a_plan_has_the_papers_rows_for_every_seed():
    names = [training.name for training in trainings(Plan(seeds=2), "low")]
    assert len(names) == len(set(names)) == 14
    assert names[0] == "low-snap-rgbd-s0"
    assert names[-1] == "low-bdbf-rgb-s1"


def test_kitti_is_trained_and_tested_with_the_points_of_its_sensor(tmp_path):
    """In `mid` and, after training on other data, in `shift`."""
    own = Plan(data="kitti", root=tmp_path)
    assert Training(own, "mid", "bdbf", "rgbd").config.input_points == "sensor"
    assert points_to_test(own, "mid", ("5%", "1%")) == ("sensor",)
    assert points_to_test(own, "low", ("500", "50")) == ("500", "50")
    other = Plan(data="vkitti2", root=tmp_path, shift_root=tmp_path)
    points = {domain.name: domain.points for domain in shift.domains(other)}
    turns = [f"{angle}-deg-{side}" for angle in (15, 30) for side in ("left", "right")]
    assert list(points) == ["vkitti2", *turns, "kitti"]
    assert points["kitti"] == "sensor"
    assert {points[name] for name in ("vkitti2", *turns)} == {"5%"}


def test_the_selected_validation_frames_and_the_centred_downscaling_reach_the_source(tmp_path):
    source = source_of(Plan(data="kitti", root=tmp_path, val_selection=True, downscale=2))
    assert (source.variant, source.centred) == ("val_selection", True)
    assert PaperConfig.centred


def test_methods_without_a_fit_train_half_as_long_again():
    epochs = {m: Training(Plan(epochs=4), "mid", m, "rgbd").config.epochs for m in ("log", "bdbf")}
    assert epochs == {"log": 6, "bdbf": 4}
    full = {m: Training(Plan(), "mid", m, "rgbd").config.epochs for m in ("log", "bdbf")}
    assert full == {"log": 30, "bdbf": 20}


def test_a_finished_training_is_used_again(plan, monkeypatch):
    monkeypatch.setattr(plans.subprocess, "run", lambda *_: pytest.fail("it was trained again"))
    training = Training(plan, "mid", "log", "rgbd")
    assert ensure(training) == training.model


def test_another_setting_is_refused_in_one_sentence(plan):
    with pytest.raises(ValueError, match="was trained with epochs 1, not 3; choose another"):
        ensure(Training(replace(plan, epochs=2), "mid", "log", "rgbd"))


@pytest.mark.slow
def test_a_stopped_training_is_resumed(plan, tmp_path):
    training = Training(replace(plan, runs=tmp_path), "mid", "log", "rgbd")
    whole = load_file(ensure(training))
    training.model.unlink()  # as if stopped after the last step, before the end
    again = load_file(ensure(training))
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


@pytest.mark.slow
def test_twins_share_their_steps_and_nothing_else(plan, tmp_path, capsys):
    plan = replace(plan, runs=tmp_path)
    dbf, bdbf = (Training(plan, "mid", method, "rgbd") for method in ("dbf", "bdbf"))
    ensure(dbf)
    assert "--resume" not in capsys.readouterr().out
    borrowed = load_file(ensure(bdbf))
    assert "--resume" in capsys.readouterr().out
    words = command(replace(bdbf.config, out=tmp_path / "alone"))
    subprocess.run([sys.executable, "-m", "deepbasis_paper.cli", *words], check=True)
    alone = load_file(tmp_path / "alone" / "model.safetensors")
    assert all(torch.equal(borrowed[name], tensor) for name, tensor in alone.items())
    assert not torch.equal(load_file(dbf.model)[PRIOR], borrowed[PRIOR])


def test_a_training_that_fails_is_reported(plan, tmp_path):
    training = Training(replace(plan, runs=tmp_path, epochs=-1), "mid", "bdbf", "rgbd")
    with pytest.raises(ValueError, match=r"mid-bdbf-rgbd-s0 ended early \(exit code 2\); the same"):
        ensure(training)
