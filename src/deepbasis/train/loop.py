# SPDX-License-Identifier: Apache-2.0
"""The training loop. Every step is a function of the settings and of its number, so that a training
that was stopped anywhere is resumed to the very same result.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from deepbasis import latent, metrics
from deepbasis.calibrate.measure import gather_rows, share
from deepbasis.data.sample import Augmentation, Frames, seeded
from deepbasis.data.training import batches, collate
from deepbasis.nets import DepthNetwork
from deepbasis.train.checkpoint import State, load_checkpoint, save_checkpoint
from deepbasis.train.job import Job
from deepbasis.train.record import Record

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """The training was asked to stop, and its state is saved."""


class Stop:
    """Holds the signal that asks the process to end, SIGTERM or Ctrl-C, and 0 before."""

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> "Stop":
        self.before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        # Who asks twice does not want to wait for the step to end.
        signal.signal(number, self.before[signal.Signals(number)])


@contextmanager
def block_signals() -> Iterator[None]:
    """Processes started in here never hear the signals; this one hears them afterwards.

    A worker that ended by itself would take the step that is being computed with it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LossModule(nn.Module):
    """A network's loss as a module, so that several processes can share its forward pass."""

    def __init__(self, network: DepthNetwork, options: dict[str, Any]) -> None:
        super().__init__()
        self.network, self.options = network, options

    def forward(self, item: Any) -> Tensor:
        """Loss of each image of a batch."""
        return self.network.loss(item, **self.options)


def run(job: Job, record: Record) -> tuple[DepthNetwork, State]:
    """Train until all steps are done or the training is stopped."""
    config, network = job.config, job.new_network().to(job.fabric.device)
    adam = torch.optim.Adam(network.parameters(), config.lr, fused=True)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a fifth faster
    module, optimiser = job.fabric.setup(LossModule(network, job.loss_options), adam)
    state, saved = State(), time.monotonic()
    if config.resume:
        state = load_checkpoint(job.checkpoint, network, adam, job.settings)
    with Stop() as stop:
        while state.step < job.steps:
            epoch, done = divmod(state.step, job.steps_per_epoch)
            network.set_epoch(epoch, config.epochs)
            for group in load(job, epoch, done):
                rate = job.rate(state.step)
                loss, norm = step(job, module, optimiser, group, state.step, rate)
                loss, asked = share_with_all(job, loss, stop.signal)
                state.add(loss, job.steps_per_epoch)
                over = state.step % job.steps_per_epoch == 0
                if over:
                    look_back(job, network, state)
                record.step(state, loss, norm, rate, network)
                job.after_step(state.step, network)
                minutes = (time.monotonic() - saved) / 60
                if asked or over or minutes > config.checkpoint_minutes:
                    if job.fabric.is_global_zero:
                        save_checkpoint(job.checkpoint, network, adam, state, job.settings)
                    saved = time.monotonic()
                if asked:
                    job.fabric.barrier()  # nobody leaves before all is saved
                    raise Stopped(
                        f"stopped at step {state.step} of {job.steps}; the state is saved in "
                        f"{job.checkpoint}, continue with --resume"
                        if job.fabric.is_global_zero
                        else "",
                        asked,
                    )
    return network, state


def look_back(job: Job, network: DepthNetwork, state: State) -> None:
    """After an epoch: the loss of the validation frames, and the RMSE of others if requested."""
    if len(job.val_frames):
        state.val_losses.append(validation_loss(job, network))
    if job.eval_frames is not None:
        state.evaluated.append(evaluate(job, network, job.eval_frames))


def share_with_all(job: Job, loss: float, heard: int) -> tuple[float, int]:
    """Mean loss of all processes, and the signal that any of them heard: all stop together."""
    if job.fabric.world_size == 1:
        return loss, heard
    both = torch.tensor([[loss, heard]], dtype=torch.float64, device=job.fabric.device)
    rows = gather_rows(job.fabric, both)
    return float(rows[:, 0].mean()), int(rows[:, 1].max())


