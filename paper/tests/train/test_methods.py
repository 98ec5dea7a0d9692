# SPDX-License-Identifier: Apache-2.0
"""Whole trainings of every method, small enough for seconds."""

import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file

from deepbasis.data.sources import Source, Subset
from deepbasis.data.tensors import load_tensors
from deepbasis.evaluation import evaluate, open_methods
from deepbasis.train import loop
from deepbasis.train.record import Record
from deepbasis_paper.config import PRESETS
from deepbasis_paper.methods import METHODS
from deepbasis_paper.model import Ensemble, load
from deepbasis_paper.train.finish import best_snapshots
from deepbasis_paper.train.job import PaperJob
from deepbasis_paper.train.run import train
from trainings import WORDS
from waiting import wait_for

SLOW = pytest.mark.slow
# All methods on the basis network. How ensembles are trained is tested with a smaller one.
EVERY = [
    pytest.param(method, given, marks=SLOW)
    for method in METHODS
    for given in ("rgb", "rgbd")
    if METHODS[method].network == "basis" and (given == "rgb" or METHODS[method].passes == 1)
]


@pytest.mark.parametrize(("method", "given"), EVERY)
def test_every_method_trains_and_predicts(method, given, small, tmp_path):
    settings = {"method": method, "input": given, "recipe": "corrected"}
    path = train(small(tmp_path, epochs=METHODS[method].cycles, **settings))
    model = Ensemble.load(path)
    assert len(model.networks) == METHODS[method].copies
    sample = Source("rooms", count=1, size=(32, 48)).open("test")[0]
    for points in (0, 1, 100):
        sparse = torch.zeros_like(sample.depth)
        sparse.view(-1)[:points] = 2.0
        mean, model_var, noise_var = model(sample.image[None], sparse[None])
        assert mean.shape == (1, 1, 32, 48)
        assert mean.isfinite().all()
        assert (model_var + noise_var > 0).all()
    assert (model_var > 0).any() == METHODS[method].epistemic
    assert (noise_var > 0).any() == METHODS[method].aleatoric
    assert torch.equal(model(sample.image[None], sparse[None]).mean, mean)
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["finished"]
    assert run["command"].startswith("deepbasis-paper")
    assert run["settings"]["method"] == method
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert set(model.card.metrics["validation"]) >= {"5%", "1%", "50", "0"}


@pytest.fixture
def on_ncnn(monkeypatch):
    """Ensembles of a network of 468 parameters instead of 5 million."""
    for name in ("snap", "bootstrap"):
        monkeypatch.setitem(METHODS, name, replace(METHODS[name], network="ncnn"))
    monkeypatch.setattr(Record, "draw", lambda *_: None)


def stop_at(step, monkeypatch):
    """As if a signal came in this step, counted over all trainings."""
    real, calls = loop.share_with_all, []

    def stop(job, loss, heard):
        calls.append(heard)
        return real(job, loss, signal.SIGTERM if len(calls) == step else 0)

    monkeypatch.setattr(loop, "share_with_all", stop)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["snap", pytest.param("bootstrap", marks=SLOW)])
def test_ensembles_resume_to_the_bit(method, on_ncnn, small, tmp_path, monkeypatch):
    check_resume(method, small, tmp_path, monkeypatch)


@SLOW
@pytest.mark.parametrize("method", ["dropout", "snap", "bootstrap"])
def test_ensembles_of_the_papers_network_resume_to_the_bit(method, small, tmp_path, monkeypatch):
    check_resume(method, small, tmp_path, monkeypatch, frames=10, accumulate=2)


def check_resume(method, small, tmp_path, monkeypatch, **more):
    """Stopped in the middle of an epoch of two steps, after the first snapshot."""
    settings = {"method": method, "epochs": METHODS[method].cycles, **more}
    train(small(tmp_path / "whole", **settings))
    with monkeypatch.context() as patch:
        stop_at(1 if method == "dropout" else 5, patch)
        with pytest.raises(loop.Stopped, match="continue with --resume"):
            train(small(tmp_path / "cut", **settings))
    train(small(tmp_path / "cut", resume=True, **settings))
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "cut"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# `deepbasis-paper` that stops for ever in its 16th write to disk, before the file gets its name:
# the checkpoint of step 10, after the fifth snapshot. The network is that of `on_ncnn`.
HANGS = """
import os, time
from dataclasses import replace
from deepbasis_paper.cli import main
from deepbasis_paper.methods import METHODS
METHODS["snap"] = replace(METHODS["snap"], network="ncnn")
real, calls = os.fsync, []
def fsync(file):
    calls.append(file)
    if len(calls) == 16:
        print("hangs", flush=True)
        time.sleep(3600)
    real(file)
os.fsync = fsync
main()
"""


