# SPDX-License-Identifier: Apache-2.0
"""Models brought to other frames without training."""

import math
import sys

import pytest
import torch

import deepbasis
from deepbasis import fit, latent
from deepbasis.calibrate import adapt, learn
from deepbasis.calibrate.measure import measure
from deepbasis.cli import main
from deepbasis.data.sources import CachedFrames, Source, Subset
from deepbasis.data.with_points import WithPoints
from deepbasis.patterns import Uniform
from deepbasis.points import Points, distance_to_points
from models import make_model

fabric_module = pytest.importorskip("lightning_fabric")
FABRIC = fabric_module.Fabric(accelerator="cpu", devices=1)
SIZE = (32, 48)


@pytest.fixture(scope="module")
def frames():
    return CachedFrames(Source("rooms", count=14, size=SIZE).open("train"))


class Sparse:
    """Frames of which only a few depths are known."""

    def __init__(self, frames, count):
        self.frames = WithPoints(frames, Uniform(count))

    def __len__(self):
        return len(self.frames)

    def name(self, index):
        return self.frames.name(index)

    def __getitem__(self, index):
        sample = self.frames[index]
        return sample._replace(depth=sample.sparse, sparse=torch.zeros_like(sample.sparse))


def far_off(**settings):
    """An untrained model that takes rooms for places of 12 m, and is far too sure of it."""
    model = make_model(**settings)
    layer = model.network.fit
    mean = torch.zeros(63)
    mean[0] = math.log(12)
    beta = fit.Gamma(20, 20 * 0.02**2)
    layer.set_prior(fit.Prior(mean, 0.01 * torch.eye(63)), fit.Hyperprior(beta=beta))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("errors", ["independent", "correlated"])
def test_dense_depth_of_ten_frames_teaches_place_and_spread(frames, errors):
    model = far_off(errors=errors)
    weights = {k: v.clone() for k, v in model.state_dict().items() if ".bases." in k}
    held = Subset(frames, range(10, 14))
    patterns = ["0", "5", "50"]
    before = measure(FABRIC, model.network, held, patterns, unmeasured_only=True)
    found = adapt.adapt(model.network, Subset(frames, range(10)), FABRIC, "400")
    after = measure(FABRIC, model.network, held, patterns, unmeasured_only=True)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in weights.items())
    assert model.architecture.errors == model.network.fit.errors == errors
    assert after["0"]["mae"] < 0.5 * before["0"]["mae"]
    assert before["0"]["nees"] > 8
    for points, row in after.items():
        assert 1 / 4 < row["nees"] < 4, points
        assert row["coverage_90"] > 0.7, points
    assert found["strength"]["mean"] < 25  # the old mean is no use


@pytest.mark.slow
def test_frames_with_fewer_points_than_bases_teach_too(frames):
    model = far_off()
    held = Subset(frames, range(10, 14))
    before = measure(FABRIC, model.network, held, ["0"])["0"]["mae"]
    adapt.adapt(model.network, Sparse(Subset(frames, range(10)), 30), FABRIC, "400")
    assert measure(FABRIC, model.network, held, ["0"])["0"]["mae"] < 0.6 * before


def test_each_half_is_judged_with_the_prior_of_the_other(frames, monkeypatch):
    model = far_off()
    layer = model.network.fit
    eye = torch.eye(63)
    halves = tuple(
        adapt.Learned(fit.Prior(torch.full((63,), float(number)), eye), fit.Hyperprior())
        for number in (1, 2)
    )
    seen = []

    def sample(draw, network, part, errors):
        names = [part.name(i) for i in range(len(part))]
        seen.append((float(layer.prior.mean[0]), names))
        return [learn.Sampled(torch.zeros(n, 3), torch.full((1,), len(seen))) for n in (1, 0)]

    monkeypatch.setattr(learn, "sample_pixels", sample)
    draw = learn.Draw(FABRIC, ["1", "2"])
    groups = adapt._sample_crosswise(draw, model.network, frames, halves, "independent")
    names = [frames.name(i) for i in range(14)]
    assert seen == [(2.0, names[:7]), (1.0, names[7:])]
    assert [len(group.rows) for group in groups] == [2, 0]
    assert [group.points.tolist() for group in groups] == [[1, 2], [1, 2]]