def load(job: Job, epoch: int, done: int) -> Iterator[list[Any]]:
    """Batches of the rest of an epoch, as many at a time as a step takes."""
    config, fabric = job.config, job.fabric
    how = Augmentation(config.jitter, config.zoom, config.vary_camera)
    frames = job.training_set(job.frames, epoch, how)
    order = batches(
        len(frames), config.batch, seed=config.seed, epoch=epoch, rank=fabric.global_rank,
        ranks=fabric.world_size, skip=done * config.accumulate,
    )  # fmt: skip
    with block_signals():
        loader = iter(
            DataLoader(
                frames,
                batch_sampler=list(order),
                num_workers=config.workers,
                collate_fn=collate,
            )
        )
    for _ in range(done, job.steps_per_epoch):
        yield list(islice(loader, config.accumulate))


def step(
    job: Job, module: Any, optimiser: Any, group: list[Any], number: int, rate: float
) -> tuple[float, float]:
    """One step of the optimiser: the mean loss of its batches, and the gradient's norm."""
    fabric = job.fabric
    torch.manual_seed(seeded(job.config.seed, number, fabric.global_rank).initial_seed())  # dropout
    for entry in optimiser.param_groups:
        entry["lr"] = rate
    module.train()
    optimiser.zero_grad()
    total = 0.0
    for index, item in enumerate(group):
        with fabric.no_backward_sync(module, enabled=index + 1 < len(group)):
            try:
                loss = module(fabric.to_device(item)).mean() / len(group)
            except ValueError as error:
                raise ValueError(
                    f"{error} (step {number}, frames {', '.join(item.name)}); "
                    f"{job.last_checkpoint()}"
                ) from error
            fabric.backward(loss)
        total += float(loss.detach())
    norm = fabric.clip_gradients(
        module, optimiser, max_norm=job.config.clip, error_if_nonfinite=False
    )
    assert norm is not None
    if not (math.isfinite(total) and norm.isfinite()):
        names = ", ".join(name for item in group for name in item.name)
        raise ValueError(
            f"the loss is {total:.4g} and its gradient {float(norm):.4g} at step {number} (frames "
            f"{names}); {job.last_checkpoint()}; look at these frames, or lower --lr "
            f"{job.config.lr:g}"
        )
    optimiser.step()
    return total, float(norm)


@torch.no_grad()
def validation_loss(job: Job, network: DepthNetwork) -> float:
    """Mean loss over the validation frames, as training defines it."""
    network.eval()
    items = job.training_set(job.val_frames, augmentation=Augmentation(jitter=0.0))
    losses = []
    with torch.random.fork_rng(devices=[]):
        for index in share(len(items), job.fabric):
            torch.manual_seed(index)  # the loss draws points, the same after every epoch
            item = job.fabric.to_device(collate([items[index]]))
            losses.append(network.loss(item, **job.loss_options))
    network.train()
    rows = torch.cat([torch.zeros(0, device=job.fabric.device), *losses])
    return float(gather_rows(job.fabric, rows).mean())


@torch.no_grad()
def evaluate(job: Job, network: DepthNetwork, parts: tuple[Frames, Frames]) -> tuple[float, ...]:
    """Mean RMSE in metres of the frames of each part, by a network that is still in training."""
    network.eval()
    found = []
    for frames in parts:
        items = job.training_set(frames, augmentation=Augmentation(jitter=0.0))
        errors = []
        for index in share(len(items), job.fabric):
            item = job.fabric.to_device(collate([items[index]]))
            depth = latent.to_depth(network.predict_in_training(item))
            errors.append([metrics.rmse(depth, item.depth)])
        rows = torch.tensor(errors, dtype=torch.float64).view(-1, 1)
        found.append(float(gather_rows(job.fabric, rows).mean()))
    network.train()
    return tuple(found)
