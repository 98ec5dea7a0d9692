# SPDX-License-Identifier: Apache-2.0
"""Networks of other papers, trained on the same data by the same loop."""

import json
import sys

import pytest
import torch

from deepbasis.data.sources import Source
from deepbasis.evaluation import evaluate, open_methods
from deepbasis_paper import cli
from deepbasis_paper.model import Ensemble, load
from deepbasis_paper.train.run import train
from trainings import WORDS

METHODS = ("enet", "enet-bdbf", "ncnn")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_they_train_and_are_scored_as_the_others_are(method, tmp_path, monkeypatch):
    path = tmp_path / method / "model.safetensors"
    words = ["--method", method, "--width", "4", "--frames", "8", "--epochs", "2"]
    words += ["--eval-frames", "2", "--out", str(path.parent)]
    monkeypatch.setattr(sys, "argv", ["deepbasis-paper", "train", "custom", *WORDS, *words])
    cli.main()
    model = Ensemble.load(path)
    assert model.architecture.errors == "independent"
    assert model.architecture.width == 4
    epochs = json.loads((path.parent / "run.json").read_text())["metrics"]["evaluated"]
    assert len(epochs) == 2
    assert all(0 < rmse < 10 for epoch in epochs for rmse in epoch)
    frames = Source("rooms", count=2, size=(32, 48)).open("test")
    for score in evaluate(open_methods([path], [], load=load), frames, ["400", "0"]):
        assert all(torch.tensor(list(score.metrics.values())).isfinite())
    at_training = model.card.metrics["validation"]["400"]
    assert 0.3 < at_training["nees"] < 4
    assert 0.6 < at_training["coverage_90"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_their_losses_fall(method, small, tmp_path):
    more = {"frames": 5, "val_frames": 1, "epochs": 20, "lr": 5e-3, "schedule": "cosine"}
    path = train(small(tmp_path, method=method, width=8, eval_frames=2, **more))
    seen = [rmse for rmse, _ in Ensemble.load(path).card.metrics["evaluated"]]
    assert min(seen[-3:]) < (1.0 if method == "ncnn" else 0.7) * seen[0]
