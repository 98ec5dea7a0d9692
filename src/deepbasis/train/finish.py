# SPDX-License-Identifier: Apache-2.0
"""After the last step: the prior, the calibration, the figures, and the model's file."""

from dataclasses import asdict

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import fit, latent
from deepbasis.data.points import WithPoints
from deepbasis.data.sample import Frames
from deepbasis.data.sources import Picked
from deepbasis.data.training import TrainingSet
from deepbasis.layer import BasisFit
from deepbasis.methods import METHODS
from deepbasis.model import Card, Completer, load_tensors
from deepbasis.nets.heads import Spread
from deepbasis.networks import Network
from deepbasis.shapes import Float
from deepbasis.train.checkpoint import State
from deepbasis.train.job import Job
from deepbasis.train.measure import gather_rows, measure, pattern_of, predict, share, some

# Points that calibration draws: many, where the noise matters, and few, where the model does.
MIXED_POINTS = ("5%", "1%", "200", "63", "20", "6", "0")
# Pixels of each prediction that calibration looks at.
PIXELS = 1000
# Where the figures in the model's file are taken.
MEASURED_POINTS = ("5%", "1%", "50", "0")
# Training frames that the kernel of local errors is learned from.
KERNEL_FRAMES = 36
# Pixels of each of them that it must foretell.
KERNEL_PIXELS = 500
# Length, colour and nugget that the search begins with.
KERNEL_START = (0.1, 0.25, 0.001)


@torch.no_grad()
def finish(job: Job, state: State) -> Completer:
    """Make the model of a training that is over, and write it."""
    copies = METHODS[job.config.method].copies
    order = sorted(range(len(state.members)), key=lambda number: (state.members[number], -number))
    best = order[:copies]  # of equals the later, which has seen more
    model = Completer(job.architecture, len(best)).to(job.fabric.device)
    for member, number in zip(model.members, sorted(best), strict=True):
        member.load_state_dict(load_tensors(job.member(number))[0])
    held = job.held if len(job.held) else Picked(job.frames, range(min(32, len(job.frames))))
    found: dict[str, object] = {"losses": state.losses, "held_back_losses": state.members}
    if state.watched:
        found["watched"] = state.watched
    network = model.networks[0]
    if isinstance(network.last, BasisFit):
        if METHODS[job.config.method].prior:
            learn_prior(job, network)
        found |= calibrate(job, model, network.last, held)
        if job.config.on_bases:
            found |= learn_local(job, model, held)
    elif isinstance(network.last, Spread):
        found |= learn_spread(job, model, network.last, held)
    model.assume(job.architecture.errors)
    found["held_back"] = {points: measure(job, model, held, points) for points in measured(job)}
    split = {"train": job.settings["split"], "held_back": job.settings["held_back_split"]}
    model.card = Card(job.settings, split, found)
    if job.fabric.is_global_zero:
        model.save(job.model)
    job.fabric.barrier()
    return model


def measured(job: Job) -> list[str]:
    """Patterns of the figures in the model's file."""
    return list(dict.fromkeys([trained_points(job), *MEASURED_POINTS]))


def mixed(job: Job) -> list[str]:
    """Patterns of calibration: few and many points, and those of training."""
    return list(dict.fromkeys([trained_points(job), *MIXED_POINTS]))


def learn_prior(job: Job, network: Network) -> None:
    """Fit every training frame once more, with the final network, and keep how the weights vary.

    The paper gathers them during the last epoch, while the network still moves and normalises each
    batch by itself; here it is the network that will be used.
    """
    config, layer = job.config, network.last
    assert isinstance(layer, BasisFit)
    frames = TrainingSet(
        job.frames, config.input_points, config.fit_points, config.input_drop,
        config.depth_input, config.seed, epoch=config.total_epochs,
    )  # fmt: skip
    network.bases.eval()
    layer.train()
    layer.gathered = []
    for index in share(len(frames), job.fabric):
        item = frames[index]
        image, sparse, *filled = (
            job.fabric.to_device(part[None])
            for part in (item.image, item.sparse, item.scaffold, item.valid)
        )
        layer.mean(network.features(image, sparse, *(filled if config.depth_input else ())), sparse)
    layer.gathered = [gather_sample(job.fabric, fit.WeightSample.merge(layer.gathered))]
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


def calibrate(job: Job, model: Completer, layer: BasisFit, held: Frames) -> dict[str, object]:
    """Calibrate independent errors on held-back frames: factors that make NEES 1, and the shape
    that is left then. The paper's factor and those of a Laplace's likelihood are noted, too.
    """
    layer.set_calibration()
    model.assume("independent")
    groups = mixed_rows(job, model, held)
    error, noise_var, model_var = torch.cat(groups).unbind(1)
    laplace = float(fit.laplace_factor(error, noise_var + model_var))
    found = {"two_term": fit.two_term(error, noise_var, model_var), "laplace_factor": laplace}
    error, _, model_var = rows(job, model, held, trained_points(job)).unbind(1)
    nees = float(fit.nees(error, model_var))
    noise, model_factor = factors = match(groups)
    layer.set_calibration(noise=noise, model=model_factor, nees=nees)
    tails = learn_tails(layer, groups, factors)
    return found | {"nees_factor": nees, "factors": factors, "tails": tails}


