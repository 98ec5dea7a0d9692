# SPDX-License-Identifier: Apache-2.0
"""After the last step: the prior, the calibration, the figures, and the model's file."""

from dataclasses import asdict

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import fit
from deepbasis.data.points import WithPoints
from deepbasis.data.sample import Frames
from deepbasis.data.sources import Picked
from deepbasis.data.training import TrainingSet
from deepbasis.layer import BasisFit, Whitened
from deepbasis.methods import METHODS
from deepbasis.model import Card, Completer, Network, load_tensors
from deepbasis.shapes import Float
from deepbasis.train.checkpoint import State
from deepbasis.train.job import Job
from deepbasis.train.measure import gather_rows, measure, pattern_of, predict, share, some

# Points that calibration draws: many, where the noise matters, and few, where the model does.
MIXED_POINTS = ("5%", "1%", "200", "63", "20", "6")
# Pixels of each prediction that calibration looks at.
PIXELS = 1000
# Where the figures in the model's file are taken.
MEASURED_POINTS = ("5%", "1%", "50", "0")
# Training frames that the kernel of local errors is learned from.
KERNEL_FRAMES = 60


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
    network = model.networks[0]
    if isinstance(network.last, BasisFit):
        if METHODS[job.config.method].prior:
            learn_prior(job, network)
        found |= calibrate(job, model, network.last, held)
        found |= learn_local(job, model, held)
    model.assume(job.config.errors)
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
        config.input == "rgbd", config.seed, epoch=config.total_epochs,
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
        layer.mean(network.bases(image, *(filled if config.input == "rgbd" else ())), sparse)
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
    """Find the factors of the variance on held-back frames, and store them in the layer."""
    layer.set_calibration()
    model.assume("independent")
    error, noise_var, model_var = mixed_rows(job, model, held)
    noise, model_factor = fit.two_term(error, noise_var, model_var)
    laplace = float(fit.laplace_factor(error, noise_var + model_var))
    error, _, model_var = rows(job, model, held, trained_points(job)).unbind(1)
    nees = float(fit.nees(error, model_var))
    layer.set_calibration(noise=noise, model=model_factor, nees=nees)
    return {"two_term": [noise, model_factor], "nees_factor": nees, "laplace_factor": laplace}


def learn_local(job: Job, model: Completer, held: Frames) -> dict[str, object]:
    """Find the kernel of local errors on training frames, and its calibration on held-back ones."""
    layer = model.networks[0].last
    assert isinstance(layer, BasisFit)
    count = min(KERNEL_FRAMES, len(job.frames))
    some_frames = Picked(job.frames, [i * len(job.frames) // count for i in range(count)])
    prior = fit.Prior(layer.prior_mean, layer.prior_cov)
    seen = [see(job, model, some_frames, i) for i in range(len(some_frames))]
    alpha = fit.Hyperprior(alpha=fit.Gamma(*layer.hyperprior[0].tolist()))
    kernel = fit.learn_kernel(
        [fit.Frame(one.x[0], one.phi[0], one.z[0]) for one in seen], prior, hyperprior=alpha
    )
    layer.set_local(kernel)
    news = [fit.local.whiten(kernel, *one[:4]) for one in seen if one.z.shape[1] > len(prior.mean)]
    fits = [fit.evidence(n.phi, n.z, prior, n.weight, hyperprior=alpha) for n in news]
    betas = torch.cat([post.beta for post in fits]).double() if fits else torch.zeros(0)
    beta = fit.fit_gamma(betas, len(prior.mean) / 2) if len(betas) > 1 else fit.Gamma()
    layer.set_local(kernel, beta)
    model.assume("local")
    error, noise_var, model_var = mixed_rows(job, model, held)
    noise, model_factor = fit.two_term(error, noise_var, model_var)
    layer.set_local(kernel, beta, noise=noise, model=model_factor)
    return {"kernel": asdict(kernel), "local_two_term": [noise, model_factor]}


def see(job: Job, model: Completer, frames: Frames, index: int) -> Whitened:
    """A frame's points, at one of the mixed counts, with their bases and places."""
    patterns = mixed(job)
    pattern = pattern_of(patterns[index % len(patterns)])
    sample = WithPoints(frames, pattern, seed=job.config.seed)[index]
    image, sparse = (job.fabric.to_device(part[None]) for part in (sample.image, sample.sparse))
    network = model.networks[0]
    assert isinstance(network.last, BasisFit)
    bases = network.bases(image, *model.fill(sparse))
    guide = image.to(sparse.dtype) / 255
    return network.last.whiten(*network.last.read(bases, sparse), list(guide))


def trained_points(job: Job) -> str:
    """The pattern that training saw; of a range, its upper end."""
    apart = job.config.fit_points != "same" and job.config.input == "rgb"
    points = job.config.fit_points if apart else job.config.input_points
    return points.rpartition("-")[2]


def rows(job: Job, model: Completer, held: Frames, points: str) -> Float[Tensor, "p 3"]:
    """Errors, noise and model variances of some pixels of all held-back frames."""
    parts = [some(one.rows, PIXELS) for one in predict(job, model, held, points)]
    return gather_rows(job.fabric, torch.cat(parts) if parts else torch.zeros(0, 3))


def mixed_rows(job: Job, model: Completer, held: Frames) -> tuple[Tensor, ...]:
    """The columns of `rows` at all mixed point counts."""
    return torch.cat([rows(job, model, held, points) for points in mixed(job)]).unbind(1)
