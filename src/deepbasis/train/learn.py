# SPDX-License-Identifier: Apache-2.0
"""What a network that no longer changes must learn to be used: prior, calibration, local errors."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import fit, latent
from deepbasis.counts import Tail
from deepbasis.data.points import WithPoints
from deepbasis.data.sample import Frames
from deepbasis.data.sources import evenly
from deepbasis.data.training import TrainingSet
from deepbasis.layer import BasisFit
from deepbasis.model import Completer
from deepbasis.networks import Network
from deepbasis.shapes import Float
from deepbasis.train.config import TrainConfig
from deepbasis.train.measure import gather_rows, pattern_of, predict, share, some

# Points that calibration draws: many, where the noise matters, and few, where the model does.
MIXED_POINTS = ("5%", "1%", "200", "63", "20", "6", "0")
# Pixels of each prediction that calibration looks at.
PIXELS = 1000
# Frames that the kernel of local errors is learned from, and at how many of the patterns: those
# with the most points, since far points tell nothing of it.
KERNEL_FRAMES, KERNEL_PATTERNS = 36, 5
# Pixels of each of them that it must foretell.
KERNEL_PIXELS = 500
# Length, colour and nugget that the search begins with.
KERNEL_START = (0.1, 0.15, 0.0003)

# Fewer pixels than these tell nothing of a shape.
FEWEST_PIXELS = 200
# Of a fit without errors.
LEAST_FACTOR = 1e-4


class Draw(NamedTuple):
    """Points that the frames are seen at, and who looks at them."""

    fabric: Fabric
    patterns: Sequence[str]
    """The first is that of training."""
    seed: int = 0
    apart: bool = False
    """Judge no pixel that is a point: where depth is sparse, there may be hardly another."""


class Seen(NamedTuple):
    """Some pixels of frames with about the same number of points."""

    rows: Float[Tensor, "_ 3"]
    """Error, noise and model variance."""
    points: Float[Tensor, "_"]
    """Their number in each frame."""


def trained_points(config: TrainConfig) -> str:
    """The pattern that training saw; of a range, its upper end."""
    apart = config.fit_points != "same" and not config.depth_input
    points = config.fit_points if apart else config.input_points
    return points.rpartition("-")[2]


def mixed(config: TrainConfig) -> list[str]:
    """Patterns of calibration: those of training, and few and many points."""
    return list(dict.fromkeys([trained_points(config), *MIXED_POINTS]))


def fitted(
    fabric: Fabric, network: Network, frames: Frames, config: TrainConfig, epoch: int
) -> Iterator[tuple[list[Tensor], Float[Tensor, "1 1 h w"]]]:
    """Bases and points of this process's share of some frames, as training draws them."""
    items = TrainingSet(
        frames, config.input_points, config.fit_points, config.input_drop,
        config.depth_input, config.seed, epoch=epoch,
    )  # fmt: skip
    network.bases.eval()
    for index in share(len(items), fabric):
        item = items[index]
        image, sparse, *filled = (
            fabric.to_device(part[None])
            for part in (item.image, item.sparse, item.scaffold, item.valid)
        )
        yield network.features(image, sparse, *(filled if config.depth_input else ())), sparse


def learn_prior(fabric: Fabric, network: Network, frames: Frames, config: TrainConfig) -> None:
    """Fit every training frame once more, with the final network, and keep how the weights vary.

    The paper gathers them during the last epoch, while the network still moves and normalises each
    batch by itself; here it is the network that will be used.
    """
    layer = network.last
    assert isinstance(layer, BasisFit)
    layer.train()
    layer.gathered = []
    for bases, sparse in fitted(fabric, network, frames, config, config.total_epochs):
        layer.mean(bases, sparse)
    layer.gathered = [gather_sample(fabric, fit.WeightSample.merge(layer.gathered))]
    layer.learn_prior()
    layer.gathered = None
    layer.eval()


def gather_sample(fabric: Fabric, sample: fit.WeightSample) -> fit.WeightSample:
    """The weights that all processes fitted."""
    return fit.WeightSample(
        gather_rows(fabric, sample.weights),
        gather_rows(fabric, sample.beta),
        fabric.all_reduce(sample.noise_cov, reduce_op="sum"),  # type: ignore[arg-type]
    )


def look(draw: Draw, model: Completer, frames: Frames) -> list[Seen]:
    """Some pixels of all frames, at each of the patterns."""
    device = draw.fabric.device
    none = Seen(torch.zeros(0, 3, device=device), torch.zeros(0, device=device))
    seen = [
        [Seen(some(one.rows, PIXELS), one.points) for one in frame]
        for frame in predict(draw.fabric, model, frames, draw.patterns, draw.seed, draw.apart)
    ]
    groups = join([none] * len(draw.patterns), *seen)
    return [Seen(*(gather_rows(draw.fabric, part) for part in group)) for group in groups]


def join(*parts: Sequence[Seen]) -> list[Seen]:
    """Pixels of several frames or parts of them, each at the same patterns."""
    groups = zip(*parts, strict=True)
    return [Seen(*(torch.cat(values) for values in zip(*group, strict=True))) for group in groups]


def forget_calibration(layer: BasisFit) -> None:
    """Take all variances as the fit gives them, so that `look` sees those; the paper's stays."""
    layer.set_calibration(nees=float(layer.calibration[2]))
    layer.set_tails("independent", [])
    layer.set_tails("local", [])


