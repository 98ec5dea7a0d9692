# SPDX-License-Identifier: Apache-2.0
"""After the last step: choose members, learn prior and variance, measure, write the model."""

import torch
from torch import Tensor

from deepbasis.calibrate import learn
from deepbasis.calibrate.measure import measure
from deepbasis.data.tensors import load_tensors
from deepbasis.model import Card
from deepbasis.nets import DepthNetwork
from deepbasis.train.checkpoint import State
from deepbasis.train.finish import MEASURED_POINTS, calibration_frames
from deepbasis_paper.model import Ensemble
from deepbasis_paper.train.job import PaperJob

Trained = tuple[PaperJob, DepthNetwork, State]


@torch.no_grad()
def finish(job: PaperJob, trained: list[Trained]) -> Ensemble:
    """Make the model of finished trainings, and write it.

    Args:
        job: whose folder the model is written to.
        trained: the trainings of the method with their networks.
    """
    found: dict[str, object] = {
        "losses": [loss for _, _, state in trained for loss in state.losses],
        "val_losses": [loss for _, _, state in trained for loss in state.val_losses],
    }
    if evaluated := [epoch for _, _, state in trained for epoch in state.evaluated]:
        found["evaluated"] = evaluated
    job.fabric.barrier()  # snapshots of the first process are complete
    members = [network.state_dict() for _, network, _ in trained]
    if job.config.spec.cycles > 1:
        members, found["snapshot_losses"] = best_snapshots(job)
    model = Ensemble(job.architecture, len(members)).to(job.fabric.device)
    for member, state in zip(model.members, members, strict=True):
        member.load_state_dict(state)
    frames = calibration_frames(job)
    config, fabric = job.config, job.fabric
    mixed = learn.mixed(config.trained_points)
    if config.as_in_paper:
        found |= model.network.learn_as_in_paper(prior=config.spec.prior)
    else:
        if config.spec.prior:
            model.network.learn_prior(fabric, job.training_set(job.frames, config.epochs))
        found |= model.network.calibrate(learn.Draw(fabric, mixed, config.seed), frames)
    patterns = list(dict.fromkeys([mixed[0], *MEASURED_POINTS]))
    found["validation"] = measure(fabric, model, frames, patterns, seed=config.seed)
    split = {"train": job.settings["split"], "validation": job.settings["val_split"]}
    model.card = Card(job.settings, split, found)
    if job.fabric.is_global_zero:
        model.save(job.model)
    job.fabric.barrier()
    return model


def best_snapshots(job: PaperJob) -> tuple[list[dict[str, Tensor]], list[float]]:
    """The snapshots with the lowest losses on validation frames, and the losses of all."""
    spec = job.config.spec
    files = [load_tensors(job.snapshot(number)) for number in range(spec.cycles)]
    losses = [header["loss"] for _, header in files]
    # Of equal losses, the later snapshot: it has seen more.
    order = sorted(range(len(files)), key=lambda number: (losses[number], -number))
    return [files[number][0] for number in sorted(order[: spec.copies])], losses
