# SPDX-License-Identifier: Apache-2.0
"""Whole trainings, small enough for seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import deepbasis
from deepbasis.data.sources import Source
from deepbasis.layer import BasisFit
from deepbasis.methods import METHODS
from deepbasis.model import load_tensors
from deepbasis.train.loop import Stopped
from deepbasis.train.run import train
from trainings import WORDS, small

# Sums over threads round otherwise than sums over processes, and Adam makes much of little.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
CLI = [sys.executable, "-m", "deepbasis.cli", "train", *WORDS]


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].network == "basis"])
@pytest.mark.parametrize("input", ["rgb", "rgbd"])
def test_every_recipe_trains_and_predicts(method, input, tmp_path):
    if input == "rgbd" and METHODS[method].passes > 1:
        pytest.skip("the input does not depend on the ensemble")
    epochs = METHODS[method].cycles
    path = train(small(tmp_path, method=method, input=input, epochs=epochs))
    model = deepbasis.load(path)
    assert len(model.networks) == METHODS[method].copies
    sample = Source("rooms", count=1, size=(32, 48)).open("test")[0]
    for points in (0, 1, 100):
        sparse = torch.zeros_like(sample.depth)
        sparse.view(-1)[:points] = 2.0
        mean, model_var, noise_var = model(sample.image[None], sparse[None])
        assert mean.shape == (1, 1, 32, 48)
        var = model_var + noise_var
        assert mean.isfinite().all()
        assert (var > 0).all()
    assert (model_var > 0).any() == METHODS[method].epistemic
    assert (noise_var > 0).any() == METHODS[method].aleatoric
    again = model(sample.image[None], sparse[None])
    assert torch.equal(again.mean, mean)
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["finished"]
    assert run["settings"]["method"] == method
    assert list((tmp_path / "logs").iterdir())
    assert (tmp_path / "loss.png").stat().st_size > 1000


def test_the_loss_falls(tmp_path):
    path = train(small(tmp_path, frames=3, held_back=1, epochs=25, lr=2e-3, schedule="cosine"))
    metrics = deepbasis.load(path).card.metrics
    assert max(metrics["losses"][-3:]) < 0.7 * metrics["losses"][0]


def test_a_model_for_few_points_with_frames_mixed_in_is_trained_on_through_local_errors(tmp_path):
    first = small(
        tmp_path / "first", frames=6, held_back=2, epochs=1, also="roads", also_frames=4, few=0.3,
        jitter=0.2, input="rgb", fit_points="300",
    )  # fmt: skip
    path = train(first)
    model = deepbasis.load(path)
    assert json.loads((path.parent / "run.json").read_text())["settings"]["also"] == "roads"
    second = replace(first, out=tmp_path / "second", init=path, few=0.0, through="local")
    later = deepbasis.load(train(second)).card.metrics["losses"][0]
    assert 0 < later < model.card.metrics["losses"][0]  # one loss in place of three


@pytest.mark.slow
def test_the_tiny_preset_completes_unseen_rooms_better_than_linear_interpolation(tmp_path):
    from deepbasis.evaluate import evaluate, open_methods
    from deepbasis.train.config import read_preset

    path = train(replace(read_preset("tiny"), out=tmp_path / "tiny", accelerator="cpu"))
    metrics = deepbasis.load(path).card.metrics
    assert metrics["losses"][-1] < 0.8 * metrics["losses"][0]
    frames = Source("rooms", count=12, size=(80, 112)).open("test")
    ours, linear = evaluate(open_methods([path], ["linear"]), frames, ["5%"])
    for name in ("mae", "rmse", "ause", "nll"):
        assert ours.metrics[name] < linear.metrics[name], name


def test_the_prior_is_learned_with_the_final_network(tmp_path):
    """The layer's prior is the mean and scatter of the fits that the saved network gives."""
    from deepbasis import fit
    from deepbasis.data.sources import hold_back
    from deepbasis.data.training import TrainingSet

    path = train(small(tmp_path, frames=10))
    model = deepbasis.load(path)
    frames, _ = hold_back(Source("rooms", count=10, size=(32, 48)).open("train"), 2)
    items = TrainingSet(frames, "5%", "400", epoch=1)
    network = model.networks[0]
    layer = network.last
    assert isinstance(layer, BasisFit)
    prior = layer.prior_mean.clone()
    layer.train()
    fits = []
    with torch.no_grad():
        for item in (items[i] for i in range(len(items))):
            pyramid, points = layer.read(network.bases(item.image[None]), item.sparse[None])
            phi = pyramid.at(points.row, points.column).double()
            fits.append(fit.ml(phi, points.z.double()).mean[0])
    torch.testing.assert_close(prior.double(), torch.stack(fits).mean(0), rtol=1e-3, atol=1e-4)


