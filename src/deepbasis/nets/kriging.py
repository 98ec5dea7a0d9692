# SPDX-License-Identifier: Apache-2.0
"""The loss that teaches a network its kernel: pixels between the points, predicted from these."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepbasis import fit, latent
from deepbasis.fit import Kernel, Prior, correlated
from deepbasis.fit.checks import FitPoints
from deepbasis.fit.neighbours import Surroundings, earlier
from deepbasis.layer import Observed
from deepbasis.shapes import Float

# Pixels of an image that the loss looks at.
PIXELS = 800
# Weight of the likelihood beside the L1 of log depth. An error of 3 % is usual.
LIKELIHOOD = 0.03
# Strength of the hyperprior of alpha, in weights; the running prior is approximate.
ALPHA = fit.Gamma(10.0, 10.0)


def unmeasured(
    depth: Float[Tensor, "b 1 h w"], sparse: Float[Tensor, "b 1 h w"]
) -> Float[Tensor, "b 1 h w"]:
    """Depth at some random pixels that are not points, 0 elsewhere."""
    others = latent.is_valid(depth) & ~latent.is_valid(sparse)
    lots = torch.rand_like(depth).masked_fill_(~others, -1).flatten(1)
    least = lots.topk(min(PIXELS, lots.shape[1]), 1).values[:, -1].clamp(min=0)
    chosen = (lots >= least[:, None]).view_as(depth) & others
    return torch.where(chosen, depth, 0)


def kriging_loss(
    observed: Observed, pixels: Observed, kernel: Kernel, prior: Prior
) -> Float[Tensor, "b"]:
    """L1 of log depth of some pixels of each image, predicted from its points, and their negative
    log likelihood under a Laplace with the variance of the fit times the optimal factor.

    The precisions are those that maximise the evidence, as in use, and are held constant.
    Differentiable in bases, embedding, amplitude and kernel. An image without points or pixels
    has the loss 0.
    """
    losses = []
    for i in range(len(observed.z)):
        points, asked = select(observed, i), select(pixels, i)
        if not len(points.z) or not len(asked.z):
            losses.append(observed.z.new_zeros(()))
            continue
        mean, var = predict(points, asked, kernel, prior)
        error, std = (asked.z - mean).abs() * asked.s, var.sqrt() * asked.s
        nats = (error / std).mean().log() + std.log().mean()
        losses.append((error.mean() + LIKELIHOOD * nats).to(observed.z.dtype))
    return torch.stack(losses)


@dataclass(frozen=True)
class ImagePlaces(FitPoints):
    """Points or pixels of one image, divided by their amplitude s."""

    x: Float[Tensor, "n f"]
    s: Float[Tensor, "n"]


def select(observed: Observed, image: int) -> ImagePlaces:
    """The points or pixels of one image."""
    used = observed.weight[image] > 0
    phi, z, weight = (part[image][used].double() for part in observed.by_amplitude)
    return ImagePlaces(phi, z, weight, observed.x[image][used], observed.s[image][used].double())


def predict(
    points: ImagePlaces, asked: ImagePlaces, kernel: Kernel, prior: Prior
) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"]]:
    """Mean and variance of the pixels asked for, given the points, both divided by amplitudes."""
    position = points.x[:, :2].detach()
    white = correlated.whiten_at(kernel, points.x, points, earlier(position, correlated.NEIGHBOURS))
    with torch.no_grad():
        found = fit.evidence(
            white.phi, white.z, prior, white.weight, hyperprior=fit.Hyperprior(alpha=ALPHA)
        )
    precisions = {"alpha": found.alpha, "beta": found.beta}
    mean, root = fit.posterior_moments(white.phi, white.z, prior, white.weight, **precisions)
    near = Surroundings(position).of(asked.x[:, :2].detach(), correlated.NEIGHBOURS)
    return correlated.predict_at(
        kernel, points.x, points, near, (mean, root, found.beta), (asked.x, asked.phi, asked.weight)
    )
