# SPDX-License-Identifier: Apache-2.0
"""Learning rates, snapshots and the frames of a training, against the papers' formulas."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from deepbasis.data.sources import Source, Subset
from deepbasis_paper.config import PaperConfig
from deepbasis_paper.networks import PaperArchitecture, new_network
from deepbasis_paper.train import job as jobs
from deepbasis_paper.train.job import PaperJob

ROOMS = Source("rooms", count=3, size=(32, 48))


def job(config=PaperConfig(), steps_per_epoch=1, frames=None):  # noqa: B008  # it is frozen
    frames = frames or ROOMS.open("train")
    fabric = Fabric(accelerator="cpu", devices=1)
    none = Subset(frames, [])
    return PaperJob(fabric, config.with_epochs(), frames, none, None, {}, steps_per_epoch)


def test_the_rate_is_halved_every_five_epochs_as_in_the_paper():
    rates = [job(steps_per_epoch=10).rate(10 * epoch + 3) for epoch in range(20)]
    assert rates == [2e-4] * 5 + [1e-4] * 5 + [5e-5] * 5 + [2.5e-5] * 5


def test_it_is_what_torch_calls_step_lr():
    parameter = torch.nn.Parameter(torch.zeros(()))
    adam = torch.optim.Adam([parameter], 2e-4)
    theirs = torch.optim.lr_scheduler.StepLR(adam, step_size=5 * 7)
    theirs.gamma = 0.5
    ours = job(steps_per_epoch=7)
    for step in range(ours.steps):
        assert ours.rate(step) == pytest.approx(adam.param_groups[0]["lr"])
        adam.step()
        theirs.step()


@pytest.fixture
def saved(monkeypatch):
    """The snapshots that would be written."""
    files = []
    monkeypatch.setattr(jobs, "save_tensors", lambda path, *_: files.append(path))
    return files


@pytest.fixture(scope="module")
def network():
    return new_network(PaperArchitecture(method="ncnn"))


@pytest.mark.parametrize("per_epoch", [1, 4, 7])
def test_snapshots_follow_huang(per_epoch, saved, network):
    """Huang et al., 2017, eq. 2: t from 1, T steps in C cycles."""
    ours = job(PaperConfig(method="snap"), per_epoch)
    total, cycles, ends = ours.steps, 6, []
    for t in range(1, total + 1):
        turn = math.ceil(total / cycles)
        theirs = 2e-4 / 2 * (math.cos(math.pi * ((t - 1) % turn) / turn) + 1)
        assert ours.rate(t - 1) == pytest.approx(theirs)
        before = len(saved)
        ours.after_step(t, network)
        ends += [t] * (len(saved) - before)
    assert ends == [5 * per_epoch * (cycle + 1) for cycle in range(6)]
    assert saved == [Path("run") / f"snapshot-{number}.safetensors" for number in range(6)]


def test_a_shorter_last_cycle_ends_in_a_snapshot_too(saved, network):
    """21 steps in 6 cycles of 4: the last has one."""
    ours = job(PaperConfig(method="snap", epochs=7), 3)
    for step in range(1, ours.steps + 1):
        ours.after_step(step, network)
    assert (ours.steps, ours.cycle) == (21, 4)
    assert [path.stem for path in saved] == [f"snapshot-{number}" for number in range(6)]


def test_methods_without_cycles_write_no_snapshot(saved, network):
    ours = job(PaperConfig(epochs=1), 2)
    for step in (1, 2):
        ours.after_step(step, network)
    assert not saved


def test_the_cosine_rises_then_falls_to_nothing():
    ours = job(PaperConfig(schedule="cosine", epochs=10), steps_per_epoch=100)
    rates = [ours.rate(step) for step in range(ours.steps)]
    top = rates.index(max(rates))
    assert top == pytest.approx(100, abs=2)
    assert max(rates) == pytest.approx(2e-4, rel=0.02)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] < 1e-3 * max(rates)


@pytest.fixture(scope="module")
def rooms():
    return ROOMS.open("train")


def test_input_points_are_withheld_from_training_frames_only(rooms):
    ours = job(PaperConfig(input_drop=1.0, input_points="50"), frames=rooms)
    assert not ours.training_set(rooms)[0].seen.any()
    assert ours.training_set(ROOMS.open("train"))[0].seen.any()


def test_another_training_of_bootstrap_has_other_weights_and_another_order(rooms):
    config = PaperConfig(method="bootstrap", input="rgb", encoder="mobilenet_v2")
    one, other = (job(replace(config, training=k), frames=rooms) for k in (0, 3))
    names = [[j.training_set(rooms)[i].name for i in range(3)] for j in (one, other)]
    assert names[0] != names[1]
    assert sorted(names[0]) == sorted(names[1])
    first, again, second = (j.new_network().state_dict() for j in (one, one, other))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.conv.weight"], second["head.conv.weight"])
    start = torch.cat([frame.depth[frame.depth > 0].log() for frame in rooms]).mean()
    assert float(first["head.conv.bias"][0]) == pytest.approx(float(start), rel=1e-5)


def test_losses_get_the_options_they_have():
    assert job().loss_options == {"mixed_precision": False, "few_points_weight": 0.0}
    for method in ("log", "enet-bdbf", "ncnn"):
        assert job(PaperConfig(method=method)).loss_options == {"mixed_precision": False}