def test_resuming_after_a_kill_gives_the_same_bits(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    more = ["--epochs", "6", "--checkpoint-minutes", "0"]
    subprocess.run([*CLI, *more, "--out", str(whole)], check=True, capture_output=True)
    process = subprocess.Popen([*CLI, *more, "--out", str(cut)], stderr=subprocess.DEVNULL)
    checkpoint = cut / "checkpoint.safetensors"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.02 * (os.getpid() % 20))  # a step of its own in every run
    process.kill()
    process.wait()
    step = load_tensors(checkpoint)[1]["state"]["step"]
    assert 0 < step < 12, "killed too late to tell"
    run = subprocess.run([*CLI, *more, "--out", str(cut), "--resume"], capture_output=True)
    assert run.returncode == 0, run.stderr
    for name in ("model.safetensors", "checkpoint.safetensors"):
        one, other = load_file(whole / name), load_file(cut / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    assert not list(cut.glob(".*"))


@pytest.mark.parametrize("method", ["dropout", "snap", "bootstrap"])
def test_ensembles_resume_to_the_bit_too(method, tmp_path, monkeypatch):
    """Stopped at a step of its own, in the middle of an epoch of two steps of two batches."""
    from deepbasis.train import loop

    settings = {"method": method, "epochs": METHODS[method].cycles, "frames": 10, "accumulate": 2}
    train(small(tmp_path / "whole", **settings))
    real = loop.share_with_all
    calls = []

    last = 1 if method == "dropout" else 5

    def stop(job, loss, heard):
        calls.append(heard)
        return real(job, loss, signal.SIGTERM if len(calls) == last else 0)

    monkeypatch.setattr(loop, "share_with_all", stop)
    with pytest.raises(Stopped, match="go on with --resume"):
        train(small(tmp_path / "cut", **settings))
    monkeypatch.setattr(loop, "share_with_all", real)
    train(small(tmp_path / "cut", resume=True, **settings))
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_calibration_does_not_depend_on_the_errors_assumed_later(tmp_path):
    found = {}
    for errors in ("independent", "local"):
        path = train(small(tmp_path / errors, frames=10, errors=errors))
        model = deepbasis.load(path)
        assert model.architecture.errors == errors
        found[errors] = model.networks[0].last
    for name in ("calibration", "local", "prior_mean"):
        one, other = (getattr(layer, name) for layer in found.values())
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_mixed_precision_leaves_points_and_truth_exact(tmp_path, monkeypatch):
    from deepbasis.train import loop

    seen = []
    real = loop.Loss.forward

    def look(self, item):
        seen.append((item.depth.dtype, item.sparse.dtype))
        return real(self, item)

    monkeypatch.setattr(loop.Loss, "forward", look)
    train(small(tmp_path, mixed_precision=True))
    assert set(seen) == {(torch.float32, torch.float32)}


def test_without_held_back_frames_the_latest_snapshots_stay(tmp_path):
    path = train(small(tmp_path, method="snap", epochs=6, frames=4, held_back=0))
    kept = deepbasis.load(path).networks[-1].state_dict()
    last = load_tensors(tmp_path / "member-5.safetensors")[0]
    assert all(torch.equal(kept[name].float(), last[name].float()) for name in kept)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(number, tmp_path):
    process = subprocess.Popen(
        [*CLI, "--epochs", "500", "--workers", "1", "--out", str(tmp_path)],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not (tmp_path / "checkpoint.safetensors").exists() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, number)  # as a terminal or a scheduler does: to all at once
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number, said
    assert "all is saved in" in said
    assert "go on with --resume" in said
    assert "Traceback" not in said


def test_two_processes_train_as_one_that_accumulates(tmp_path):
    """The steps' batches are the same, so parameters agree, and so does the gathered prior."""
    one, two = tmp_path / "one", tmp_path / "two"
    more = ["--epochs", "2", "--frames", "14"]
    single = [*CLI, *more, "--accumulate", "2", "--out", str(one)]
    subprocess.run(single, check=True, capture_output=True, env=ONE_THREAD)
    run = subprocess.run(
        [*CLI, *more, "--devices", "2", "--out", str(two)],
        capture_output=True,
        text=True,
        env=ONE_THREAD,
    )
    assert run.returncode == 0, run.stderr
    first, second = (load_file(folder / "model.safetensors") for folder in (one, two))
    parameters = [
        name for name in first
        if "running" not in name and "tracked" not in name and ".last." not in name
    ]  # fmt: skip
    assert len(parameters) > 100
    for name in parameters:
        torch.testing.assert_close(first[name], second[name], rtol=2e-3, atol=2e-4)
    assert json.loads((two / "run.json").read_text())["processes"] == 2


def test_the_prior_gathered_by_two_processes_is_that_of_one(tmp_path):
    """Over the same network and frames, of which one process has four and the other three."""
    start = train(small(tmp_path / "start"))
    found = []
    for devices in ("1", "2"):
        out = tmp_path / devices
        script = Path(__file__).parent.parent / "gather.py"
        run = subprocess.run(
            [sys.executable, script, start, devices, out],
            capture_output=True,
            text=True,
            env=ONE_THREAD,
        )
        assert run.returncode == 0, run.stderr
        found.append(load_file(out / "layer.safetensors"))
    assert found[0]["prior_mean"].abs().max() > 0.01
    for name in ("prior_mean", "prior_cov", "hyperprior"):
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    from deepbasis.train import loop

    steps = []
    original = loop.Loss.forward

    def spoil(self, item):
        steps.append(1)
        loss = original(self, item)
        return loss * torch.nan if len(steps) > 3 and self.training else loss

    monkeypatch.setattr(loop.Loss, "forward", spoil)
    message = r"the loss is nan .* at step 3 \(frames rooms-.*\); .* holds step 2; .* lower --lr"
    with pytest.raises(ValueError, match=message):
        train(small(tmp_path, epochs=4))
    tensors, header = load_tensors(tmp_path / "checkpoint.safetensors")
    assert header["state"]["step"] == 2
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())


