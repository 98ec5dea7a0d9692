# SPDX-License-Identifier: Apache-2.0
"""Whole trainings, small enough for seconds."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import deepbasis
from deepbasis.data.sources import Source
from deepbasis.data.tensors import load_tensors, save_tensors
from deepbasis.model import Completer
from deepbasis.points import Points
from deepbasis.train.config import TrainConfig
from deepbasis.train.loop import Stopped
from deepbasis.train.run import train
from trainings import WORDS, small
from waiting import LIMIT, wait_for

# Sums over threads round otherwise than sums over processes, and Adam makes much of little.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
CLI = [sys.executable, "-m", "deepbasis.cli", "train", *WORDS]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a training that is over, of ten frames."""
    return train(small(tmp_path_factory.mktemp("finished"), frames=10, eval_frames=2)).parent


def test_a_model_is_trained_and_predicts(finished):
    model = deepbasis.load(finished)
    sample = Source("rooms", count=1, size=(32, 48)).open("test")[0]
    for points in (0, 1, 100):
        sparse = torch.zeros_like(sample.depth)
        sparse.view(-1)[:points] = 2.0
        mean, model_var, noise_var = model(sample.image[None], sparse[None])
        assert mean.shape == (1, 1, 32, 48)
        assert mean.isfinite().all()
        assert (model_var > 0).all()
        assert (noise_var > 0).all()
    assert torch.equal(model(sample.image[None], sparse[None]).mean, mean)
    assert model.network.usual_size.size.tolist() == [32, 48]
    run = json.loads((finished / "run.json").read_text())
    assert run["finished"]
    assert run["settings"]["fit_points"] == "400"
    assert [len(run["metrics"][name]) for name in ("losses", "val_losses", "evaluated")] == [1] * 3
    assert list((finished / "logs").iterdir())
    assert (finished / "loss.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_loss_falls(tmp_path):
    changes = {"frames": 3, "val_frames": 1, "epochs": 25, "lr": 2e-3, "kernel_weight": 0.0}
    path = train(small(tmp_path, **changes))
    metrics = deepbasis.load(path).card.metrics
    assert max(metrics["losses"][-3:]) < 0.7 * metrics["losses"][0]


@pytest.mark.slow
def test_a_model_for_few_points_with_frames_mixed_in_is_trained_on(tmp_path):
    first = small(
        tmp_path / "first", mix_in="roads", mix_in_frames=4, few_points_weight=0.3, jitter=0.2,
        fit_points="300",
    )  # fmt: skip
    path = train(first)
    model = deepbasis.load(path)
    assert json.loads((path.parent / "run.json").read_text())["settings"]["mix_in"] == "roads"
    second = replace(first, out=tmp_path / "second", init_from=path.parent, few_points_weight=0.0)
    later = deepbasis.load(train(second)).card.metrics["losses"][0]
    assert 0 < later < model.card.metrics["losses"][0]  # one loss in place of three


@pytest.mark.slow
def test_two_minutes_of_training_beat_linear_interpolation_in_unseen_rooms(tmp_path):
    from deepbasis.evaluation import evaluate, open_methods

    config = TrainConfig(
        out=tmp_path / "tiny", data="rooms", frames=144, size=(80, 112), cache=True, val_frames=16,
        fit_points="1500", few_points_weight=0.0, jitter=0.02, epochs=6, lr=1e-3,
        accelerator="cpu",
    )  # fmt: skip
    path = train(config)
    metrics = deepbasis.load(path).card.metrics
    assert metrics["losses"][-1] < 0.8 * metrics["losses"][0]
    frames = Source("rooms", count=12, size=(80, 112)).open("test")
    ours, linear = evaluate(open_methods([path], ["linear"]), frames, ["5%"])
    # Not RMSE: a few edges decide it, and so short a training is level with interpolation there.
    for name in ("mae", "ause", "nll"):
        assert ours.metrics[name] < linear.metrics[name], name


def test_the_prior_is_learned_with_the_final_network(finished):
    """The layer's prior is the mean and scatter of the fits that the saved network gives."""
    from deepbasis import fit
    from deepbasis.data.sources import split_validation
    from deepbasis.data.training import TrainingSet

    model = deepbasis.load(finished / "model.safetensors")
    frames, _ = split_validation(Source("rooms", count=10, size=(32, 48)).open("train"), 2)
    items = TrainingSet(frames, "400", epoch=1)
    fits = []
    with torch.no_grad():
        for item in (items[i] for i in range(len(items))):
            points = Points.from_maps(item.sparse[None])
            seen = model.network.observe(item.image[None], points)
            fits.append(fit.ml(seen.phi.double(), seen.z.double()).mean[0])
    prior = model.network.fit.prior.mean.double()
    torch.testing.assert_close(prior, torch.stack(fits).mean(0), rtol=1e-3, atol=1e-4)


# `deepbasis` that stops for ever in its fifth write to disk, before the file gets its name.
HANGS = """
import os, time
from deepbasis.cli import main
real, calls = os.fsync, []
def fsync(file):
    calls.append(file)
    if len(calls) == 5:
        print("hangs", flush=True)
        time.sleep(3600)
    real(file)
os.fsync = fsync
main()
"""


@pytest.mark.slow
def test_resuming_after_a_kill_gives_the_same_bits(tmp_path):
    """The kill comes while a checkpoint is half-written, in the middle of an epoch."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = {"epochs": 3, "checkpoint_minutes": 0.0}
    more = ["--epochs", "3", "--checkpoint-minutes", "0", "--out", str(cut)]
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-c", HANGS, "train", *WORDS, *more], stdout=out, stderr=out, text=True
        ) as process,
    ):
        try:
            train(small(whole, **settings))
            wait_for(lambda: "hangs" in log.read_text(), process)
        finally:
            process.kill()
    assert load_tensors(cut / "checkpoint.safetensors")[1]["state"]["step"] == 3
    assert list(cut.glob(".checkpoint*.part"))
    train(small(cut, resume=True, **settings))
    for name in ("model.safetensors", "checkpoint.safetensors"):
        one, other = load_file(whole / name), load_file(cut / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    card, same = (load_tensors(folder / "model.safetensors")[1] for folder in (whole, cut))
    assert same["training"].pop("out") != card["training"].pop("out")
    assert same == card
    assert not list(cut.glob(".*"))


@pytest.mark.slow
def test_a_training_with_accumulated_batches_resumes_to_the_bit(tmp_path, monkeypatch):
    """Stopped in the middle of an epoch of two steps of two batches."""
    from deepbasis.train import loop

    settings = {"epochs": 2, "frames": 10, "accumulate": 2, "few_points_weight": 0.3}
    train(small(tmp_path / "whole", **settings))
    real, calls = loop.share_with_all, []

    def stop(job, loss, heard):
        calls.append(heard)
        return real(job, loss, signal.SIGTERM if len(calls) == 3 else 0)

    monkeypatch.setattr(loop, "share_with_all", stop)
    with pytest.raises(Stopped, match="continue with --resume"):
        train(small(tmp_path / "cut", **settings))
    monkeypatch.setattr(loop, "share_with_all", real)
    train(small(tmp_path / "cut", resume=True, **settings))
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_calibration_does_not_depend_on_the_default_error_model(finished, tmp_path):
    correlated = deepbasis.load(finished / "model.safetensors")
    independent = deepbasis.load(train(small(tmp_path, frames=10, errors="independent")))
    assert correlated.architecture.errors == "correlated"
    assert independent.architecture.errors == "independent"
    one, other = (model.network.fit.state_dict() for model in (correlated, independent))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_mixed_precision_leaves_points_and_truth_exact(tmp_path, monkeypatch):
    from deepbasis.train import loop

    seen = []
    real = loop.LossModule.forward

    def look(self, item):
        seen.append((item.depth.dtype, item.sparse.dtype))
        return real(self, item)

    monkeypatch.setattr(loop.LossModule, "forward", look)
    train(small(tmp_path, mixed_precision=True))
    assert set(seen) == {(torch.float32, torch.float32)}


@pytest.mark.slow
def test_without_validation_frames_training_frames_calibrate(tmp_path):
    model = deepbasis.load(train(small(tmp_path, frames=4, val_frames=0)))
    assert model.card.metrics["val_losses"] == []
    assert model.card.metrics["validation"]["50"]["mae"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_resume(number, tmp_path):
    process = subprocess.Popen(
        [*CLI, "--epochs", "500", "--workers", "1", "--out", str(tmp_path)],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for((tmp_path / "checkpoint.safetensors").exists, process)
        os.killpg(process.pid, number)  # as a terminal or a scheduler does: to all at once
        said = process.communicate(timeout=LIMIT)[1]
    finally:
        process.kill()
    assert process.returncode == 128 + number, said
    assert "the state is saved in" in said
    assert "continue with --resume" in said
    assert "Traceback" not in said


TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
    "-m", "deepbasis.cli", "train", *WORDS,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "more"),
    [(CLI, ["--embedding", "0"]), (TORCHRUN, ["--kernel-weight", "0"])],
    ids=["devices", "torchrun"],
)
def test_two_processes_train_as_one_that_accumulates(tmp_path, command, more):
    """The steps' batches are the same, so parameters agree, and so does the gathered prior.

    Without the kernel's loss, whose pixels are drawn by each process.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    more = ["--frames", "10", *more]
    single = [*CLI, *more, "--accumulate", "2", "--out", str(one)]
    subprocess.run(single, check=True, capture_output=True, env=ONE_THREAD)
    run = subprocess.run(
        [*command, *more, "--devices", "2", "--out", str(two)],
        capture_output=True,
        text=True,
        env=ONE_THREAD,
    )
    assert run.returncode == 0, run.stderr
    first, second = (load_file(folder / "model.safetensors") for folder in (one, two))
    parameters = [
        name for name in first
        if "running" not in name and "tracked" not in name and ".fit." not in name
        and "familiarity" not in name
    ]  # fmt: skip
    assert len(parameters) > 100
    for name in parameters:
        torch.testing.assert_close(first[name], second[name], rtol=2e-3, atol=2e-4)
    assert json.loads((two / "run.json").read_text())["processes"] == 2
    with pytest.raises(ValueError, match="was made by 2 processes, and now there are 1; resume"):
        train(small(two, frames=10, resume=True))


@pytest.mark.slow
def test_the_prior_collected_by_two_processes_is_that_of_one(finished, tmp_path):
    """Over the same network and frames, of which one process has four and the other three."""
    start = finished / "model.safetensors"
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
    assert found[0]["prior.mean"].abs().max() > 0.01
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    from deepbasis.train import loop

    steps = []
    original = loop.LossModule.forward

    def spoil(self, item):
        steps.append(1)
        loss = original(self, item)
        return loss * torch.nan if len(steps) > 3 and self.training else loss

    monkeypatch.setattr(loop.LossModule, "forward", spoil)
    message = r"the loss is nan .* at step 3 \(frames rooms-.*\); .* holds step 2; .* lower --lr"
    with pytest.raises(ValueError, match=message):
        train(small(tmp_path, epochs=4))
    tensors, header = load_tensors(tmp_path / "checkpoint.safetensors")
    assert header["state"]["step"] == 2
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())


