# SPDX-License-Identifier: Apache-2.0
"""Which variance can be trusted at every number of points: the options of a fit side by side."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from deepbasis import fit
from deepbasis.data.files import atomic_write
from deepbasis.data.sample import Frames, seeded
from deepbasis.data.sources import fingerprint, subsample
from deepbasis.evaluation import Estimate, Method, Score, commit, model_method, tally_all
from deepbasis.latent import is_valid
from deepbasis.layer import BasisFit, Errors
from deepbasis.metrics.image import DepthOverflow
from deepbasis.points import Points
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import Given, RgbdNetwork
from deepbasis_paper.targets.cells import digest, find_model, open_test_frames, source_of
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import TITLES
from deepbasis_paper.targets.pages import markdown, write_page
from deepbasis_paper.targets.plan import ROWS, Training
from deepbasis_paper.targets.prior import fitted_weights, fitting

COUNTS = ("5%", "1%", "500", "50", "10", "0")
# Test frames, evenly spread: there are many options.
FRAMES = 40
TEXT = (
    "Each row is the same trained network. **paper**: the paper's recipe, with the model's "
    "variance times the NEES factor, Laplace errors. **predictive**: noise and model variance as "
    "the fit gives them, Laplace errors. **two-term**: each times a factor that maximises the "
    "Laplace likelihood. **ours**: "
    "each times a factor that brings NEES near 1 over mixed numbers of points, then a factor and "
    "the parameters of a Student's t for the number of points, interpolated between 5 %, 1 %, 200, "
    "63, 20, 6 and none and the points of training. Below it, ours with one change: no "
    "hyperpriors; EM to convergence instead of 8 steps; both; the prior of 200 training frames, "
    "and that without the correction for estimation noise; for networks that see the points, half "
    "of them for the network and half for the fit, with the predictive variance, which is then "
    "that of points the network has not seen. **correlated**: ours, with spatially correlated "
    "errors."
)
# What the options are judged by.
METRICS = ("nees", "auce_all", "nll", "mae", "ause")
INFINITE = dict.fromkeys(METRICS, math.inf)
OVERFLOW = (
    "inf: the predicted depth of at least one frame, or its 95 % interval, overflows float64. The "
    "option has no mean over frames there, and all its metrics count as infinite."
)
Scores = dict[str, dict[str, Score]]
"""By option and points."""


def choices(training: Training, path: Path, paper: Path) -> Iterator[tuple[str, Method]]:
    """Every option of one trained network; `paper` is its model after the paper's recipe."""

    def changed(
        change: Callable[[BasisFit, Ensemble], object], errors: Errors = "independent"
    ) -> Method:
        model = Ensemble.load(path)
        change(fitting(model).fit, model)
        return model_method(model, errors)

    def nothing(layer: BasisFit, model: Ensemble) -> None:
        pass

    def without_hyperpriors(layer: BasisFit, model: Ensemble) -> None:
        for gamma in (layer.prior.alpha, layer.error_model("independent").noise):
            gamma.set(fit.Gamma())

    def converge(layer: BasisFit, model: Ensemble) -> None:
        layer.em = {"steps": 300, "tol": 1e-6}

    def both(layer: BasisFit, model: Ensemble) -> None:
        without_hyperpriors(layer, model)
        converge(layer, model)

    def relearn(layer: BasisFit, model: Ensemble, correct: bool) -> None:
        layer.collect_weights()
        fitted_weights(training, fitting(model))
        layer.learn_prior(correct=correct)

    yield "paper", model_method(Ensemble.load(paper), "paper")
    yield "predictive", changed(lambda layer, _: set_laplace(layer, 1.0, 1.0))
    yield (
        "two-term",
        changed(lambda layer, model: set_laplace(layer, *model.card.metrics["two_term"])),
    )
    yield "ours", changed(nothing)
    yield "no hyperpriors", changed(without_hyperpriors)
    yield "EM converged", changed(converge)
    yield "both", changed(both)
    yield "prior of 200", changed(lambda layer, model: relearn(layer, model, True))
    yield "prior uncorrected", changed(lambda layer, model: relearn(layer, model, False))
    if training.input == "rgbd":
        yield "half and half", half_and_half(Ensemble.load(path))
    yield "correlated", changed(nothing, "correlated")


def set_laplace(layer: BasisFit, noise: float, model: float) -> None:
    """Calibrate independent errors by two factors alone; their distribution is a Laplace."""
    calibration = layer.error_model("independent").calibration
    calibration.set_factors(noise, model)
    calibration.set_rows([])


def half_and_half(model: Ensemble) -> Method:
    """The network sees one half of the points, and is fitted to the other."""
    network = model.network
    assert isinstance(network, RgbdNetwork)
    set_laplace(network.fit, 1.0, 1.0)

    @torch.no_grad()
    def complete(image: Tensor, sparse: Tensor) -> Estimate:
        row, column = is_valid(sparse[0]).nonzero(as_tuple=True)
        order = torch.randperm(len(row), generator=seeded(len(row)))
        seen, fitted = sparse[None].clone(), sparse[None].clone()
        half = len(row) // 2
        seen[0, 0, row[order[half:]], column[order[half:]]] = 0
        fitted[0, 0, row[order[:half]], column[order[:half]]] = 0
        features = network.bases(
            image[None], *Given(image[None], Points.from_maps(seen)).depth_input
        )
        observed = network.observe(image[None], Points.from_maps(fitted), features)
        found = network.fit.fit_details(observed, errors="independent").prediction
        return Estimate(found.mean[0, 0], found.var[0, 0])

    return complete