def learn_spread(job: Job, model: Completer, last: Spread, held: Frames) -> dict[str, object]:
    """Learn the variance of a network that gives none, on held-back frames: by its doubts at mixed
    point counts, or one number at the points of training.
    """
    last.numbers.copy_(torch.tensor([0.0, 1.0]))  # the std is the doubt itself
    groups = (
        mixed_rows(job, model, held)
        if last.doubts
        else [rows(job, model, held, trained_points(job))]
    )
    error, square, _ = torch.cat(groups).unbind(1)
    return {"spread": last.learn(error, square.sqrt())}


def learn_local(job: Job, model: Completer, held: Frames) -> dict[str, object]:
    """Find the kernel of local errors on training frames, and on held-back ones the factors that
    make NEES 1 and the shape that is left then.
    """
    layer = model.networks[0].last
    assert isinstance(layer, BasisFit)
    count = min(KERNEL_FRAMES, len(job.frames))
    some_frames = Picked(job.frames, [i * len(job.frames) // count for i in range(count)])
    prior = fit.Prior(layer.prior_mean, layer.prior_cov)
    alpha = fit.Hyperprior(alpha=fit.Gamma(*layer.hyperprior[0].tolist()))
    seen = [see(job, model, some_frames, i) for i in range(len(some_frames))]
    found = [
        fit.search_kernel(
            seen, prior, fit.Kernel(*KERNEL_START, smoothness), evaluations=40, hyperprior=alpha
        )
        for smoothness in (0.5, 1.5)
    ]
    kernel = min(found, key=lambda pair: pair[1])[0]
    news = [fit.local.whiten(kernel, *one[:4]) for one in seen if len(one.z) > len(prior.mean)]
    fits = [fit.evidence(n.phi, n.z, prior, n.weight, hyperprior=alpha) for n in news]
    betas = torch.stack([post.beta for post in fits]).double() if fits else torch.zeros(0)
    beta = fit.fit_gamma(betas, len(prior.mean) / 2) if len(betas) > 1 else fit.Gamma()
    layer.set_local(kernel, beta)
    model.assume("local")
    groups = mixed_rows(job, model, held)
    factors = match(groups)
    layer.set_local(kernel, beta, factors)
    tails = learn_tails(layer, groups, factors)
    return {
        "kernel": asdict(kernel), "local_factors": factors, "local_tails": tails,
        "kernel_surprise": {str(one.smoothness): nats for one, nats in found},
    }  # fmt: skip


def match(groups: list[Float[Tensor, "p 3"]]) -> tuple[float, float]:
    """Factors of noise and model variance that make NEES 1 at every point count."""
    columns = [group.unbind(1) for group in groups]
    return fit.match_nees([(error, noise, model) for error, noise, model in columns])


def learn_tails(
    layer: BasisFit, groups: list[Float[Tensor, "p 3"]], factors: tuple[float, float]
) -> tuple[float, float]:
    """Find the shape of the errors, as the layer takes them now, and store it."""
    error, noise_var, model_var = torch.cat(groups).unbind(1)
    noise_var, var = factors[0] * noise_var, factors[0] * noise_var + factors[1] * model_var
    dof, width = latent.learn_tails(error, var, noise_var / var)
    layer.set_tails(layer.errors, dof, width)
    return dof, width


def see(job: Job, model: Completer, frames: Frames, index: int) -> fit.Frame:
    """A frame's points, at one of the mixed counts, and some of the pixels between them."""
    patterns = mixed(job)
    pattern = pattern_of(patterns[index % len(patterns)])
    sample = WithPoints(frames, pattern, seed=job.config.seed)[index]
    image, sparse, depth = (
        job.fabric.to_device(part[None]) for part in (sample.image, sample.sparse, sample.depth)
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


def trained_points(job: Job) -> str:
    """The pattern that training saw; of a range, its upper end."""
    apart = job.config.fit_points != "same" and not job.config.depth_input
    points = job.config.fit_points if apart else job.config.input_points
    return points.rpartition("-")[2]


def rows(job: Job, model: Completer, held: Frames, points: str) -> Float[Tensor, "p 3"]:
    """Errors, noise and model variances of some pixels of all held-back frames."""
    parts = [some(one.rows, PIXELS) for one in predict(job, model, held, points)]
    return gather_rows(job.fabric, torch.cat(parts) if parts else torch.zeros(0, 3))


def mixed_rows(job: Job, model: Completer, held: Frames) -> list[Float[Tensor, "p 3"]]:
    """`rows` at each of the mixed point counts."""
    return [rows(job, model, held, points) for points in mixed(job)]