def test_a_network_that_broke_is_told_with_step_and_frames(tmp_path, monkeypatch):
    from deepbasis.train.job import Job

    real = Job.new_network

    def broken(job):
        network = real(job)
        torch.nn.init.constant_(network.bases.decoder.bases[0].weight, torch.nan)
        return network

    monkeypatch.setattr(Job, "new_network", broken)
    message = r"holds NaN .* \(step 0, frames rooms-.*\); no checkpoint was written yet"
    with pytest.raises(ValueError, match=message):
        train(small(tmp_path))


def test_processes_that_torchrun_started_must_be_those_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(
        ValueError, match="torchrun started 3 processes, but --devices 1 x --nodes 1"
    ):
        train(small(tmp_path))


def test_a_checkpoint_of_another_number_of_processes_is_refused(finished, tmp_path):
    tensors, header = load_tensors(finished / "checkpoint.safetensors")
    assert header["settings"]["processes"] == 1
    header["settings"]["processes"] = 4
    save_tensors(tmp_path / "checkpoint.safetensors", tensors, header)
    message = r"checkpoint.safetensors was made by 4 processes, and now there are 1; resume with"
    with pytest.raises(ValueError, match=message):
        train(small(tmp_path, frames=10, resume=True))


def test_an_embedding_that_no_loss_reaches_is_not_trained(tmp_path):
    """Otherwise several processes would wait for its gradient."""
    from deepbasis.train.job import make_job

    without = make_job(small(tmp_path / "a", kernel_weight=0.0)).new_network()
    assert not any(p.requires_grad for p in without.bases.head.parameters())
    assert all(p.requires_grad for p in without.bases.decoder.parameters())
    usual = make_job(small(tmp_path / "b")).new_network()
    assert all(p.requires_grad for p in usual.parameters())