def test_a_network_that_broke_is_told_with_step_and_frames(tmp_path, monkeypatch):
    from deepbasis.train import loop

    real = loop.make_network

    def broken(job, training):
        network = real(job, training)
        torch.nn.init.constant_(network.bases.decoder.bases[0].weight, torch.nan)
        return network

    monkeypatch.setattr(loop, "make_network", broken)
    message = r"holds NaN .* \(step 0, frames rooms-.*\); no checkpoint was written yet"
    with pytest.raises(ValueError, match=message):
        train(small(tmp_path))


def test_processes_that_torchrun_started_must_be_those_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(
        ValueError, match="torchrun started 3 processes, but --devices 1 x --nodes 1"
    ):
        train(small(tmp_path))


def test_starting_from_another_kind_of_network_is_refused(tmp_path):
    path = train(small(tmp_path / "rgb"))
    with pytest.raises(ValueError, match=r"--init .* holds another network: Architecture"):
        train(small(tmp_path / "rgbd", input="rgbd", init=path))


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    from deepbasis.train import checkpoint

    original, calls = checkpoint.save_tensors, []

    def fail(path, tensors, header):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        original(path, tensors, header)

    monkeypatch.setattr(checkpoint, "save_tensors", fail)
    with pytest.raises(OSError, match=r"cannot write the checkpoint .* at step 4 .*still there.*"):
        train(small(tmp_path, epochs=4))
    assert load_tensors(tmp_path / "checkpoint.safetensors")[1]["state"]["step"] == 2


def test_folders_are_not_mixed_up(tmp_path):
    train(small(tmp_path))
    with pytest.raises(ValueError, match="holds a training already; go on with --resume"):
        train(small(tmp_path))
    with pytest.raises(ValueError, match=r"other settings .fit_points was '400'"):
        train(small(tmp_path, resume=True, fit_points="500"))
    with pytest.raises(ValueError, match=r"other settings .*frames_in_a_step was 2"):
        train(small(tmp_path, resume=True, accumulate=2))
    with pytest.raises(ValueError, match="holds no checkpoint to go on from"):
        train(small(tmp_path / "new", resume=True))
    with pytest.raises(ValueError, match="frames are fewer than a step takes: --batch 9"):
        train(small(tmp_path / "new", batch=9))
