# SPDX-License-Identifier: Apache-2.0
"""One training with all it needs: processes, settings, frames and files."""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning_fabric import Fabric

from deepbasis import latent
from deepbasis.data.sample import PAPER, Augmentation, Frames, seeded
from deepbasis.data.sources import (
    CachedFrames,
    Concat,
    Source,
    fingerprint,
    split_validation,
    subsample,
)
from deepbasis.data.tensors import load_tensors
from deepbasis.data.training import TrainingSet
from deepbasis.model import Completer, find_model
from deepbasis.nets import Architecture, DepthNetwork, Network, load_encoder_weights
from deepbasis.train.config import TrainConfig

# Frames whose mean log depth is where a network's prediction may start.
START_FRAMES = 50
# Share of the steps in which the learning rate rises.
WARM_UP = 0.1


@dataclass(frozen=True)
class Job:
    """What does not change during a training. Other kinds of training are subclasses."""

    program: ClassVar[str] = "deepbasis"
    """Command that started it, for `run.json`."""
    fabric: Fabric
    config: TrainConfig
    frames: Frames
    val_frames: Frames
    eval_frames: tuple[Frames, Frames] | None
    """Training and test frames whose RMSE is measured after each epoch, if asked for."""
    settings: dict[str, Any]
    """The configuration as JSON, with the fingerprint of the frames."""
    steps_per_epoch: int

    @property
    def checkpoint(self) -> Path:
        """File to resume from."""
        return self.config.out / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        """File of the trained model."""
        return self.config.out / "model.safetensors"

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.steps_per_epoch * self.config.epochs

    @property
    def architecture(self) -> Architecture:
        """Of the network."""
        config = self.config
        return Architecture(
            config.encoder, config.normalisation, config.errors, config.decoder, config.embedding,
            config.head_width if config.embedding else 0,
        )  # fmt: skip

    @property
    def loss_options(self) -> dict[str, Any]:
        """Options of the network's loss."""
        config = self.config
        return {
            "few_points_weight": config.few_points_weight,
            "kernel_weight": config.kernel_weight if config.embedding else 0.0,
            "mixed_precision": config.mixed_precision,
        }

    def rate(self, step: int) -> float:
        """Learning rate of a step: it rises linearly, then falls as a cosine."""
        rise = max(1.0, WARM_UP * self.steps)
        if step < rise:
            return self.config.lr * (step + 1) / (rise + 1)
        share = (step - rise) / max(1.0, self.steps - rise)
        return self.config.lr / 2 * (math.cos(math.pi * share) + 1)

    def training_set(
        self, frames: Frames, epoch: int = 0, augmentation: Augmentation = PAPER
    ) -> Any:
        """Frames as the training draws them in an epoch."""
        return TrainingSet(frames, self.config.fit_points, self.config.seed, epoch, augmentation)

    def new_network(self) -> DepthNetwork:
        """A new network, the same for the same seed."""
        config = self.config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeded(config.seed, 0).initial_seed())
            network = Network(self.architecture)
        if network.bases.head is not None and not config.kernel_weight:
            # No loss reaches it, and several processes refuse to wait for its gradient.
            network.bases.head.requires_grad_(False)
        if config.encoder_weights is not None:
            load_encoder_weights(network.bases.encoder, config.encoder_weights)
        if config.init_from is not None:
            start_from(network, config.init_from)
        if config.kernel_only:
            network.bases.freeze()
        return network

    def after_step(self, step: int, network: DepthNetwork) -> None:
        """Called after every step; for subclasses."""

    def last_checkpoint(self) -> str:
        """For error messages: which checkpoint the user can resume from."""
        if not self.checkpoint.exists():
            return "no checkpoint was written yet"
        step = load_tensors(self.checkpoint)[1]["state"]["step"]
        return f"{self.checkpoint} holds step {step}"


def make_job(config: TrainConfig, kind: type[Job] = Job) -> Job:
    """Start the processes, open the frames and check that all fits together."""
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
    frames, val_frames = _open_frames(config)
    in_a_step = config.batch * config.accumulate * fabric.world_size
    if len(frames) < in_a_step:
        raise ValueError(
            f"{len(frames)} frames are fewer than a step takes: --batch {config.batch} x "
            f"--accumulate {config.accumulate} x {fabric.world_size} processes"
        )
    config.out.mkdir(parents=True, exist_ok=True)
    settings = json.loads(json.dumps(asdict(config), default=str))
    del settings["resume"]  # a resumed training writes the same model file, to the byte
    settings |= {"split": fingerprint(frames), "val_split": fingerprint(val_frames)}
    settings |= {"frames_in_a_step": in_a_step, "processes": fabric.world_size}
    eval_frames = _open_eval_frames(config, frames)
    steps = len(frames) // in_a_step
    return kind(fabric, config, frames, val_frames, eval_frames, settings, steps)


def start_from(network: Network, path: Path) -> None:
    """Copy another model's basis network. It may lack convolutions of the head, which add nothing
    at first.
    """
    other = Completer.load(find_model(path))
    head = {
        name: value
        for name, value in network.bases.state_dict().items()
        if name.startswith("head.surroundings.")
    }
    try:
        network.bases.load_state_dict(head | other.network.bases.state_dict())
    except RuntimeError:
        raise ValueError(
            f"--init-from {path} holds another network: {other.architecture}; choose the same "
            "encoder, decoder, embedding and head width"
        ) from None


def mean_log_depth(frames: Frames) -> float:
    """Mean log depth of some frames."""
    step = max(1, len(frames) // START_FRAMES)
    depths = [frames[index].depth for index in range(0, len(frames), step)]
    return float(torch.cat([latent.to_latent(d[latent.is_valid(d)]) for d in depths]).mean())


def _check_folder(config: TrainConfig, fabric: Fabric) -> None:
    there = (config.out / "checkpoint.safetensors").exists()
    if there and not config.resume:
        raise ValueError(
            f"--out {config.out} holds a training already; continue it with --resume, or name "
            "another folder"
        )
    if config.resume and not there:
        raise ValueError(f"--resume: {config.out} holds no checkpoint to resume from")
    if fabric.is_global_zero:
        for part in config.out.glob(".*.part"):  # of a training that was killed while it wrote
            part.unlink(missing_ok=True)
    fabric.barrier()


def _open_frames(config: TrainConfig) -> tuple[Frames, Frames]:
    frames = _cached(_source(config).open("train"), config)
    kept, val_frames = split_validation(frames, config.val_frames)
    if config.mix_in is None:
        return kept, val_frames
    height, width = kept[0].image.shape[1:]
    more = Source(config.mix_in, None, config.mix_in_frames, (height, width), seed=config.seed)
    return Concat(kept, _cached(more.open("train"), config)), val_frames


def _source(config: TrainConfig) -> Source:
    return Source(
        config.data, config.root, config.frames, config.size, config.downscale, config.seed,
        centred=config.centred,
    )  # fmt: skip


def _open_eval_frames(config: TrainConfig, frames: Frames) -> tuple[Frames, Frames] | None:
    """As many training as test frames, evenly spread."""
    if config.eval_frames == 0:
        return None
    test = subsample(_source(config).open("test"), config.eval_frames)
    return subsample(frames, config.eval_frames), _cached(test, config)


def _cached(frames: Frames, config: TrainConfig) -> Frames:
    return CachedFrames(frames, config.workers) if config.cache else frames