def test_starting_from_another_kind_of_network_is_refused(finished, tmp_path):
    path = finished / "model.safetensors"
    with pytest.raises(ValueError, match=r"--init-from .* holds another network: Architecture"):
        train(small(tmp_path / "second", encoder="resnet34", init_from=path))


def test_a_model_without_convolutions_in_its_head_is_trained_on_with_them(finished, tmp_path):
    from deepbasis.train.job import make_job

    plain = make_job(small(tmp_path / "a", head_width=0)).new_network()
    model = Completer(plain.architecture)
    model.network.load_state_dict(plain.state_dict())
    model.save(tmp_path / "plain.safetensors")
    start = {"init_from": tmp_path / "plain.safetensors"}
    wide = make_job(small(tmp_path / "b", **start)).new_network()
    image = torch.randint(256, (1, 3, 32, 48), dtype=torch.uint8)
    for one, other in zip(wide.bases(image)[1:3], plain.bases(image)[1:3], strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="choose the same encoder, decoder, embedding and head"):
        train(small(tmp_path / "c", head_width=0, init_from=finished))


def test_bases_stay_as_they_are_if_the_kernel_alone_is_trained(finished, tmp_path):
    model = deepbasis.load(train(small(tmp_path, kernel_only=True, init_from=finished)))
    before = deepbasis.load(finished).network.bases.state_dict()
    for name, value in model.network.bases.state_dict().items():
        assert torch.equal(value, before[name]) == (not name.startswith("head.")), name


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    from deepbasis.train import checkpoint

    original, calls = checkpoint.save_tensors, []

    def fail(path, tensors, header):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        original(path, tensors, header)

    monkeypatch.setattr(checkpoint, "save_tensors", fail)
    with pytest.raises(OSError, match=r"cannot write the checkpoint .* at step 4 .*intact.*"):
        train(small(tmp_path, epochs=4))
    assert load_tensors(tmp_path / "checkpoint.safetensors")[1]["state"]["step"] == 2


def test_folders_are_not_mixed_up(finished, tmp_path):
    with pytest.raises(ValueError, match="holds a training already; continue it with --resume"):
        train(small(finished))
    with pytest.raises(ValueError, match=r"other settings .*fit_points was '400'"):
        train(small(finished, frames=10, resume=True, fit_points="500"))
    with pytest.raises(ValueError, match=r"other settings .*frames_in_a_step was 2"):
        train(small(finished, frames=10, resume=True, accumulate=2))
    with pytest.raises(ValueError, match="holds no checkpoint to resume from"):
        train(small(tmp_path / "new", resume=True))
    with pytest.raises(ValueError, match="frames are fewer than a step takes: --batch 9"):
        train(small(tmp_path / "new", batch=9))
