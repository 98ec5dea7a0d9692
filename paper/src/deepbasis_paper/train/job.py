# SPDX-License-Identifier: Apache-2.0
"""The paper's trainings: their networks, frames, learning rates and snapshots."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from deepbasis.data.sample import PAPER, Augmentation, Frames, seeded
from deepbasis.data.sources import Subset
from deepbasis.data.tensors import save_tensors
from deepbasis.layer import Errors
from deepbasis.nets import DepthNetwork, load_encoder_weights
from deepbasis.train.job import Job, make_job, mean_log_depth
from deepbasis.train.loop import validation_loss
from deepbasis_paper.config import PaperConfig
from deepbasis_paper.data.training import PaperTrainingSet
from deepbasis_paper.model import load
from deepbasis_paper.networks import PaperArchitecture, PaperNetwork, new_network
from deepbasis_paper.networks.architecture import Input


@dataclass(frozen=True)
class PaperJob(Job):
    """One training of a method."""

    program: ClassVar[str] = "deepbasis-paper"
    config: PaperConfig

    def snapshot(self, number: int) -> Path:
        """File of one network of a snapshot ensemble."""
        return self.config.out / f"snapshot-{number}.safetensors"

    @property
    def architecture(self) -> PaperArchitecture:
        """Of the networks."""
        config = self.config
        errors: Errors = config.errors if config.on_bases else "independent"
        if config.as_in_paper:
            errors = "paper"
        depth_input: Input = "rgbd" if config.depth_input else "rgb"
        return PaperArchitecture(
            config.encoder,
            config.normalisation,
            errors,
            method=config.method,
            input=depth_input,
            width=config.width,
        )

    @property
    def loss_options(self) -> dict[str, Any]:
        """Options of the network's loss."""
        config = self.config
        few = {"few_points_weight": config.few_points_weight}
        fits = config.spec.fits and config.on_bases
        return {"mixed_precision": config.mixed_precision} | (few if fits else {})

    @property
    def cycle(self) -> int:
        """Steps from one snapshot to the next; the last cycle may be shorter."""
        return math.ceil(self.steps / self.config.spec.cycles)

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        config = self.config
        if config.spec.cycles > 1:
            # Loshchilov and Hutter, 2017, as Huang et al., 2017, write it; their t starts at 1.
            return config.lr / 2 * (math.cos(math.pi * (step % self.cycle) / self.cycle) + 1)
        if config.schedule == "halve":
            return config.lr * 0.5 ** (step // self.steps_per_epoch // config.halve_every)
        return super().rate(step)

    def training_set(
        self, frames: Frames, epoch: int = 0, augmentation: Augmentation = PAPER
    ) -> Any:
        """Frames as the training draws them in an epoch; only training withholds input points."""
        config, trained_on = self.config, frames is self.frames
        if trained_on and config.training:
            order = torch.randperm(len(frames), generator=seeded(config.seed, config.training))
            frames = Subset(frames, order.tolist())
        return PaperTrainingSet(
            frames, config.input_points, config.fit_points, config.input_drop if trained_on else 0,
            config.depth_input, config.seed, epoch, augmentation,
        )  # fmt: skip

    def new_network(self) -> PaperNetwork:
        """A new network, the same for the same seed and number of the training."""
        config = self.config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded(config.seed, config.training).initial_seed())
            network = new_network(self.architecture)
        if config.encoder_weights is not None:
            load_encoder_weights(part(network, "bases.encoder"), config.encoder_weights)
        if not (config.on_bases and config.spec.fits):
            network.set_start(mean_log_depth(self.frames))
        if config.init_from is not None:
            start_from(network, config.init_from)
        return network

    def after_step(self, step: int, network: DepthNetwork) -> None:
        """Write a snapshot at the end of each cycle, with its loss on the validation frames."""
        if self.config.spec.cycles == 1 or (step % self.cycle and step < self.steps):
            return
        loss = validation_loss(self, network) if len(self.val_frames) else math.inf
        if self.fabric.is_global_zero:
            number = math.ceil(step / self.cycle) - 1
            save_tensors(self.snapshot(number), network.state_dict(), {"loss": loss})


def make_jobs(config: PaperConfig) -> list[PaperJob]:
    """The trainings of a method, which share processes and frames; those of bootstrap, which has
    several, are in folders of their own.
    """
    count = config.spec.trainings
    if count == 1:
        return [_made(config)]
    folders = [config.out / f"training-{number}" for number in range(count)]
    first = _made(replace(config, out=folders[0]))
    jobs = [first]
    for number, folder in enumerate(folders[1:], 1):
        folder.mkdir(parents=True, exist_ok=True)
        there = (folder / first.checkpoint.name).exists()
        own = replace(config, out=folder, training=number, resume=there)
        changed = {"out": str(folder), "training": number}
        jobs.append(replace(first, config=own, settings=first.settings | changed))
    return jobs


def _made(config: PaperConfig) -> PaperJob:
    job = make_job(config, PaperJob)
    assert isinstance(job, PaperJob)
    return job


def start_from(network: PaperNetwork, path: Path) -> None:
    """Copy another model's basis network."""
    other = load(path)
    try:
        state = part(other, "network.bases").state_dict()
        part(network, "bases").load_state_dict(state)
    except (AttributeError, RuntimeError):
        raise ValueError(
            f"--init-from {path} holds another network: {other.architecture}; choose the same "
            "encoder and input"
        ) from None


def part(module: torch.nn.Module, name: str) -> Any:
    """A part of a module, by its path."""
    for word in name.split("."):
        module = getattr(module, word)
    return module
