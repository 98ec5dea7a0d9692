# SPDX-License-Identifier: Apache-2.0
"""A model brought to another camera or place by a few dozen frames; its network stays as it is."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric

from deepbasis import fit
from deepbasis.data.files import find_folder
from deepbasis.data.sample import Frames
from deepbasis.data.sources import Picked, Remembered, Source, fingerprint, hold_back
from deepbasis.layer import BasisFit
from deepbasis.methods import METHODS
from deepbasis.model import Completer, load
from deepbasis.train import learn
from deepbasis.train.config import TrainConfig
from deepbasis.train.measure import measure

# Fewer frames than these tell nothing of how scenes differ.
FEWEST = 8
# Where the model is measured before and after.
MEASURED = ("0", "5", "50", "500")


class Learned(NamedTuple):
    """What the layer takes over: a prior, and what is known of alpha and beta."""

    prior: fit.Prior
    hyperprior: fit.Hyperprior


@torch.no_grad()
def adapt(
    model: Completer, frames: Frames, fabric: Fabric, points: str | None = None
) -> dict[str, object]:
    """Learn prior, kernel, calibration and tails anew from some frames; returns what was found.

    The variance is calibrated on each half of the frames with the prior of the other, so that it
    is right for frames that nothing was learned from.
    """
    layer, config = _layer(model), _as_trained(model, points)
    errors = model.architecture.errors
    fits = fit_all(fabric, model, frames, config)
    whole, halves = learn_priors(layer, fits)
    layer.set_prior(*whole[0])
    draw = learn.Draw(fabric, learn.mixed(config), apart=True)
    found: dict[str, object] = {"strength": whole[1]._asdict()}
    learn.forget_calibration(layer)
    model.assume("independent")
    found |= learn.calibrate(layer, _look_crosswise(draw, model, frames, halves))
    layer.set_prior(*whole[0])
    search = len(frames) >= learn.KERNEL_FRAMES
    found |= learn.learn_kernel(draw, model, frames, search=search)
    model.assume("local")
    found |= learn.calibrate_local(layer, _look_crosswise(draw, model, frames, halves))
    layer.set_prior(*whole[0])
    model.assume(errors)
    return found


def fit_all(
    fabric: Fabric, model: Completer, frames: Frames, config: TrainConfig
) -> list[fit.Posterior]:
    """Fits of all frames with the model's own prior, whatever the number of their points."""
    layer, found = _layer(model), []
    for bases, sparse in learn.fitted(fabric, model.networks[0], frames, config, epoch=0):
        pyramid, points = layer.read(bases, sparse)
        phi = pyramid.at(points.row, points.column)[0]
        prior, hyperprior = _known(layer)
        found.append(fit.evidence(phi, points.z[0].to(phi), prior, hyperprior=hyperprior))
    if not any(post.points.n for post in found):
        raise ValueError(
            "no frame has depth at the points that the model was trained with, "
            f"{learn.trained_points(config)!r}; check the frames, or pass others with --points"
        )
    return found


def learn_priors(
    layer: BasisFit, fits: Sequence[fit.Posterior]
) -> tuple[tuple[Learned, fit.Strength], tuple[Learned, Learned]]:
    """The prior of all frames, with what the old one counts for, and those of the two halves."""
    old, hyperprior = _known(layer)
    chosen = fit.adapt_prior(fits, old)
    middle = len(fits) // 2

    def learned(some: Sequence[fit.Posterior], prior: fit.Prior) -> Learned:
        m = len(prior.mean)
        betas = [post.beta.double() for post in some if post.points.n > m]
        beta = fit.fit_gamma(torch.stack(betas), m / 2) if len(betas) > 1 else hyperprior.beta
        return Learned(prior, fit.Hyperprior(hyperprior.alpha, beta))

    first, second = (
        learned(half, fit.adapt_prior(half, old, [chosen.strength]).prior)
        for half in (fits[:middle], fits[middle:])
    )
    return (learned(fits, chosen.prior), chosen.strength), (first, second)


def _look_crosswise(
    draw: learn.Draw, model: Completer, frames: Frames, halves: tuple[Learned, Learned]
) -> list[learn.Seen]:
    """Pixels of each half of the frames, with the prior of the other."""
    middle = len(frames) // 2
    parts = Picked(frames, range(middle)), Picked(frames, range(middle, len(frames)))
    found = []
    for part, other in zip(parts, reversed(halves), strict=True):
        _layer(model).set_prior(*other)
        found.append(learn.look(draw, model, part))
    return learn.join(*found)


def _layer(model: Completer) -> BasisFit:
    layer = model.networks[0].last
    assert isinstance(layer, BasisFit)
    return layer


def _known(layer: BasisFit) -> Learned:
    gammas = (fit.Gamma(*row.tolist()) for row in layer.hyperprior)
    return Learned(fit.Prior(layer.prior_mean, layer.prior_cov), fit.Hyperprior(*gammas))


def _as_trained(model: Completer, points: str | None) -> TrainConfig:
    """The points that the network saw in training and was fitted to."""
    names = ("input_points", "input_drop", "fit_points")
    known = {name: model.card.training[name] for name in names if name in model.card.training}
    if points is not None:
        known |= {"input_points": points, "fit_points": "same"}
    return TrainConfig(input="rgbd" if model.architecture.depth_input else "rgb", **known)


def run(
    name: str, source: Source, out: Path, held_back: int | None = None, points: str | None = None
) -> None:
    """Adapt a model to a data set's training frames, show what it brings, and write it."""
    find_folder(out.parent, "make it first")
    model = load(name)
    if not METHODS[model.architecture.method].prior:
        raise ValueError(
            f"{name} is a model of the method {model.architecture.method}, which has no prior to "
            "adapt; train it on your frames instead"
        )
    everything = source.open("train")
    count = len(everything) // 4 if held_back is None else held_back
    if len(everything) - count < FEWEST:
        raise ValueError(
            f"{len(everything)} frames less the {count} held back are too few to learn from; it "
            f"takes at least {FEWEST}, better 30 or more"
        )
    frames, held = hold_back(Remembered(everything), count)
    fabric = Fabric(accelerator="cuda" if torch.cuda.is_available() else "cpu", devices=1)
    model.to(fabric.device)
    before = measure(fabric, model, held, MEASURED, 0, apart=True)
    found = adapt(model, frames, fabric, points)
    after = measure(fabric, model, held, MEASURED, 0, apart=True)
    split = {"adapted": fingerprint(frames), "adapted_held_back": fingerprint(held)}
    found |= {"frames": len(frames), "before": before, "after": after}
    metrics = model.card.metrics | {"adapted": found}
    model.card = replace(model.card, split=model.card.split | split, metrics=metrics)
    model.save(out)
    print(f"learned from     {len(frames)} frames; the network is as it was")
    if count:
        print(f"{count} frames that were held back, before and after")
        print(table(before, after))
    print(f"model            {out}")


def table(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> str:
    """Figures of both models, side by side."""
    titles = {"mae": "MAE (m)", "rmse": "RMSE (m)", "nees": "NEES", "coverage_90": "in 90 %"}
    lines = [f"{'points':<8}" + "".join(f"{title:>18}" for title in titles.values())]
    for points, row in before.items():
        cells = [f"{row[name]:9.3f}{after[points][name]:9.3f}" for name in titles]
        lines.append(f"{points:<8}" + "".join(cells))
    return "\n".join(lines)
