# SPDX-License-Identifier: Apache-2.0
"""Networks of other papers, trained on the same data by the same loop."""

import json
import sys
from pathlib import Path

import pytest
import torch

import deepbasis
from deepbasis import cli
from deepbasis.data.sources import Source
from deepbasis.evaluate import evaluate, open_methods
from deepbasis.train.config import TrainConfig
from deepbasis.train.run import train
from deepbasis.train.schedule import Schedule
from trainings import WORDS, small

METHODS = ("enet", "enet-bdbf", "ncnn")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_they_train_and_are_scored_as_the_others_are(method, tmp_path, monkeypatch):
    path = tmp_path / method / "model.safetensors"
    words = ["--method", method, "--width", "4", "--frames", "8", "--epochs", "2", "--watch", "2"]
    argv = ["deepbasis", "train", *WORDS, *words, "--out", str(path.parent)]
    monkeypatch.setattr(sys, "argv", argv)
    cli.main()
    model = deepbasis.load(path)
    assert model.architecture.errors == "independent"
    assert model.architecture.width == 4
    watched = json.loads((path.parent / "run.json").read_text())["metrics"]["watched"]
    assert len(watched) == 2
    assert all(0 < rmse < 10 for epoch in watched for rmse in epoch)
    frames = Source("rooms", count=2, size=(32, 48)).open("test")
    for score in evaluate(open_methods([path], []), frames, ["400", "0"]):
        assert all(torch.tensor(list(score.metrics.values())).isfinite())
    at_training = model.card.metrics["held_back"]["400"]
    assert 0.3 < at_training["nees"] < 4
    assert 0.6 < at_training["coverage_90"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_their_losses_fall(method, tmp_path):
    more = {"frames": 5, "held_back": 1, "epochs": 20, "lr": 5e-3, "schedule": "cosine"}
    path = train(small(tmp_path, method=method, width=8, watch=2, **more))
    seen = [rmse for rmse, _ in deepbasis.load(path).card.metrics["watched"]]
    assert min(seen[-3:]) < (1.0 if method == "ncnn" else 0.7) * seen[0]


def test_branches_weigh_less_as_in_the_paper_and_confidence_by_the_epoch():
    """Two of ten epochs at 0.2, two at 0.05, then 0; and 1, 1/2, 1/3, ..."""
    enet = Schedule(TrainConfig(method="enet"), steps_per_epoch=3)
    by_epoch = [[enet.side(3 * epoch + i) for i in range(3)] for epoch in range(10)]
    assert by_epoch == [[0.2] * 3] * 2 + [[0.05] * 3] * 2 + [[0] * 3] * 6
    ncnn = Schedule(TrainConfig(method="ncnn", epochs=4), steps_per_epoch=5)
    assert [ncnn.side(5 * epoch + 4) for epoch in range(4)] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert Schedule(TrainConfig(), steps_per_epoch=5).side(3) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"encoder_weights": Path("x.pth")},
            "--encoder-weights is for methods on the basis network; en",
        ),
        (
            {"init": Path("x")},
            "--init is for methods on the basis network; enet-bdbf starts afresh",
        ),
        ({"width": 1}, "--width 1 must be at least 2"),
        ({"watch": -1}, "--watch -1 not negative"),
        ({"width": 8, "input_points": "9"}, "cannot determine 9 weights in training; use at least"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(method="enet-bdbf", **settings).check()
