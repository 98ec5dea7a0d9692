# SPDX-License-Identifier: Apache-2.0
"""Cells: scored once, scored again when anything about them changes."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch

from deepbasis.evaluation import Score
from deepbasis_paper import cli
from deepbasis_paper.model import Ensemble
from deepbasis_paper.targets import cells
from deepbasis_paper.targets.cells import Cell, Kept, Row, evaluation, rows, score

LOG, BDBF = Row("log", "mid", "rgbd"), Row("bdbf", "mid", "rgbd")


@pytest.fixture
def counted(monkeypatch):
    """How often something was scored."""
    calls = []
    real = cells.tally_all
    monkeypatch.setattr(cells, "tally_all", lambda *a: calls.append(a) or real(*a))
    return calls


@pytest.fixture
def own(plan, tmp_path):
    """A plan whose models may be changed."""
    for name in ("mid-log-rgbd-s0",):
        shutil.copytree(plan.runs / name, tmp_path / "runs" / name, ignore=lambda *_: ["scores"])
    return replace(plan, runs=tmp_path / "runs")


def test_a_cell_is_scored_once(own, counted):
    first, again = score(own, LOG, "5%"), score(own, LOG, "5%")
    assert len(counted) == 1
    assert first == again
    assert not list(own.runs.rglob("*.part"))


@pytest.mark.slow
def test_other_points_seeds_and_frames_are_other_cells(own, counted):
    model = own.runs / "mid-log-rgbd-s0" / "model.safetensors"
    for plan, points in (
        (own, "5%"), (own, "50"), (replace(own, seed=1), "5%"), (replace(own, size=(48, 32)), "5%"),
    ):  # fmt: skip
        cells._keep(plan, LOG, points, cells.source_of(plan), model)
    assert len(counted) == 4


def test_a_changed_model_is_scored_again(own, counted):
    before = score(own, LOG, "5%").mean("mae")
    path = own.runs / "mid-log-rgbd-s0" / "model.safetensors"
    model = Ensemble.load(path)
    with torch.no_grad():
        for parameter in model.network.head.parameters():
            parameter.add_(0.5)
    model.save(path)
    after = score(own, LOG, "5%").mean("mae")
    assert len(counted) == 2
    assert after != before


@pytest.mark.slow
def test_error_models_differ_and_the_printed_command_repeats_them(plan, monkeypatch, tmp_path):
    found = {}
    for row in rows("mid"):
        if row.method != "bdbf":
            continue
        out = tmp_path / f"again{row.reading}"
        words = evaluation(plan, row, "5%").split()
        monkeypatch.setattr(sys, "argv", [*words, "--out", str(out), "--workers", "0"])
        cli.main()
        again = json.loads(out.with_suffix(".json").read_text())["rows"][0]["metrics"]
        found[row.reading] = score(plan, row, "5%").kept[0].score.metrics
        assert again == found[row.reading]
    assert found[""]["mae"] == found["predictive"]["mae"] != found["correlated"]["mae"]
    assert len({metrics["nll"] for metrics in found.values()}) == 3


def test_what_is_not_trained_is_named(plan):
    cell = score(plan, Row("snap", "mid", "rgbd"), "5%")
    assert cell.kept == []
    assert [training.name for training in cell.missing] == ["mid-snap-rgbd-s0"]
    assert cell.show("mae") == "missing"


def test_seeds_are_shown_by_mean_and_spread(plan):
    cell = score(replace(plan, seeds=2), LOG, "5%")
    assert len(cell.kept) == len(cell.missing) == 1
    two = [Kept(Score("log", "5%", {"mae": value}, {}), {}, "") for value in (1.0, 2.0)]
    assert Cell(two, []).show("mae") == "1.500 ± 0.707"


def test_baselines_need_points():
    assert Row("linear") in rows("low", "50")
    assert Row("linear") not in rows("low", "0")