def test_points_are_not_judged_by_themselves(frames):
    """All 30 known depths are the points: nothing is left, and no perfect score either."""
    sparse = Sparse(frames, 30)
    network = make_model().network
    found = measure(FABRIC, network, sparse, ["10", "30"], unmeasured_only=True)
    assert set(found) == {"10"}
    draw = learn.Draw(FABRIC, ["10", "30"], unmeasured_only=True)
    ten, thirty = learn.sample_pixels(draw, network, sparse, "independent")
    assert (len(ten.rows), len(thirty.rows)) == (14 * 20, 0)
    assert ten.points.tolist() == [10] * 14


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["deepbasis", "adapt", *map(str, words)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.slow
def test_the_command_writes_a_model_and_says_what_it_brings(monkeypatch, capsys, tmp_path):
    file, out = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    far_off().save(file)
    words = ["--data", "rooms", "--frames", "12", "--size", *SIZE, "--points", "400"]
    assert run(monkeypatch, file, *words, "--out", out) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("learned from     9 frames")
    assert said[1] == "on 3 validation frames, before and after:"
    rows = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in said[4:8]}
    assert list(rows) == ["0", "5", "50", "500"]
    model = deepbasis.load(out)
    adapted = model.card.metrics["adapted"]
    assert adapted["after"]["0"]["mae"] == pytest.approx(rows["0"][1], abs=1e-3)
    assert adapted["before"]["0"]["mae"] == pytest.approx(rows["0"][0], abs=1e-3)
    assert adapted["frames"] == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, file.name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "rooms", "--frames", "9"], "are 7 frames to learn from, besides 2 for valid"),
        ([], "--data folder needs its folder: pass --root"),
        (["--data", "rooms", "--out", "nowhere/x.safetensors"], "no folder nowhere"),
        (["--data", "rooms", "--out", "x.json"], "--out x.json does not end in .safetensors"),
        (
            ["--data", "rooms", "--frames", "8", "--size", "32", "48", "--val-frames", "0",
             "--points", "sensor"],
            "no frame has depth at the points that the model was trained with, 'sensor'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted_is_told_in_one_sentence(
    monkeypatch, capsys, tmp_path, words, message
):
    monkeypatch.chdir(tmp_path)
    make_model().save(tmp_path / "old.safetensors")
    assert run(monkeypatch, tmp_path / "old.safetensors", *words) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["old.safetensors"]


def test_unmeasured_pixels_give_a_conformal_table(frames):
    """Intervals of the table hold on the frames that it was learned from, frame by frame alike."""
    network = far_off().network
    table = adapt.learn_conformal(network, frames, FABRIC, ["20", "200"])
    assert table.groups == len(frames)
    assert table.narrows
    held = WithPoints(frames, Uniform(200))
    inside = []
    for i in range(len(frames)):
        image, depth, sparse = (part[None] for part in held[i][1:4])
        answer = network.predictor(image)(Points.from_maps(sparse))
        row, column = sparse[0, 0].nonzero(as_tuple=True)
        rows = torch.stack([column, row], 1).double().numpy()
        std = answer.distribution.half_width(answer.prediction.var, latent.ONE_SIGMA)[0, 0].numpy()
        half = table.half_width(std, std, distance_to_points(rows, std.shape), 0.9)
        error = (latent.to_latent(depth) - answer.prediction.mean)[0, 0].abs().numpy()
        known = (latent.is_valid(depth) & ~latent.is_valid(sparse))[0, 0].numpy()
        inside.append((error <= half)[known].mean())
    assert sum(inside) / len(inside) > 0.85
    with pytest.raises(ValueError, match="8 frames are too few for conformal intervals"):
        adapt.learn_conformal(network, Subset(frames, range(8)), FABRIC, ["20"])
