# SPDX-License-Identifier: Apache-2.0
"""Every target writes its page and its figure, and names what is missing."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from matplotlib import image

from data import fakes
from deepbasis import demo
from deepbasis.data.sources import Source
from deepbasis.data.worlds import Worlds
from deepbasis.data.worlds.export import export
from deepbasis.evaluation import Estimate
from deepbasis.model import Card, Completer
from deepbasis.nets import Architecture
from deepbasis.points import Points
from deepbasis_paper.cli import main
from deepbasis_paper.data.training import PaperTrainingSet
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import PaperArchitecture
from deepbasis_paper.targets import bounds, enet, pages, paper, prior, runtime, shift, showcase
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.paper import METRICS
from deepbasis_paper.targets.plan import Training
from deepbasis_paper.targets.run import run

FIGURES = {
    "sparsity": ["sparsity"], "curves": ["curves"], "bounds": ["bounds"], "nees": ["nees"],
    "prior": ["prior"], "qualitative": ["qualitative-5", "qualitative-500", "qualitative-50"],
    "shift": [], "mid": [], "low": [],
    "zero-points": ["zero-points-1", "zero-points-2", "zero-points-3"],
}  # fmt: skip


SLOW = ("zero-points", "sparsity", "qualitative", "prior", "curves", "nees", "low", "mid", "shift")


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=pytest.mark.slow) if t in SLOW else t for t in FIGURES]
)
def test_a_target_writes_its_page_and_names_what_is_missing(target, plan):
    run(target, plan, "the command")
    names = {f"rooms-{name}.png" for name in FIGURES[target]}
    names |= {f"rooms-{target}.{suffix}" for suffix in ("md", "json")}
    assert {path.name for path in plan.out.iterdir()} == names
    page = (plan.out / f"rooms-{target}.md").read_text()
    assert "$ the command\n" in page
    assert "4 test frames, split " in page
    missing = page.split("## Missing")[1]
    if target == "prior":
        assert f"--out {plan.runs}/low-bdbf-rgbd-s0" in missing
    elif target == "zero-points":
        assert f"--out {plan.runs}/low-log-rgb-s0" in missing
    else:
        assert f"--out {plan.runs}/{'low' if target == 'low' else 'mid'}-snap-rgbd-s0" in missing
    assert "mid-log" not in missing
    for path in plan.out.glob("*.png"):
        assert image.imread(path).std() > 0.05


def test_a_table_holds_every_number(plan):
    run("mid", plan, "the command")
    about = json.loads((plan.out / "rooms-mid.json").read_text())
    page = (plan.out / "rooms-mid.md").read_text()
    assert about["frames"] == 4
    cells = {(c["method"], c["reading"], c["points"]): c for c in about["cells"]}
    assert len(cells) == 18
    mae = cells["log", "", "5%"]["scores"][0]["metrics"]["mae"]
    assert f"| rgbd | log | {mae:.3f} " in page.replace("**", "")
    assert "| rgbd | snap | missing | missing |" in page
    assert cells["snap", "", "5%"]["missing"] == ["mid-snap-rgbd-s0"]
    assert "unknown" in page.split("Do the paper's claims hold?")[1]


def test_the_papers_numbers_stand_beside_ours(plan, monkeypatch):
    monkeypatch.setitem(paper.TABLES, ("rooms", "mid"), paper.table("nyu", "mid"))
    run("mid", plan, "the command")
    page = (plan.out / "rooms-mid.md").read_text()
    assert "| rgbd | snap | missing / 0.061 |" in page
    assert "| at 5 %: MAE over the best baseline's | at most 0.6 | 0.456, met | unknown" in page


def test_pages_of_roads_say_first_that_they_stand_in_for_vkitti2(plan):
    pages.write_page(replace(plan, data="roads"), "mid", "the command", ["A table."], {})
    lines = (plan.out / "roads-mid.md").read_text().split("\n")
    assert lines[0] == "# roads: mid"
    assert lines[2].startswith("**Rendered roads stand in for Virtual KITTI 2 here")
    pages.write_page(plan, "mid", "the command", ["A table."], {})
    assert "stand in" not in (plan.out / "rooms-mid.md").read_text()


def stored(plan, target, **cells):
    """The results of a target, as its page stores them: MAE of methods at points."""
    rows = []
    for key, mae in cells.items():
        method, points, depth_input = key.split("_")
        metrics = dict.fromkeys(METRICS, 1.0) | {"mae": mae}
        cell = {"method": method, "reading": "", "input": depth_input, "points": points}
        rows.append(cell | {"scores": [{"metrics": metrics}, {"metrics": metrics}]})
    about = json.dumps({"cells": rows, "seconds": {"bdbf": 3.0, "log": 2.0, "snap": 9.0}})
    (plan.out / f"rooms-{target}.json").write_text(about)


def test_the_page_of_claims_is_computed_from_what_is_stored(plan, monkeypatch):
    monkeypatch.setitem(paper.TABLES, ("rooms", "mid"), paper.table("nyu", "mid"))
    numbers = {"bdbf_5%_rgbd": 0.4, "log_5%_rgbd": 0.8, "snap_5%_rgbd": 0.9}
    stored(plan, "mid", **numbers, **{"snap+log_5%_rgbd": 1.0, "linear_5%_": 0.41})
    stored(plan, "runtime")
    (plan.out / "rooms-claims-notes.md").write_text("It was a short training.\n")
    run("claims", plan, "the command")
    page = (plan.out / "rooms-claims.md").read_text()
    mid = "[mid](rooms-mid.md)"
    best = "| at 5 %: MAE over the best baseline's | at most 0.6 | 0.456 | 0.500 | yes |"
    assert f"{best} {mid} |" in page
    linear = "| at 5 %: MAE over that of linear interpolation | at most 0.9 | not printed | 0.976 |"
    assert f"{linear} no | {mid} |" in page
    assert "| at most 1 | not printed | not measured | - | [mid](rooms-mid.md) |" in page
    assert "| run time of bdbf over that of log | at most 2 | 1.437 | 1.500 | yes |" in page
    assert "| below 1 | not printed | not measured | - | low |" in page
    assert r"| at 5 %: \|ln NEES\| over the best" in page  # a bar would end the cell
    assert page.count("It was a short training.") == 1
    assert "$ the command" in page


def test_short_trainings_are_marked_and_a_third_as_long(plan):
    run("ensembles", replace(plan, epochs=8, runs=plan.out / "none"), "the command")
    page = (plan.out / "rooms-ensembles.md").read_text()
    assert "trained for 4 epochs each, a third of the 12 of other methods" in page
    assert "| rgbd | bootstrap+log | missing |" in page
    assert "short-mid-dropout-rgbd-s0" in page.split("## Missing")[1]


@pytest.mark.slow
def test_the_tables_on_kitti_have_the_papers_rows_and_ours(plan, tmp_path):
    """On tiny files in KITTI's layout; all models are missing, the classical baselines are not."""
    root = tmp_path / "kitti"
    kitti_plan = replace(
        plan, data="kitti", root=fakes.kitti(root), size=None, frames=2, runs=tmp_path / "none"
    )
    run("published", kitti_plan, "the command")
    page = (plan.out / "kitti-published.md").read_text()
    assert "| NLSPN | paper | 1.99 | 0.84 | 741.68 | 199.59 |" in page
    assert "| bdbf | ours | missing | missing | missing | missing |" in page
    assert "| linear | ours | missing" not in page
    run("unguided", kitti_plan, "the command")
    page = (plan.out / "kitti-unguided.md").read_text()
    assert "| pNCNN | paper | 283.41 | 1237.65 | 0.055 | - | - |" in page
    assert "| pncnn-exp | ours | missing" in page
    assert "--method pncnn-exp" in page.split("## Missing")[1]
    assert "--input-points sensor" in page


