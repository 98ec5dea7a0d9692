# SPDX-License-Identifier: Apache-2.0
"""The choices of a fit side by side, and the figure of a row of pixels."""

import json
from dataclasses import replace

import pytest
import torch
from matplotlib import image

from deepbasis.data.sources import Source
from deepbasis.data.with_points import WithPoints
from deepbasis.evaluation import Estimate, Score
from deepbasis.fit import Gamma
from deepbasis.layer import CalibrationRow
from deepbasis.patterns import parse
from deepbasis_paper.model import Ensemble
from deepbasis_paper.targets import variances
from deepbasis_paper.targets.plan import Training
from deepbasis_paper.targets.prior import fitting
from deepbasis_paper.targets.run import run

ALL = {
    "paper", "predictive", "two-term", "ours", "no hyperpriors", "EM converged", "both",
    "prior of 200", "prior uncorrected", "correlated",
}  # fmt: skip


@pytest.mark.slow
def test_every_option_is_scored_once_and_kept(plan, capsys, monkeypatch):
    monkeypatch.setattr(variances, "COUNTS", ("50", "0"))
    monkeypatch.setattr(variances, "FRAMES", 2)
    run("variances", plan, "the command")
    about = json.loads((plan.out / "rooms-variances.json").read_text())
    assert set(about["variances"]) == {"mid-bdbf-rgbd-corrected-s0", "low-bdbf-rgb-corrected-s0"}
    assert set(about["variances"]["low-bdbf-rgb-corrected-s0"]) == ALL
    assert set(about["variances"]["mid-bdbf-rgbd-corrected-s0"]) == ALL | {"half and half"}
    page = (plan.out / "rooms-variances.md").read_text()
    nees = about["variances"]["mid-bdbf-rgbd-corrected-s0"]["two-term"]["50"]["nees"]
    assert f"{nees:.2f} / " in page
    assert "low-bdbf-rgbd-s0" in page.split("## Missing")[1]
    assert "scoring" in capsys.readouterr().out
    run("variances", plan, "the command")
    assert "scoring" not in capsys.readouterr().out


@pytest.fixture
def answers(plan):
    """Prediction of one frame by each option."""
    training = Training(plan, "mid", "bdbf", "rgbd", recipe="corrected")
    model = Ensemble.load(training.model)
    layer = fitting(model).fit
    independent = layer.error_model("independent")
    independent.calibration.set_rows([CalibrationRow(0, 1, 2.0, 0.5)])
    for gamma in (layer.prior.alpha, independent.noise, layer.error_model("paper").noise):
        gamma.set(Gamma(3.0, 3.0))
    path = plan.out / "model.safetensors"
    model.save(path)
    frames = Source("rooms", count=4, size=(32, 48)).open("test")
    sample = WithPoints(frames, parse("40"))[0]
    methods = dict(variances.choices(training, path, path))
    return {name: method(sample.image, sample.sparse) for name, method in methods.items()}


def test_each_option_changes_what_it_says(answers):
    ours = answers["ours"]
    for name in ("paper", "predictive", "two-term"):
        torch.testing.assert_close(answers[name].mean, ours.mean)
        assert type(answers[name].distribution).__name__ == "Laplace", name
    assert type(ours.distribution).__name__ == "StudentT"
    noise, model = answers["predictive"].var, answers["paper"].var  # factors are all 1 here
    torch.testing.assert_close(answers["two-term"].var, 0.8 * (noise - model) + 1.2 * model)
    for name in ("no hyperpriors", "EM converged", "prior of 200", "half and half", "correlated"):
        assert not torch.allclose(answers[name].mean, ours.mean, rtol=1e-3), name
    corrected, plain = answers["prior of 200"], answers["prior uncorrected"]
    assert not torch.equal(corrected.var, plain.var)


def test_the_verdict_is_counted(plan):
    def scores(nees, auce, nll):
        metrics = {"nees": nees, "auce_all": auce, "nll": nll, "ause": 0.1, "mae": 0.1}
        return {points: Score("x", points, metrics, {}) for points in variances.COUNTS}

    told = variances.verdict({
        "paper": scores(5.0, 0.2, 0.0), "ours": scores(1.2, 0.02, -1.0),
        "correlated": scores(1.3, 0.04, -1.0) | {"50": scores(1.0, 0.0, 0.5)["50"]},
    })  # fmt: skip
    assert told == (
        "**ours**: NEES within 0.8 to 1.25: yes, AUCE at most 0.03: yes, worse than the paper's "
        "variance: nowhere; **correlated**: NEES within 0.8 to 1.25: no, AUCE at most 0.03: no, "
        "worse than the paper's variance: NLL at 50."
    )


def test_an_option_that_overflows_is_infinite_and_the_page_says_why(plan, monkeypatch):
    def constant(log_depth):
        return lambda image, sparse: Estimate(*(torch.full(sparse[0].shape, x) for x in log_depth))

    fine, overflowing = constant((1.0, 0.5)), constant((1000.0, 0.5))
    options = {"paper": fine, "ours": fine, "both": overflowing, "correlated": fine}
    monkeypatch.setattr(variances, "choices", lambda *_: options.items())
    monkeypatch.setattr(variances, "COUNTS", ("48",))  # scores are kept
    monkeypatch.setattr(variances, "FRAMES", 2)
    for code in ("computed", "kept"):
        monkeypatch.setattr(variances, "commit", lambda code=code: code)
        run("variances", plan, "the command")
        page = (plan.out / "rooms-variances.md").read_text()
        assert "| both | inf / inf / inf | inf to inf | inf |" in page
        assert "| both | inf / inf |" in page
        assert page.count("inf: the predicted depth") == 2  # below the tables of each network
        assert "**ours**: NEES within" in page
        assert "code computed; " in page  # that of the scores
        text = (plan.out / "rooms-variances.json").read_text()
        assert "Infinity" not in text
        by_option = json.loads(text)["variances"]["low-bdbf-rgb-corrected-s0"]
        assert by_option["both"]["48"] is None
        assert by_option["ours"]["48"]["mae"] > 0


def test_other_mistakes_of_an_option_are_not_hidden(plan, monkeypatch):
    def negative(image, sparse):
        return Estimate(torch.zeros(sparse[0].shape), torch.full(sparse[0].shape, -1.0))

    monkeypatch.setattr(variances, "choices", lambda *_: {"ours": negative}.items())
    monkeypatch.setattr(variances, "COUNTS", ("49",))
    with pytest.raises(ValueError, match="cannot be scored: `var` is 0 or negative"):
        run("variances", plan, "the command")


def test_the_row_is_drawn(plan):
    run("neighbours", plan, "the command")
    assert image.imread(plan.out / "rooms-neighbours.png").std() > 0.05
    run("neighbours", replace(plan, runs=plan.out), "the command")
    assert "low-bdbf-rgb-corrected-s0" in (plan.out / "rooms-neighbours.md").read_text()
