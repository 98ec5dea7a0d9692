# SPDX-License-Identifier: Apache-2.0
"""After the last step: the prior, the calibration, the figures, and the model's file."""

from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import fit, latent, metrics
from deepbasis.data.points import WithPoints
from deepbasis.data.sample import Frames, seeded
from deepbasis.data.sources import Picked
from deepbasis.data.training import TrainingSet
from deepbasis.layer import BasisFit, Prediction
from deepbasis.methods import METHODS
from deepbasis.model import Card, Completer, Network, load_tensors
from deepbasis.shapes import Float
from deepbasis.sparse import parse
from deepbasis.train.checkpoint import State
from deepbasis.train.job import Job

# Points that calibration draws: many, where the noise matters, and few, where the model does.
MIXED_POINTS = ("5%", "1%", "200", "63", "20", "6")
# Pixels of each prediction that calibration looks at.
PIXELS = 1000
# Where the figures in the model's file are taken.
MEASURED_POINTS = ("5%", "1%", "50", "0")
LEVEL = 0.9


@torch.no_grad()
def finish(job: Job, state: State) -> Completer:
    """Make the model of a training that is over, and write it."""
    copies = METHODS[job.config.method].copies
    best = sorted(range(len(state.members)), key=lambda number: state.members[number])[:copies]
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
    found["held_back"] = {points: measure(job, model, held, points) for points in MEASURED_POINTS}
    split = {"train": job.settings["split"], "held_back": job.settings["held_back_split"]}
    model.card = Card(job.settings, split, found)
    if job.fabric.is_global_zero:
        model.save(job.model)
    job.fabric.barrier()
    return model


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


def share(count: int, fabric: Fabric) -> range:
    """Numbers of the frames that this process looks at."""
    return range(fabric.global_rank, count, fabric.world_size)


def gather_sample(fabric: Fabric, sample: fit.WeightSample) -> fit.WeightSample:
    """The weights that all processes fitted."""
    return fit.WeightSample(
        gather_rows(fabric, sample.weights),
        gather_rows(fabric, sample.beta),
        fabric.all_reduce(sample.noise_cov, reduce_op="sum"),  # type: ignore[arg-type]
    )


def gather_rows(fabric: Fabric, rows: Tensor) -> Tensor:
    """Rows of all processes, one process after the other; they may differ in number."""
    if fabric.world_size == 1:
        return rows
    counts = [int(n) for n in fabric.all_gather(torch.tensor([len(rows)]))]
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = fabric.all_gather(padded)
    assert isinstance(parts, Tensor)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


@dataclass(frozen=True)
class Predicted:
    """Errors and variances of log depth at the known pixels of one frame."""

    prediction: Prediction
    depth: Float[Tensor, "1 1 h w"]

    @property
    def rows(self) -> Float[Tensor, "p 3"]:
        """Error, noise variance and model variance."""
        known = latent.measured(self.depth)
        mean, model_var, noise_var = (part[known] for part in self.prediction)
        error = latent.to_latent(self.depth[known]) - mean
        return torch.stack([error, noise_var, model_var], 1)


def predict(job: Job, model: Completer, frames: Frames, points: str) -> list[Predicted]:
    """Predict this process's share of some frames from one pattern of points."""
    pattern = None if points == "sensor" else parse(points)
    frames = WithPoints(frames, pattern, seed=job.config.seed)
    found = []
    for index in share(len(frames), job.fabric):
        image, depth, sparse = (job.fabric.to_device(part[None]) for part in frames[index][1:4])
        found.append(Predicted(model(image, sparse), depth))
    return found


def calibrate(
    job: Job, model: Completer, layer: BasisFit, held: Frames
) -> dict[str, float | list[float]]:
    """Find the factors of the variance on held-back frames, and store them in the layer."""
    trained_with = job.config.input_points
    if job.config.fit_points != "same" and job.config.input == "rgb":
        trained_with = job.config.fit_points
    if "-" in trained_with:  # a range: its upper end
        trained_with = trained_with.split("-")[1]
    layer.set_calibration()

    def rows(points: str) -> Tensor:
        parts = [some(p.rows, PIXELS) for p in predict(job, model, held, points)]
        return gather_rows(job.fabric, torch.cat(parts) if parts else torch.zeros(0, 3))

    error, noise_var, model_var = torch.cat([rows(points) for points in MIXED_POINTS]).unbind(1)
    noise, model_factor = fit.two_term(error, noise_var, model_var)
    laplace = float(fit.laplace_factor(error, noise_var + model_var))
    error, _, model_var = rows(trained_with).unbind(1)
    nees = float(fit.nees(error, model_var))
    layer.set_calibration(noise=noise, model=model_factor, nees=nees)
    return {"two_term": [noise, model_factor], "nees_factor": nees, "laplace_factor": laplace}


def some(rows: Tensor, most: int) -> Tensor:
    """A random part of the rows, the same every time."""
    return rows[torch.randperm(len(rows), generator=seeded(0))[:most].to(rows.device)]


def measure(job: Job, model: Completer, held: Frames, points: str) -> dict[str, float]:
    """Mean over frames of error, consistency and coverage."""
    rows = []
    for one in predict(job, model, held, points):
        mean, var = one.prediction.mean, one.prediction.model_var + one.prediction.noise_var
        low, high = latent.interval(mean, var, LEVEL)
        depth = latent.to_depth(mean)
        error, noise_var, model_var = one.rows.unbind(1)
        rows.append([
            metrics.mae(depth, one.depth), metrics.rmse(depth, one.depth),
            float(fit.nees(error, noise_var + model_var)),
            metrics.coverage(low, high, one.depth),
        ])  # fmt: skip
    means = gather_rows(job.fabric, torch.tensor(rows).view(-1, 4)).mean(0).tolist()
    return dict(zip(("mae", "rmse", "nees", "coverage_90"), means, strict=True))