def compare(
    plan: Plan, training: Training, path: Path, paper: Path, frames: Frames
) -> tuple[Scores, set[str]]:
    """Score all options; scores are kept in a file for each number of points.

    Returns:
        The scores, and the commits of the code that made them.
    """
    found: Scores = {}
    commits: set[str] = set()
    methods: dict[str, Method] = {}
    for points in COUNTS:
        key = f"{digest(path)[:6]}{digest(paper)[:6]}-{fingerprint(frames)[:6]}-{plan.seed}"
        file = path.parent / "scores" / f"variances-{points}-{key}.json"
        if not file.exists():
            methods = methods or dict(choices(training, path, paper))
            print(f"scoring all variances of {training.name} at {points}", flush=True)
            scores = {
                name: score(name, method, frames, points, plan.seed)
                for name, method in methods.items()
            }
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as out:
                out.write(json.dumps({"commit": commit(), "scores": scores}, indent=1).encode())
        kept = json.loads(file.read_text())
        commits.add(kept["commit"])
        for name, metrics in kept["scores"].items():
            found.setdefault(name, {})[points] = Score(name, points, metrics or INFINITE, {})
    return found, commits


def score(
    name: str, method: Method, frames: Frames, points: str, seed: int
) -> dict[str, float] | None:
    """Metrics of one option; None if it overflows on some frame, since JSON has no infinity."""
    try:
        tally = tally_all({name: method}, frames, points, seed)[name]
    except DepthOverflow as error:
        print(f"{name} has no score: {error}", flush=True)
        return None
    return Score.of(name, points, tally).metrics


def plain(found: Score) -> dict[str, float] | None:
    """The metrics, for JSON."""
    return None if found.metrics == INFINITE else found.metrics


def tables(scores: Scores) -> list[str]:
    """Calibration, with the worst of each option, and accuracy; below, why some are infinite."""
    calibrated, accurate = [], []
    for name, by_points in scores.items():
        metrics = [by_points[points].metrics for points in COUNTS]
        nees = [one["nees"] for one in metrics]
        auce = max(one["auce_all"] for one in metrics)
        worst = [f"{min(nees):.2f} to {max(nees):.2f}", f"{auce:.3f}"]
        cells = (f"{m['nees']:.2f} / {m['auce_all']:.3f} / {m['nll']:.2f}" for m in metrics)
        calibrated.append([name, *cells, *worst])
        accurate.append([name, *(f"{m['mae']:.3f} / {m['ause']:.3f}" for m in metrics)])
    overflows = any(one.metrics == INFINITE for row in scores.values() for one in row.values())
    return [
        "NEES / AUCE over all pixels / NLL at each number of points:", "",
        *markdown(["variance", *COUNTS, "NEES, range", "worst AUCE"], calibrated, left=1),
        "MAE / AUSE (m):", "", *markdown(["variance", *COUNTS], accurate, left=1),
        *([OVERFLOW, ""] if overflows else []),
    ]  # fmt: skip


def verdict(scores: Scores) -> str:
    """Whether the goal was reached, and where NLL or AUSE is worse than with the paper's."""

    def reached(name: str) -> str:
        metrics = [scores[name][points].metrics for points in COUNTS]
        nees = max(abs(math.log(one["nees"])) for one in metrics) <= math.log(1.25)
        auce = max(one["auce_all"] for one in metrics) <= 0.03
        worse = [
            f"{metric.upper()} at {points}"
            for points in COUNTS
            for metric in ("nll", "ause")
            if scores[name][points].metrics[metric] > scores["paper"][points].metrics[metric] + 5e-4
        ]
        told = f"NEES within 0.8 to 1.25: {'yes' if nees else 'no'}"
        told += f", AUCE at most 0.03: {'yes' if auce else 'no'}"
        return f"{told}, worse than the paper's variance: {', '.join(worse) or 'nowhere'}"

    return "; ".join(f"**{name}**: {reached(name)}" for name in ("ours", "correlated")) + "."


def write(plan: Plan, command: str) -> None:
    """Compare for every bdbf network, and write the page."""
    some = subsample(open_test_frames(plan, source_of(plan)), FRAMES)
    lines, missing, every = [TEXT, "", f"Scored on {len(some)} of the test frames.", ""], [], {}
    commits: set[str] = set()
    for regime in ROWS:
        for method, depth_input in ROWS[regime]:
            if method != "bdbf":
                continue
            training = Training(plan, regime, method, depth_input, recipe="corrected")
            twin = replace(training, recipe="paper")
            paper, path = find_model(twin), find_model(training)
            if paper is None or path is None:
                missing += [one for one in (twin, training) if not one.model.exists()]
                continue
            scores, made_by = compare(plan, training, path, paper, some)
            commits |= made_by
            lines += [f"## bdbf {depth_input}, {TITLES[regime]}", "", *tables(scores)]
            lines += [verdict(scores), ""]
            every[training.name] = {
                name: {points: plain(one) for points, one in by_points.items()}
                for name, by_points in scores.items()
            }
    write_page(plan, "variances", command, lines, {}, missing, commits, variances=every)
