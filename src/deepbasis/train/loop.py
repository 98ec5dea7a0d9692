# SPDX-License-Identifier: Apache-2.0
"""The training loop. Every step is a function of the settings and of its number, so that a training
that was stopped anywhere goes on to the very same result.
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
from torch.utils.data import DataLoader

from deepbasis.data.sample import seeded
from deepbasis.data.training import Item, TrainingSet, batches, collate
from deepbasis.model import save_tensors
from deepbasis.networks import Network
from deepbasis.train.checkpoint import State, load_checkpoint, save_checkpoint
from deepbasis.train.job import Job, make_network
from deepbasis.train.loss import Loss
from deepbasis.train.measure import gather_rows, watch
from deepbasis.train.record import Record

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """Somebody asked the training to stop, and all is saved."""


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
def deaf() -> Iterator[None]:
    """Processes started in here never hear the signals; this one hears them afterwards.

    A worker that ended by itself would take the step that is being computed with it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run(job: Job, record: Record) -> State:
    """Train until the schedule is over or somebody stops it; every member is in a file then."""
    schedule, network, config = job.schedule, make_network(job, 0), job.config
    adam = torch.optim.Adam(network.parameters(), config.lr, fused=True)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a fifth faster
    loss_of = Loss(network, mixed=config.mixed_precision, few=config.few, through=config.through)
    module, optimiser = job.fabric.setup(loss_of, adam)
    state, saved = State(), time.monotonic()
    if config.resume:
        state = load_checkpoint(job.checkpoint, network, adam, job.settings)
    with Stop() as stop:
        while state.step < schedule.total:
            if schedule.starts_training(state.step) and state.step > 0:
                fresh = make_network(job, schedule.training(state.step))
                network.load_state_dict(fresh.state_dict())
                adam.state.clear()
            for group in load(job, *divmod(state.step, schedule.steps_per_epoch)):
                rate, loss_of.side = schedule.rate(state.step), schedule.side(state.step)
                loss, norm = step(job, module, optimiser, group, state.step, rate)
                loss, asked = share_with_all(job, loss, stop.signal)
                state.add(loss, schedule.steps_per_epoch)
                over = state.step % schedule.steps_per_epoch == 0
                if over and job.watched is not None:
                    state.watched.append(watch(job, network, job.watched))
                record.step(state, loss, norm, rate, network, group[0])
                if schedule.ends_member(state.step):
                    keep_member(job, network, state)
                minutes = (time.monotonic() - saved) / 60
                if asked or over or minutes > config.checkpoint_minutes:
                    if job.fabric.is_global_zero:
                        save_checkpoint(job.checkpoint, network, adam, state, job.settings)
                    saved = time.monotonic()
                if asked:
                    job.fabric.barrier()  # nobody leaves before all is saved
                    raise Stopped(
                        f"stopped at step {state.step} of {schedule.total}; all is saved in "
                        f"{job.checkpoint}, go on with --resume"
                        if job.fabric.is_global_zero
                        else "",
                        asked,
                    )
    return state


def share_with_all(job: Job, loss: float, heard: int) -> tuple[float, int]:
    """Mean loss of all processes, and the signal that any of them heard: all stop together."""
    if job.fabric.world_size == 1:
        return loss, heard
    both = torch.tensor([[loss, heard]], dtype=torch.float64, device=job.fabric.device)
    rows = gather_rows(job.fabric, both)
    return float(rows[:, 0].mean()), int(rows[:, 1].max())


def load(job: Job, epoch: int, done: int) -> Iterator[list[Item]]:
    """Batches of the rest of an epoch, as many at a time as a step takes."""
    config, fabric = job.config, job.fabric
    frames = TrainingSet(
        job.frames, config.input_points, config.fit_points, config.input_drop,
        config.depth_input, config.seed, epoch, config.jitter,
    )  # fmt: skip
    order = batches(
        len(frames), config.batch, seed=config.seed, epoch=epoch, rank=fabric.global_rank,
        ranks=fabric.world_size, skip=done * config.accumulate,
    )  # fmt: skip
    with deaf():
        loader = iter(
            DataLoader(
                frames,  # type: ignore[arg-type]
                batch_sampler=list(order),
                num_workers=config.workers,
                collate_fn=collate,
            )
        )
    for _ in range(done, job.schedule.steps_per_epoch):
        yield list(islice(loader, config.accumulate))


def step(
    job: Job, module: Any, optimiser: Any, group: list[Item], number: int, rate: float
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
                    f"{error} (step {number}, frames {', '.join(item.name)}); {job.last_good()}"
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
            f"{names}); {job.last_good()}; look at these frames, or lower --lr {job.config.lr:g}"
        )
    optimiser.step()
    return total, float(norm)


@torch.no_grad()
def held_back_loss(job: Job, loss: Loss) -> float:
    """Mean loss over the frames that are not trained on; infinite if there are none."""
    config = job.config
    frames = TrainingSet(
        job.held, config.input_points, config.fit_points, 0.0, config.depth_input, config.seed
    )
    loss.network.eval()
    loss.network.last.train()  # the fit stays the one of training
    losses = [
        loss(job.fabric.to_device(item))
        for item in DataLoader(frames, config.batch)  # type: ignore[arg-type]
    ]
    loss.network.train()
    return float(torch.cat(losses).mean()) if losses else math.inf


def keep_member(job: Job, network: Network, state: State) -> None:
    """Write a finished network to a file of its own."""
    loss = math.inf
    if job.fabric.is_global_zero:
        loss = held_back_loss(job, Loss(network))
        save_tensors(job.member(len(state.members)), network.state_dict(), {"loss": loss})
    state.members.append(job.fabric.broadcast(loss))
