# SPDX-License-Identifier: Apache-2.0
"""Which variance can be trusted at every number of points: the choices of a fit side by side."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from deepbasis.data.files import whole
from deepbasis.data.sample import Frames, seeded
from deepbasis.data.sources import Picked, fingerprint
from deepbasis.evaluate import Answer, Method, Score, commit, model_method, tally_all
from deepbasis.latent import measured
from deepbasis.layer import BasisFit
from deepbasis.model import Completer
from deepbasis.reproduce.cells import digest, find_model, remembered, source_of
from deepbasis.reproduce.config import Plan
from deepbasis.reproduce.figures import TITLES
from deepbasis.reproduce.pages import markdown, write_page
from deepbasis.reproduce.plan import ROWS, Training
from deepbasis.reproduce.prior import fitted_weights

COUNTS = ("5%", "1%", "500", "50", "10", "0")
# Test frames, evenly spread: there are many choices.
FRAMES = 40
TEXT = (
    "Each row is the same trained network. **paper**: the model's variance times the NEES factor, "
    "a Laplace. **predictive**: noise and model variance as the fit gives them, a Laplace. "
    "**two-term**: each times a factor that a Laplace's likelihood chose. **ours**: each times a "
    "factor that brings NEES near 1 over mixed point counts, then a factor and the shape of a "
    "Student's t for the number of points, interpolated between 5 %, 1 %, 200, 63, 20, 6 and none "
    "and the points of training. Below it, ours with "
    "one thing changed: no hyperpriors; EM to convergence in place of 8 steps; both; the prior of "
    "200 training frames, and that without the correction for estimation noise; for networks that "
    "see the points, half of them for the network and half for the fit, with the predictive "
    "variance, which is then that of points the network has not seen. **local**: ours, with local "
    "errors."
)
# What the choices are judged by.
METRICS = ("nees", "auce_all", "nll", "mae", "ause")
Scores = dict[str, dict[str, Score]]
"""By choice and points."""


def layer_of(model: Completer) -> BasisFit:
    """The fit of a model."""
    layer = model.networks[0].last
    assert isinstance(layer, BasisFit)
    return layer


def choices(training: Training, path: Path) -> Iterator[tuple[str, Method]]:
    """Every way to read one trained network."""

    def changed(change: Callable[[BasisFit, Completer], object]) -> Method:
        model = Completer.load(path).assume("independent")
        change(layer_of(model), model)
        return model_method(model)

    def laplace(layer: BasisFit, noise: float, model_factor: float) -> None:
        layer.set_calibration(noise=noise, model=model_factor)
        layer.set_tails("independent", [])

    def converge(layer: BasisFit) -> BasisFit:
        layer.steps, layer.tol = 300, 1e-6
        return layer

    def relearn(layer: BasisFit, model: Completer, correct: bool) -> None:
        layer.gathered = []
        fitted_weights(training, model)
        layer.learn_prior(correct=correct)
        layer.gathered = None

    yield "paper", changed(lambda _, model: model.assume("independent", "paper"))
    yield "predictive", changed(lambda layer, _: laplace(layer, 1.0, 1.0))
    yield "two-term", changed(lambda layer, model: laplace(layer, *model.card.metrics["two_term"]))
    yield "ours", changed(lambda *_: None)
    yield "no hyperpriors", changed(lambda layer, _: layer.hyperprior.zero_())
    yield "EM converged", changed(lambda layer, _: converge(layer))
    yield "both", changed(lambda layer, _: converge(layer).hyperprior.zero_())
    yield "prior of 200", changed(lambda layer, model: relearn(layer, model, True))
    yield "prior uncorrected", changed(lambda layer, model: relearn(layer, model, False))
    if training.input == "rgbd":
        halved = Completer.load(path).assume("independent")
        laplace(layer_of(halved), 1.0, 1.0)
        yield "half and half", half_and_half(halved)
    yield "local", changed(lambda _, model: model.assume("local"))


def half_and_half(model: Completer) -> Method:
    """The network sees one half of the points, and is fitted to the other."""
    network = model.networks[0]

    @torch.no_grad()
    def complete(image: Tensor, sparse: Tensor) -> Answer:
        row, column = measured(sparse[0]).nonzero(as_tuple=True)
        order = torch.randperm(len(row), generator=seeded(len(row)))
        seen, fitted = sparse[None].clone(), sparse[None].clone()
        half = len(row) // 2
        seen[0, 0, row[order[half:]], column[order[half:]]] = 0
        fitted[0, 0, row[order[:half]], column[order[:half]]] = 0
        prediction = network(image[None], fitted, *model.fill(seen))
        one = type(prediction)(*(part[0, 0] for part in prediction))
        return Answer(one.mean, one.var, model.shape(one, fitted[0, 0]))

    return complete


def compare(plan: Plan, training: Training, path: Path, frames: Frames) -> Scores:
    """Score all choices; each count is kept in a file, so that one can stop in between."""
    found: Scores = {}
    methods: dict[str, Method] = {}
    for points in COUNTS:
        key = f"{digest(path)[:12]}-{fingerprint(frames)[:6]}-{plan.seed}"
        file = path.parent / "scores" / f"variances-{points}-{key}.json"
        if not file.exists():
            methods = methods or dict(choices(training, path))
            print(f"scoring all variances of {training.name} at {points}", flush=True)
            tallies = tally_all(methods, frames, points, plan.seed)
            scores = {name: Score.of(name, points, t).metrics for name, t in tallies.items()}
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole(file) as out:
                out.write(json.dumps({"commit": commit(), "scores": scores}, indent=1).encode())
        for name, metrics in json.loads(file.read_text())["scores"].items():
            found.setdefault(name, {})[points] = Score(name, points, metrics, {})
    return found


def tables(scores: Scores) -> list[str]:
    """Calibration, with the worst of each choice, and accuracy."""
    calibrated, accurate = [], []
    for name, by_points in scores.items():
        metrics = [by_points[points].metrics for points in COUNTS]
        nees = [one["nees"] for one in metrics]
        auce = max(one["auce_all"] for one in metrics)
        worst = [f"{min(nees):.2f} to {max(nees):.2f}", f"{auce:.3f}"]
        cells = (f"{m['nees']:.2f} / {m['auce_all']:.3f} / {m['nll']:.2f}" for m in metrics)
        calibrated.append([name, *cells, *worst])
        accurate.append([name, *(f"{m['mae']:.3f} / {m['ause']:.3f}" for m in metrics)])
    return [
        "NEES / AUCE over all pixels / NLL at each number of points:", "",
        *markdown(["variance", *COUNTS, "NEES from to", "worst AUCE"], calibrated, left=1),
        "MAE / AUSE (m):", "", *markdown(["variance", *COUNTS], accurate, left=1),
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
        told = f"NEES within 0.8 to 1.25 {'yes' if nees else 'no'}"
        told += f", AUCE at most 0.03 {'yes' if auce else 'no'}"
        return f"{told}, worse than the paper's variance: {', '.join(worse) or 'nowhere'}"

    return "; ".join(f"**{name}**: {reached(name)}" for name in ("ours", "local")) + "."


def write(plan: Plan, command: str) -> None:
    """Compare for every bdbf network, and write the page."""
    frames = remembered(source_of(plan))
    count = min(FRAMES, len(frames))
    some = Picked(frames, [i * len(frames) // count for i in range(count)])
    lines, missing, every = [TEXT, "", f"Scored on {count} of the test frames.", ""], [], {}
    for regime in ROWS:
        for method, depth_input in ROWS[regime]:
            if method != "bdbf":
                continue
            training = Training(plan, regime, method, depth_input)
            if (path := find_model(training)) is None:
                missing.append(training)
                continue
            scores = compare(plan, training, path, some)
            lines += [f"## bdbf {depth_input}, {TITLES[regime]}", "", *tables(scores)]
            lines += [verdict(scores), ""]
            every[training.name] = {
                name: {points: score.metrics for points, score in by_points.items()}
                for name, by_points in scores.items()
            }
    write_page(plan, "variances", command, lines, {}, missing, variances=every)
