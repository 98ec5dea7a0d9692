# SPDX-License-Identifier: Apache-2.0
"""One training with all it needs: processes, settings, frames and files."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from deepbasis import latent
from deepbasis.data.sample import Frames, seeded
from deepbasis.data.sources import Joined, Remembered, Source, evenly, fingerprint, hold_back
from deepbasis.layer import BasisFit
from deepbasis.methods import METHODS
from deepbasis.model import Completer, load_tensors
from deepbasis.nets import BasisNet, load_encoder_weights
from deepbasis.networks import Architecture, Network, new_network
from deepbasis.train.config import TrainConfig
from deepbasis.train.schedule import Schedule

# Frames whose mean log depth is where a convolution's prediction starts.
START_FRAMES = 50


@dataclass(frozen=True)
class Job:
    """What does not change during a training."""

    fabric: Fabric
    config: TrainConfig
    schedule: Schedule
    frames: Frames
    held: Frames
    watched: tuple[Frames, Frames] | None
    """Training and test frames whose RMSE is measured after each epoch, if wanted."""
    settings: dict[str, Any]
    """The configuration as JSON, with the fingerprint of the frames."""

    @property
    def checkpoint(self) -> Path:
        """File to go on from."""
        return self.config.out / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        """File to use in the end."""
        return self.config.out / "model.safetensors"

    def member(self, number: int) -> Path:
        """File of one network of an ensemble."""
        return self.config.out / f"member-{number}.safetensors"

    @property
    def architecture(self) -> Architecture:
        """Of the networks."""
        config = self.config
        errors = config.errors if config.on_bases else "independent"
        return Architecture(
            config.method, config.encoder, config.depth_input, config.normalisation, errors,
            config.width,
        )  # fmt: skip

    def last_good(self) -> str:
        """What a user who is told of a failure can go back to."""
        if not self.checkpoint.exists():
            return "no checkpoint was written yet"
        step = load_tensors(self.checkpoint)[1]["state"]["step"]
        return f"{self.checkpoint} holds step {step}"


def make_job(config: TrainConfig) -> Job:
    """Start the processes, open the frames and look whether all fits together."""
    config.check()
    processes = config.devices * config.nodes
    found = int(os.environ.get("WORLD_SIZE", processes))
    if found != processes:
        raise ValueError(
            f"torchrun started {found} processes, but --devices {config.devices} x --nodes "
            f"{config.nodes} are {processes}; make them agree"
        )
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(
        accelerator=auto if config.accelerator == "auto" else config.accelerator,
        strategy="ddp" if processes > 1 else "auto",
        devices=config.devices,
        num_nodes=config.nodes,
    )
    fabric.launch()
    _check_folder(config, fabric)
    frames, held = _open_frames(config)
    watched = _open_watched(config, frames)
    in_a_step = config.batch * config.accumulate * fabric.world_size
    if len(frames) < in_a_step:
        raise ValueError(
            f"{len(frames)} frames are fewer than a step takes: --batch {config.batch} x "
            f"--accumulate {config.accumulate} x {fabric.world_size} processes"
        )
    config.out.mkdir(parents=True, exist_ok=True)
    settings = json.loads(json.dumps(asdict(config), default=str))
    settings |= {"split": fingerprint(frames), "held_back_split": fingerprint(held)}
    settings["frames_in_a_step"] = in_a_step
    schedule = Schedule(config, len(frames) // in_a_step)
    return Job(fabric, config, schedule, frames, held, watched, settings)


def make_network(job: Job, training: int) -> Network:
    """A new network, the same for the same seed and number of training, as `train` starts it."""
    config = job.config
    seed = seeded(config.seed, training).initial_seed()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = new_network(job.architecture)
    if config.encoder_weights is not None:
        assert isinstance(network.bases, BasisNet)
        load_encoder_weights(network.bases.encoder, config.encoder_weights)
    if not METHODS[config.method].fits or not config.on_bases:
        network.set_start(_mean_log_depth(job.frames))
    if config.init is not None:
        _start_from(network, config.init)
    return network.to(job.fabric.device)


def _start_from(network: Network, path: Path) -> None:
    """Take over another model's basis network, and its kernel of local errors."""
    other = Completer.load(path)
    try:
        network.bases.load_state_dict(other.networks[0].bases.state_dict())
    except RuntimeError:
        raise ValueError(
            f"--init {path} holds another network: {other.architecture}; choose the same encoder "
            "and input"
        ) from None
    if isinstance(network.last, BasisFit) and isinstance(other.networks[0].last, BasisFit):
        network.last.local.copy_(other.networks[0].last.local)


def _check_folder(config: TrainConfig, fabric: Fabric) -> None:
    there = (config.out / "checkpoint.safetensors").exists()
    if there and not config.resume:
        raise ValueError(
            f"--out {config.out} holds a training already; go on with --resume, or name another "
            "folder"
        )
    if config.resume and not there:
        raise ValueError(f"--resume: {config.out} holds no checkpoint to go on from")
    if fabric.is_global_zero:
        for part in config.out.glob(".*.part"):  # of a training that was killed while it wrote
            part.unlink(missing_ok=True)
    fabric.barrier()


def _open_frames(config: TrainConfig) -> tuple[Frames, Frames]:
    kept, held = hold_back(_remembered(_source(config).open("train"), config), config.held_back)
    if config.also is None:
        return kept, held
    height, width = kept[0].image.shape[1:]
    more = Source(config.also, None, config.also_frames, (height, width), seed=config.seed)
    return Joined(kept, _remembered(more.open("train"), config)), held


def _source(config: TrainConfig) -> Source:
    return Source(
        config.data, config.root, config.frames, config.size, config.halvings, config.seed
    )


def _open_watched(config: TrainConfig, frames: Frames) -> tuple[Frames, Frames] | None:
    """As many training as test frames, evenly spread."""
    if config.watch == 0:
        return None
    test = evenly(_source(config).open("test"), config.watch)
    return evenly(frames, config.watch), _remembered(test, config)


def _remembered(frames: Frames, config: TrainConfig) -> Frames:
    return Remembered(frames, config.workers) if config.cache else frames


def _mean_log_depth(frames: Frames) -> float:
    """Mean log depth of some frames, evenly spread."""
    step = max(1, len(frames) // START_FRAMES)
    depths = [frames[index].depth for index in range(0, len(frames), step)]
    return float(torch.cat([latent.to_latent(d[latent.measured(d)]) for d in depths]).mean())
