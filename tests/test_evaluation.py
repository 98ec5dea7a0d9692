# SPDX-License-Identifier: Apache-2.0
"""Tables of results: right numbers, and all that is needed to make them again."""

import csv
import json
import math
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from data import fakes
from deepbasis import latent, metrics
from deepbasis.cli import main
from deepbasis.data.sources import Source, fingerprint
from deepbasis.data.with_points import WithPoints
from deepbasis.evaluation import Estimate, baseline_method, evaluate, open_methods
from deepbasis.model import Completer
from deepbasis.nets import Architecture
from deepbasis.patterns import parse

ROOMS = Source("rooms", count=3, size=(32, 48))


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["deepbasis", "evaluate", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_truth_with_a_known_error_scores_that_error():
    """Depth 10 % too large everywhere: every metric is known without computing it."""
    frames = ROOMS.open("test")
    truth = {frames[i].image.sum().item(): frames[i].depth[0] for i in range(3)}

    def tenth_too_far(image, sparse):
        z = latent.to_latent(1.1 * truth[image.sum().item()].clamp(min=0.1))
        return Estimate(z, torch.full_like(z, 0.02))

    (score,) = evaluate({"mine": tenth_too_far}, frames, ["10"])
    assert score.metrics["rel"] == pytest.approx(0.1, rel=1e-4)
    assert score.metrics["delta1"] == 100
    assert score.metrics["nees"] == pytest.approx(math.log(1.1) ** 2 / 0.02, rel=1e-4)
    assert score.metrics["images"] == 3
    low, high = score.interval["rel"]
    assert low == pytest.approx(high, rel=1e-4)


def test_all_methods_see_the_same_points():
    seen = {"a": [], "b": []}

    def spy(name):
        def method(image, sparse):
            seen[name].append(sparse)
            return baseline_method("linear")(image, sparse)

        return method

    list(evaluate({name: spy(name) for name in seen}, ROOMS.open("test"), ["20"], seed=5))
    sample = WithPoints(ROOMS.open("test"), parse("20"), seed=5)[0]
    assert torch.equal(seen["a"][0], sample.sparse)
    assert all(torch.equal(a, b) for a, b in zip(seen["a"], seen["b"], strict=True))


def test_the_command_writes_what_it_shows(monkeypatch, capsys, tmp_path):
    model = Completer(Architecture())
    model.save(tmp_path / "mine.safetensors")
    words = ["--frames", "3", "--size", "32", "48", "--points", "5%", "0", "--workers", "0"]
    extra = ["--baselines", "linear", "--errors", "independent", "correlated"]
    out = tmp_path / "table"
    code = run(monkeypatch, str(tmp_path / "mine.safetensors"), *words, *extra, "--out", str(out))
    said = capsys.readouterr().out
    assert code == 0
    about = json.loads(out.with_suffix(".json").read_text())
    rows = {(row["method"], row["points"]): row["metrics"] for row in about["rows"]}
    assert set(rows) == {
        ("mine independent", "5%"), ("mine correlated", "5%"), ("linear", "5%"),
        ("mine independent", "0"), ("mine correlated", "0"),
    }  # fmt: skip
    assert about["split"] == fingerprint(ROOMS.open("test"))
    assert about["command"].startswith("deepbasis evaluate")
    assert f"{rows['linear', '5%']['mae']:.3f}" in said
    with out.with_suffix(".csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 5
    assert float(table[0]["mae"]) == rows["mine independent", "5%"]["mae"]
    assert float(table[0]["mae low"]) <= float(table[0]["mae"]) <= float(table[0]["mae high"])
    page = out.with_suffix(".md").read_text()
    assert page.count("\n| 5% |") == 3
    assert "(mm)" not in said + page  # that is KITTI's
    for title in ("MAE (m)", "delta1 (%)", "NLL (nats)", "90 % coverage"):
        assert title in said
        assert f"| {title} |" in page
    assert f"{rows['linear', '5%']['mae']:.3f}" in page
    maes = []
    for i in range(3):
        sample = WithPoints(ROOMS.open("test"), parse("5%"))[i]
        depth = latent.to_depth(baseline_method("linear")(sample.image, sample.sparse).mean)
        maes.append(float(metrics.mae(depth, sample.depth[0])))
    assert rows["linear", "5%"]["mae"] == pytest.approx(sum(maes) / 3, rel=1e-5)


def test_one_frame_has_a_score_but_no_interval(monkeypatch, capsys, tmp_path):
    words = ["--frames", "1", "--size", "32", "48", "--points", "50", "--workers", "0"]
    out = tmp_path / "one"
    assert run(monkeypatch, "--baselines", "nearest", *words, "--out", str(out)) == 0
    (row,) = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert row["metrics"]["images"] == 1
    assert row["interval"] == {}


UNITS = ["irmse_1/km", "imae_1/km", "rmse_mm", "mae_mm"]
TITLES = ["iRMSE (1/km)", "iMAE (1/km)", "RMSE (mm)", "MAE (mm)"]


def benchmark(monkeypatch, capsys, root):
    """KITTI's numbers of `nearest`, as JSON holds them; screen, CSV and page must hold the same."""
    out = root / "table"
    words = ["--data", "kitti", "--root", str(root), "--baselines", "nearest", "--points", "sensor"]
    assert run(monkeypatch, *words, "--workers", "0", "--out", str(out)) == 0
    (row,) = json.loads(out.with_suffix(".json").read_text())["rows"]
    found = [row["metrics"][name] for name in UNITS]
    shown = [f"{value:.3f}" for value in found]
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = said.index(["points", "method", *" ".join(TITLES).split()])
    assert said[at + 1] == ["sensor", "nearest", *shown]
    page = out.with_suffix(".md").read_text()
    assert "| points | method | " + " | ".join(TITLES) + " |" in page
    assert "| sensor | nearest | **" + "** | **".join(shown) + "** |" in page
    with out.with_suffix(".csv").open() as file:
        (cells,) = csv.DictReader(file)
    assert [float(cells[name]) for name in UNITS] == found
    return found


def test_kittis_numbers_are_in_its_units(monkeypatch, capsys, tmp_path):
    """Truth is 1 or 2 m, and the LiDAR measures half: errors of 500 and 1000 mm or 1/km.

    Means over images are 750; RMSE of all pixels together would be 791.
    """
    root = fakes.kitti(tmp_path)
    assert benchmark(monkeypatch, capsys, root) == pytest.approx([750] * 4, rel=1e-5)


def test_kittis_numbers_are_those_of_its_devkit(monkeypatch, capsys, tmp_path):
    """The same formulas in numpy, on the files: root of the mean of each image, then the mean."""
    root, draw = fakes.kitti(tmp_path), np.random.default_rng(0)
    each = []
    for path in sorted((root / "val").rglob("groundtruth/*/*.png")):
        counts = draw.integers(200, 20_000, (6, 8)).astype(np.uint16)
        counts[draw.random((6, 8)) < 0.3] = 0
        Image.fromarray(counts).save(path)
        true = counts[counts > 0] / 256.0
        nearest = 0.5 if path.stem.endswith("5") else 1.0
        km, mm = 1000 * (1 / true - 1 / nearest), 1000 * (true - nearest)
        each.append([f(error) for error in (km, mm) for f in (root_mean_square, mean_abs)])
    found = benchmark(monkeypatch, capsys, root)
    assert found == pytest.approx(np.mean(each, 0).tolist(), rel=1e-5)
    assert len({round(value) for value in found}) == 4  # or a swap could hide


def root_mean_square(error):
    return np.sqrt((error**2).mean())


def mean_abs(error):
    return np.abs(error).mean()


def test_two_rows_of_one_name_are_refused(tmp_path):
    Completer(Architecture()).save(tmp_path / "linear.safetensors")
    with pytest.raises(ValueError, match="two rows of the table would be called 'linear'"):
        open_methods([tmp_path / "linear.safetensors"], ["linear"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to evaluate; name a model, or --baselines with --points other than 0"),
        (["--baselines", "linear", "--points", "0"], "or --baselines with --points other than 0"),
        (["--baselines", "linear", "--workers", "-1"], "--workers -1 must be 0 or more"),
        (["--baselines", "linaer"], "there is no baseline 'linaer'; choose nearest"),
        (["no.safetensors"], "there is no file no.safetensors"),
        (["--baselines", "linear", "--out", "no/table"], "there is no folder no; create it"),
        (["--baselines", "linear", "--points", "5-9"], "evaluation takes one number at a time"),
        (["--baselines", "linear", "--data", "nyu"], "--data nyu needs its folder"),
    ],
)
def test_bad_input_is_one_sentence(monkeypatch, capsys, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
