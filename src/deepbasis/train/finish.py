# SPDX-License-Identifier: Apache-2.0
"""After the last step: the prior, the calibration, the figures, and the model's file."""

import torch

from deepbasis.data.sample import Frames
from deepbasis.data.sources import Picked
from deepbasis.layer import BasisFit
from deepbasis.methods import METHODS
from deepbasis.model import Card, Completer, load_tensors
from deepbasis.nets.heads import Spread
from deepbasis.train import learn
from deepbasis.train.checkpoint import State
from deepbasis.train.job import Job
from deepbasis.train.measure import measure

# Where the figures in the model's file are taken.
MEASURED_POINTS = ("5%", "1%", "50", "0")


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
            learn.learn_prior(job.fabric, network, job.frames, job.config)
        found |= calibrate(job, model, network.last, held)
    elif isinstance(network.last, Spread):
        found |= learn_spread(job, model, network.last, held)
    model.assume(job.architecture.errors)
    points = dict.fromkeys([learn.trained_points(job.config), *MEASURED_POINTS])
    found["held_back"] = measure(job.fabric, model, held, list(points), job.config.seed)
    split = {"train": job.settings["split"], "held_back": job.settings["held_back_split"]}
    model.card = Card(job.settings, split, found)
    if job.fabric.is_global_zero:
        model.save(job.model)
    job.fabric.barrier()
    return model


def calibrate(job: Job, model: Completer, layer: BasisFit, held: Frames) -> dict[str, object]:
    """On held-back frames, calibrate independent errors, find the kernel of local ones, and
    calibrate those. (Frames that the network knows give a kernel that does worse on others.)
    """
    draw = learn.Draw(job.fabric, learn.mixed(job.config), job.config.seed)
    learn.forget_calibration(layer)
    model.assume("independent")
    found = learn.calibrate(layer, learn.look(draw, model, held))
    if not job.config.on_bases:
        return found
    found |= learn.learn_kernel(draw, model, held)
    model.assume("local")
    return found | learn.calibrate_local(layer, learn.look(draw, model, held))


def learn_spread(job: Job, model: Completer, last: Spread, held: Frames) -> dict[str, object]:
    """Learn the variance of a network that gives none, on held-back frames: by its doubts at mixed
    point counts, or one number at the points of training.
    """
    last.numbers.copy_(torch.tensor([0.0, 1.0]))  # the std is the doubt itself
    patterns = learn.mixed(job.config) if last.doubts else [learn.trained_points(job.config)]
    groups = learn.look(learn.Draw(job.fabric, patterns, job.config.seed), model, held)
    error, square, _ = torch.cat([group.rows for group in groups]).unbind(1)
    return {"spread": last.learn(error, square.sqrt())}