@SLOW
def test_resuming_after_a_kill_gives_the_same_bits_across_snapshots(on_ncnn, small, tmp_path):
    whole, cut, log = tmp_path / "whole", tmp_path / "cut", tmp_path / "log"
    settings = {"method": "snap", "epochs": 6, "checkpoint_minutes": 0.0}
    more = ["--method", "snap", "--epochs", "6", "--checkpoint-minutes", "0", "--input", "rgb"]
    words = ["train", "custom", *WORDS, *more, "--out", str(cut)]
    with (
        log.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-c", HANGS, *words], stdout=out, stderr=out, text=True
        ) as process,
    ):
        try:
            train(small(whole, **settings))
            wait_for(lambda: "hangs" in log.read_text(), process)
        finally:
            process.kill()
    assert load_tensors(cut / "checkpoint.safetensors")[1]["state"]["step"] == 9
    assert (cut / "snapshot-4.safetensors").exists()
    assert not (cut / "snapshot-5.safetensors").exists()
    train(small(cut, resume=True, **settings))
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_best_snapshots_are_kept_and_of_equal_ones_the_latest(small, tmp_path, monkeypatch):
    losses = [0.3, 0.1, 0.2, 0.9, 0.1, 0.2]
    files = {
        f"snapshot-{i}.safetensors": ({"i": torch.tensor(i)}, {"loss": losses[i]}) for i in range(6)
    }
    monkeypatch.setattr("deepbasis_paper.train.finish.load_tensors", lambda path: files[path.name])
    frames = Source("rooms", count=1).open("train")
    config, none = small(tmp_path, method="snap"), Subset(frames, [])
    job = PaperJob(Fabric(accelerator="cpu", devices=1), config, frames, none, None, {}, 1)
    kept, found = best_snapshots(job)
    assert [int(one["i"]) for one in kept] == [0, 1, 2, 4, 5]
    assert found == losses
    for i in range(6):
        files[f"snapshot-{i}.safetensors"][1]["loss"] = float("inf")
    assert [int(one["i"]) for one in best_snapshots(job)[0]] == [1, 2, 3, 4, 5]


def test_bootstrap_trains_in_folders_of_its_own(on_ncnn, small, tmp_path):
    path = train(small(tmp_path, method="bootstrap", frames=4))
    model = Ensemble.load(path)
    for number, member in enumerate(model.networks):
        checkpoint = load_tensors(tmp_path / f"training-{number}" / "checkpoint.safetensors")
        assert checkpoint[1]["settings"]["training"] == number
        for name, tensor in member.state_dict().items():
            if not name.startswith("spread."):  # learned after the trainings
                assert torch.equal(tensor, checkpoint[0][f"network.{name}"])
    weights = [member.net.enter.raw for member in model.networks]
    assert not torch.equal(weights[0], weights[1])
    assert len(model.card.metrics["losses"]) == 5


@SLOW
def test_the_loss_falls(small, tmp_path):
    path = train(
        small(tmp_path, input="rgbd", frames=3, val_frames=1, epochs=25, lr=2e-3, schedule="cosine")
    )
    metrics = Ensemble.load(path).card.metrics
    assert max(metrics["losses"][-3:]) < 0.7 * metrics["losses"][0]


@SLOW
def test_the_tiny_preset_completes_unseen_rooms_better_than_linear_interpolation(tmp_path):
    path = train(replace(PRESETS["tiny"][1], out=tmp_path / "tiny", accelerator="cpu"))
    metrics = Ensemble.load(path).card.metrics
    assert metrics["losses"][-1] < 0.8 * metrics["losses"][0]
    frames = Source("rooms", count=12, size=(80, 112)).open("test")
    ours, linear = evaluate(open_methods([path], ["linear"], load=load), frames, ["5%"])
    for name in ("mae", "rmse", "ause", "nll"):
        assert ours.metrics[name] < linear.metrics[name], name


@SLOW
def test_a_training_starts_from_a_model_with_the_same_network_only(small, tmp_path):
    path = train(small(tmp_path / "rgb"))
    with pytest.raises(
        ValueError, match=r"--init-from .* holds another network: PaperArchitecture"
    ):
        train(small(tmp_path / "rgbd", input="rgbd", init_from=path))
    later = small(tmp_path / "later", few_points_weight=0.3, jitter=0.2, init_from=path)
    start, end = (Ensemble.load(model) for model in (path, train(later)))
    first, second = (
        load_file(tmp_path / run / "checkpoint.safetensors") for run in ("rgb", "later")
    )
    name = "network.bases.encoder.features.0.0.weight"
    assert 0 < float((first[name] - second[name]).abs().max()) < 0.1
    assert end.card.metrics["losses"][0] > start.card.metrics["losses"][0]  # three losses
