# SPDX-License-Identifier: Apache-2.0
"""Adapt a model to another camera or place with a few dozen frames; its network stays the same."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from lightning_fabric import Fabric

from deepbasis import fit
from deepbasis.calibrate import learn
from deepbasis.data.sample import Frames
from deepbasis.data.sources import Subset
from deepbasis.layer import BasisFit, Errors
from deepbasis.nets import Network


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