def test_shift_goes_to_a_folder_and_says_what_it_did_not_test(plan, tmp_path):
    assert "Not tested: nyu, for which --shift-root is needed" in shift.left_out(plan)
    names = [domain.name for domain in shift.domains(Plan(data="roads"))]
    turns = [f"{angle}-deg-{side}" for angle in (15, 30) for side in ("left", "right")]
    assert names == ["roads", *turns, "fog"]
    other = tmp_path / "desk"
    list(export(Worlds("rooms", 2, 7, size=(32, 48)), other))
    nyu = Plan(data="nyu", root=tmp_path, shift_root=other, downscale=2)
    desk = list(shift.domains(nyu))[1]
    assert desk.name == "desk"
    assert desk.source.open("test")[0].depth.shape == (1, 16, 24)


def test_errors_that_are_laplace_look_like_a_unit_laplace():
    torch.manual_seed(0)
    true = torch.full((200, 200), 2.0)
    b = 0.05 + torch.rand(200, 200)
    error = torch.distributions.Laplace(0, b).sample()
    unit = bounds.unit_error(Estimate(true.log() + error, 2 * b.square()), true)
    torch.testing.assert_close(unit, (error / b).flatten().double(), rtol=1e-3, atol=1e-4)


def test_fitted_weights_solve_the_normal_equations(plan):
    training = Training(plan, "low", "bdbf", "rgb")
    network = prior.fitting(Ensemble.load(training.model))
    weights, layer = prior.fitted_weights(training, network)
    assert weights.shape == (4, 63)
    assert layer.collector is None
    frames = Source("rooms", count=4, size=(32, 48)).open("train")
    item = PaperTrainingSet(frames, "500", "same")[0]
    with torch.no_grad():
        observed = network.observe(item.image[None], Points.from_maps(item.sparse[None]))
    phi, z = observed.phi[0].double(), observed.z[0].double()
    slope = phi.mT @ (z - phi @ weights[0].double())
    # Of untrained bases many are alike, so the fit has jitter.
    assert slope.abs().max() < 0.01 * (phi.mT @ z).abs().max()