def calibrate(layer: BasisFit, groups: Sequence[Seen]) -> dict[str, object]:
    """Calibrate independent errors by what uncalibrated ones were: factors that make NEES 1, and
    the shape that is left then. The paper's factor and those of a Laplace's likelihood are noted.
    """
    error, noise_var, model_var = torch.cat([group.rows for group in groups]).unbind(1)
    laplace = float(fit.laplace_factor(error, noise_var + model_var))
    found = {"two_term": fit.two_term(error, noise_var, model_var), "laplace_factor": laplace}
    trained, _, trained_var = groups[0].rows.unbind(1)
    nees = float(fit.nees(trained, trained_var) if len(trained) else layer.calibration[2])
    noise, model_factor = factors = match(groups)
    layer.set_calibration(noise=noise, model=model_factor, nees=nees)
    tails = learn_tails(layer, groups, factors)
    return found | {"nees_factor": nees, "factors": factors, "tails": tails}


def learn_kernel(
    draw: Draw, model: Completer, frames: Frames, *, search: bool = True
) -> dict[str, object]:
    """Find the kernel of local errors on some frames, or keep it, and the spread of its noise."""
    layer = model.networks[0].last
    assert isinstance(layer, BasisFit)
    some_frames = evenly(frames, KERNEL_FRAMES)
    prior = fit.Prior(layer.prior_mean, layer.prior_cov)
    alpha = fit.Hyperprior(alpha=fit.Gamma(*layer.hyperprior[0].tolist()))
    seen = [see(draw, model, some_frames, i) for i in range(len(some_frames))]
    judged = [one for one in seen if one.pixels is not None and len(one.pixels.z)]
    found = [
        fit.search_kernel(
            judged, prior, fit.Kernel(*KERNEL_START, smoothness), evaluations=50, hyperprior=alpha
        )
        for smoothness in ((0.5, 1.5) if search and judged else ())
    ]
    kernel = min(found, key=lambda pair: pair[1])[0] if found else layer.kernel
    news = [fit.local.whiten(kernel, *one[:4]) for one in seen if len(one.z) > len(prior.mean)]
    fits = [fit.evidence(n.phi, n.z, prior, n.weight, hyperprior=alpha) for n in news]
    betas = torch.stack([post.beta for post in fits]).double() if fits else torch.zeros(0)
    known = fit.Gamma(*layer.local[4:6].tolist())
    layer.set_local(kernel, fit.fit_gamma(betas, len(prior.mean) / 2) if len(betas) > 1 else known)
    surprise = {str(one.smoothness): nats for one, nats in found}
    return {"kernel": asdict(kernel), "kernel_surprise": surprise}


def calibrate_local(layer: BasisFit, groups: Sequence[Seen]) -> dict[str, object]:
    """The same as `calibrate` for local errors."""
    factors = match(groups)
    layer.set_local(layer.kernel, fit.Gamma(*layer.local[4:6].tolist()), factors)
    return {"local_factors": factors, "local_tails": learn_tails(layer, groups, factors)}


def match(groups: Sequence[Seen]) -> tuple[float, float]:
    """Factors of noise and model variance that bring NEES near 1 at every point count."""
    columns = [group.rows.unbind(1) for group in groups if len(group.rows)]
    return fit.match_nees([(error, noise, model) for error, noise, model in columns])


def learn_tails(
    layer: BasisFit, groups: Sequence[Seen], factors: tuple[float, float]
) -> list[Tail]:
    """At each point count, find what two factors for all leave to be put right, and the shape of
    the errors, as the layer takes them now; and store it.
    """
    found = {}
    for rows, points in groups:
        if len(rows) < FEWEST_PIXELS:
            continue
        error, noise_var, model_var = rows.unbind(1)
        noise_var, var = factors[0] * noise_var, factors[0] * noise_var + factors[1] * model_var
        factor = fit.nees(error, var).clamp(min=LEAST_FACTOR)
        shape = latent.learn_tails(error, factor * var, noise_var / var)
        count = float(points.mean())
        found[count] = Tail(count, float(factor), *shape)
    tails = sorted(found.values())
    layer.set_tails(layer.errors, tails)
    return tails


def see(draw: Draw, model: Completer, frames: Frames, index: int) -> fit.Frame:
    """A frame's points, at one of the patterns, and some of the pixels between them."""
    patterns = draw.patterns[:KERNEL_PATTERNS]
    pattern = pattern_of(patterns[index % len(patterns)])
    sample = WithPoints(frames, pattern, seed=draw.seed)[index]
    image, sparse, depth = (
        draw.fabric.to_device(part[None]) for part in (sample.image, sample.sparse, sample.depth)
    )
    network = model.networks[0]
    assert isinstance(network.last, BasisFit)
    bases = network.bases(image, *model.fill(sparse))
    others = depth * ~latent.measured(sparse)
    where = some(latent.measured(others[0, 0]).nonzero(), KERNEL_PIXELS)
    asked = torch.zeros_like(depth)
    asked[0, 0, *where.T] = others[0, 0, *where.T]
    guide = list(image.to(sparse.dtype) / 255)
    points, pixels = (
        network.last.whiten(*network.last.read(bases, part), guide) for part in (sparse, asked)
    )
    asked_for = fit.Frame(pixels.x[0], pixels.phi[0], pixels.z[0])
    return fit.Frame(points.x[0], points.phi[0], points.z[0], points.weight[0], asked_for)
