# SPDX-License-Identifier: Apache-2.0
"""Adapt a model to another camera or place with a few dozen frames; its network stays the same."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric

from deepbasis import fit, latent
from deepbasis.calibrate import learn
from deepbasis.calibrate.measure import pattern_of
from deepbasis.conformal import ConformalTable
from deepbasis.data.sample import Frames
from deepbasis.data.sources import Subset
from deepbasis.data.with_points import WithPoints
from deepbasis.layer import BasisFit, Errors
from deepbasis.nets import Network
from deepbasis.points import Points, distance_to_points


class Learned(NamedTuple):
    """A prior, and what is known of alpha and beta."""

    prior: fit.Prior
    hyperprior: fit.Hyperprior


@torch.no_grad()
def adapt(network: Network, frames: Frames, fabric: Fabric, points: str) -> dict[str, object]:
    """Learn prior, noise, kernel and calibration again from some frames; returns what was found.

    The variance is calibrated on each half of the frames with the prior of the other, so that it
    is right for frames that nothing was learned from.

    Args:
        network: whose fit is adapted, in place.
        frames: at least 8, better 30 or more.
        fabric: whose processes share the frames.
        points: of each frame, see `data.training.parse_points`.
    """
    layer = network.fit
    network.familiarity.forget()  # variances are calibrated without it
    (whole, strength), halves = learn_priors(layer, fit_all(fabric, network, frames, points))
    layer.set_prior(*whole)
    draw = learn.Draw(fabric, learn.mixed(points), unmeasured_only=True)
    found: dict[str, object] = {"strength": strength._asdict()}
    learn.reset_calibration(layer)
    groups = _sample_crosswise(draw, network, frames, halves, "independent")
    found |= learn.calibrate_paper(layer, groups[0])
    found["independent"] = learn.calibrate(layer.error_model("independent"), groups)
    layer.set_prior(*whole)
    found |= learn.learn_kernel(draw, network, frames, search=len(frames) >= learn.KERNEL_FRAMES)
    groups = _sample_crosswise(draw, network, frames, halves, "correlated")
    found["correlated"] = learn.calibrate(layer.error_model("correlated"), groups)
    layer.set_prior(*whole)
    return found


@torch.no_grad()
def learn_conformal(
    network: Network, frames: Frames, fabric: Fabric, patterns: Sequence[str], seed: int = 0
) -> ConformalTable:
    """Conformal intervals for a camera, from unmeasured pixels of frames with depth.

    Args:
        network: as it will be used.
        frames: that nothing was learned from; `conformal.FEWEST_GROUPS` or more.
        fabric: of one process.
        patterns: points that frames are predicted from, see `calibrate.measure.pattern_of`.
        seed: of the points, and of the pixels.
    """
    rng = np.random.default_rng(seed)
    scores, distances, group = [], [], []
    for index in range(len(frames)):
        for points in patterns:
            sample = WithPoints(frames, pattern_of(points), seed=seed)[index]
            image, depth, sparse = (fabric.to_device(part[None]) for part in sample[1:4])
            answer = network.predictor(image)(Points.from_maps(sparse))
            judged = latent.is_valid(depth) & ~latent.is_valid(sparse)
            half = answer.distribution.half_width(answer.prediction.var, latent.ONE_SIGMA)
            error = (latent.to_latent(depth) - answer.prediction.mean).abs()
            row, column = sample.sparse[0].nonzero(as_tuple=True)
            distance = distance_to_points(
                torch.stack([column, row], 1).double().numpy(), depth.shape[2:]
            )
            known = judged[0, 0].cpu().numpy()
            chosen = rng.permutation(int(known.sum()))[: learn.PIXELS]
            scores.append((error / half)[judged].double().cpu().numpy()[chosen])
            distances.append(distance[known].astype(np.float64)[chosen])
            group.append(np.full(len(chosen), index))
    columns = (np.concatenate(part) for part in (scores, distances, group))
    return ConformalTable.learn(*columns, narrows=True)


def fit_all(fabric: Fabric, network: Network, frames: Frames, points: str) -> list[fit.Posterior]:
    """Fits of all frames with the model's own prior, whatever the number of their points."""
    prior, hyperprior = _known(network.fit)
    found = [
        fit.evidence(seen.phi[0], seen.z[0], prior, hyperprior=hyperprior)
        for seen in learn.observe_frames(fabric, network, frames, points)
    ]
    if not any(post.points.n for post in found):
        raise ValueError(
            f"no frame has depth at the points that the model was trained with, {points!r}; check "
            "the frames, or pass others with --points"
        )
    return found


def learn_priors(
    layer: BasisFit, fits: Sequence[fit.Posterior]
) -> tuple[tuple[Learned, fit.Strength], tuple[Learned, Learned]]:
    """The prior of all frames, with the strength of the old one, and those of the two halves."""
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


def _sample_crosswise(
    draw: learn.Draw,
    network: Network,
    frames: Frames,
    halves: tuple[Learned, Learned],
    errors: Errors,
) -> list[learn.Sampled]:
    """Pixels of each half of the frames, with the prior of the other."""
    middle = len(frames) // 2
    parts = Subset(frames, range(middle)), Subset(frames, range(middle, len(frames)))
    found = []
    for part, other in zip(parts, reversed(halves), strict=True):
        network.fit.set_prior(*other)
        found.append(learn.sample_pixels(draw, network, part, errors))
    return learn.join(*found)


def _known(layer: BasisFit) -> Learned:
    beta = layer.error_model("independent").noise.value
    return Learned(layer.prior.value, fit.Hyperprior(layer.prior.alpha.value, beta))