@pytest.mark.slow
def test_runtime_measures_every_method():
    times = runtime.measure(1, (32, 48))
    assert set(times) == {
        "snap", "snap+log", "log", "dbf", "bdbf", "bdbf, correlated", "scaffold alone",
    }  # fmt: skip
    assert all(seconds > 0 for seconds in times.values())


@pytest.mark.slow
def test_real_photographs_are_drawn_only_on_demand(plan, monkeypatch):
    """To this test, rooms are a real data set."""
    monkeypatch.setattr("deepbasis_paper.targets.qualitative.RENDERED", ())
    run("qualitative", plan, "the command")
    assert not list(plan.out.glob("*full*"))
    heights = image.imread(plan.out / "rooms-qualitative-5.png").shape[0]
    run("qualitative", replace(plan, with_images=True), "the command")
    full = image.imread(plan.out / "rooms-qualitative-5-full.png")
    assert full.shape[0] > heights


@pytest.mark.slow
def test_the_command_line_reaches_a_target(plan, monkeypatch, capsys):
    words = ["--runs", str(plan.runs), "--out", str(plan.out), "--no-train"]
    settings = ["--frames", "4", "--size", "32", "48", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["deepbasis-paper", "reproduce", "nees", *settings, *words])
    main()
    assert f"page    {Path(plan.out)}/rooms-nees.md" in capsys.readouterr().out


def test_enet_draws_the_curves_of_its_trainings(plan, tmp_path):
    """Models of one seed exist, untrained, and the other seed's are missing."""
    runs = replace(plan, runs=tmp_path / "runs", width=4, seeds=2)
    for method, rmse in (("enet", 2.0), ("enet-bdbf", 1.0)):
        training = enet.BranchTraining(runs, method=method)
        training.model.parent.mkdir(parents=True)
        settings = json.loads(json.dumps(asdict(training.config), default=str))
        metrics = {"evaluated": [[rmse, rmse + 0.5], [rmse / 2, rmse / 2 + 0.5]]}
        architecture = PaperArchitecture(method=method, width=4)
        Ensemble(architecture, card=Card(settings, metrics=metrics)).save(training.model)
    run("enet", runs, "the command")
    page = (plan.out / "rooms-enet.md").read_text()
    assert "| epoch | enet, training | enet-bdbf, training | enet, test | enet-bdbf, test |" in page
    assert "| 2 | 1.000 | 0.500 | 1.500 | 1.000 |" in page
    assert image.imread(plan.out / "rooms-enet.png").std() > 0.05
    missing = page.split("## Missing")[1]
    assert missing.count("deepbasis-paper train custom") == 2
    assert "--method enet --width 4 " in missing
    assert "--seed 1" in missing
    both = [enet.BranchTraining(runs, method=method).config for method in ("enet", "enet-bdbf")]
    assert replace(both[0], method="enet-bdbf", out=both[1].out) == both[1]


@pytest.mark.slow
def test_the_showcase_draws_every_kind_of_points_and_the_worst_frames(plan, monkeypatch):
    drawn = []

    def keep(cases, *, with_image):
        drawn.append([len(case.answer.points) for case in cases])
        worst.extend(case.errors for case in cases if len(drawn) == 3)
        return demo.draw(cases, with_image=with_image)

    worst: list[tuple[float, float, float]] = []
    monkeypatch.setattr(showcase.model, "load", lambda _: Completer(Architecture()))
    monkeypatch.setattr(showcase, "draw", keep)
    run("showcase", plan, "the command")
    assert {path.name for path in plan.out.iterdir()} == {
        "rooms-cases-1.png", "rooms-cases-2.png", "rooms-failures.png"
    }  # fmt: skip
    assert drawn[0][:2] == [77, 500]
    assert drawn[1][1:] == [50, 5, 0]
    assert drawn[2] == [50, 50]
    assert worst[0][0] >= worst[1][0]
    assert worst[1][2] <= worst[0][2]
