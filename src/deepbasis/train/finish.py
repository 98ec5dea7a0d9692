# SPDX-License-Identifier: Apache-2.0
"""After the last step: the prior, the calibration, the figures, and the model's file."""

import torch

from deepbasis.calibrate import learn
from deepbasis.calibrate.familiarity import learn_familiarity
from deepbasis.calibrate.measure import coverage_spread, measure
from deepbasis.data.sample import Frames
from deepbasis.data.sources import Subset
from deepbasis.model import Card, Completer
from deepbasis.nets import Network
from deepbasis.train.checkpoint import State
from deepbasis.train.job import Job

# Points at which the figures in the model's file are measured.
MEASURED_POINTS = ("5%", "1%", "50", "0")


@torch.no_grad()
def finish(job: Job, network: Network, state: State) -> Completer:
    """Make the model of a finished training, and write it."""
    config = job.config
    model = Completer(job.architecture).to(job.fabric.device)
    model.network.load_state_dict(network.state_dict())
    points, seed = config.fit_points, config.seed
    learn.learn_prior(job.fabric, model.network, job.frames, points, seed=seed, epoch=config.epochs)
    found: dict[str, object] = {"losses": state.losses, "val_losses": state.val_losses}
    if state.evaluated:
        found["evaluated"] = state.evaluated
    frames = calibration_frames(job)
    found |= calibrate(job, model.network, frames)
    model.network.usual_size.store(size=torch.tensor(job.frames[0].image.shape[1:]))
    found["familiarity"] = learn_familiarity(
        job.fabric, model.network, job.frames, job.val_frames, seed=seed
    )
    patterns = list(dict.fromkeys([learn.mixed(points)[0], *MEASURED_POINTS]))
    found["validation"] = measure(job.fabric, model.network, frames, patterns, seed=seed)
    found["coverage_spread"] = coverage_spread(
        job.fabric, model.network, frames, patterns, seed=seed
    )
    split = {"train": job.settings["split"], "validation": job.settings["val_split"]}
    model.card = Card(job.settings, split, found)
    if job.fabric.is_global_zero:
        model.save(job.model)
    job.fabric.barrier()
    return model


def calibration_frames(job: Job) -> Frames:
    """The validation frames or, if there are none, some of the training frames."""
    frames = job.val_frames
    return frames if len(frames) else Subset(job.frames, range(min(32, len(job.frames))))


def calibrate(job: Job, network: Network, frames: Frames) -> dict[str, object]:
    """On validation frames, calibrate independent errors, find the kernel of correlated ones, and
    calibrate those. (Frames that the network knows give a kernel that does worse on others.)
    """
    layer = network.fit
    draw = learn.Draw(job.fabric, learn.mixed(job.config.fit_points), job.config.seed)
    learn.reset_calibration(layer)
    groups = learn.sample_pixels(draw, network, frames, "independent")
    found = learn.calibrate_paper(layer, groups[0])
    own = learn.own_points(draw, network, frames, "independent")
    found["independent"] = learn.calibrate(layer.error_model("independent"), groups, own)
    found |= learn.learn_kernel(draw, network, frames)
    groups = learn.sample_pixels(draw, network, frames, "correlated")
    own = learn.own_points(draw, network, frames, "correlated")
    return found | {"correlated": learn.calibrate(layer.error_model("correlated"), groups, own)}
