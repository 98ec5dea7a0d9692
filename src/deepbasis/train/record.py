# SPDX-License-Identifier: Apache-2.0
"""What a training shows: a progress bar, TensorBoard, and run.json."""

import json
import platform
import shlex
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

import deepbasis
from deepbasis.data.files import atomic_write
from deepbasis.data.sample import Augmentation
from deepbasis.data.training import collate
from deepbasis.nets import DepthNetwork
from deepbasis.plots import loss_curve, panel, save
from deepbasis.train.checkpoint import State
from deepbasis.train.job import Job

PACKAGES = ("torch", "numpy", "scipy", "safetensors", "lightning-fabric")
# Validation frames that are drawn.
SHOWN = 2


class Record:
    """Writes everything down on the first process, and nothing on the others."""

    def __init__(self, job: Job) -> None:
        self.job, self.enabled = job, job.fabric.is_global_zero
        self.drawn = time.monotonic()
        self.console = Console(stderr=True)
        self.files = ExitStack()

    def __enter__(self) -> "Record":
        if self.enabled:
            self.write_run({"finished": False})
            self.writer = self.files.enter_context(SummaryWriter(str(self.job.config.out / "logs")))
            self.bar = self.files.enter_context(make_bar(self.console))
            self.task = self.bar.add_task("", total=self.job.steps, loss=0.0, rate=0.0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.files.close()

    def step(
        self, state: State, loss: float, norm: float, rate: float, network: DepthNetwork
    ) -> None:
        """Record a step; every few minutes also pictures."""
        if not self.enabled:
            return
        epochs, per_epoch = self.job.config.epochs, self.job.steps_per_epoch
        epoch = (state.step - 1) // per_epoch + 1
        self.bar.update(
            self.task, completed=state.step, description=f"epoch {epoch}/{epochs}",
            loss=loss, rate=rate,
        )  # fmt: skip
        for name, value in (("loss", loss), ("gradient norm", norm), ("learning rate", rate)):
            self.writer.add_scalar(name, value, state.step)
        if state.step % per_epoch == 0:
            self._end_epoch(state, f"epoch {epoch}/{epochs}", epoch)
        due = time.monotonic() - self.drawn > 60 * self.job.config.panel_minutes
        if due or state.step == self.job.steps:
            self.draw(state.step, network)
            self.drawn = time.monotonic()

    def _end_epoch(self, state: State, name: str, epoch: int) -> None:
        line = f"{name}: loss {state.losses[-1]:.4f}"
        self.writer.add_scalar("loss of an epoch", state.losses[-1], epoch)
        if state.val_losses:
            self.writer.add_scalar("validation loss", state.val_losses[-1], epoch)
            line += f", validation {state.val_losses[-1]:.4f}"
        if state.evaluated:
            train, test = state.evaluated[-1]
            self.writer.add_scalars("RMSE (m)", {"train": train, "test": test}, epoch)
            line += f", RMSE {train:.3f} m on training and {test:.3f} m on test frames"
        if not self.console.is_terminal:
            self.console.print(line)

    @torch.no_grad()
    def draw(self, step: int, network: DepthNetwork) -> None:
        """Log predictions of validation frames."""
        network.eval()
        items = self.job.training_set(self.job.val_frames, augmentation=Augmentation(jitter=0.0))
        for index in range(min(SHOWN, len(items))):
            item = self.job.fabric.to_device(collate([items[index]]))
            mean = network.predict_in_training(item)
            figure = panel(item.image[0], item.sparse[0, 0], item.depth[0, 0], mean[0, 0])
            self.writer.add_figure(f"validation/{index}", figure, step)
        network.train()

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write down the result."""
        if self.enabled:
            self.write_run({"finished": True, "metrics": metrics})
            figure = loss_curve(metrics["losses"], metrics.get("val_losses", []))
            save(figure, self.job.config.out / "loss.png")

    def write_run(self, result: dict[str, Any]) -> None:
        """Write run.json: all that is needed to do it again."""
        about = {
            "command": shlex.join([self.job.program, *sys.argv[1:]]),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"deepbasis": deepbasis.__version__, "python": platform.python_version()}
            | {name: version(name) for name in PACKAGES},
            "processes": self.job.fabric.world_size,
            "seed": self.job.config.seed,
            "settings": self.job.settings,
            **result,
        }
        with atomic_write(self.job.config.out / "run.json") as file:
            file.write(json.dumps(about, indent=2).encode())


def make_bar(console: Console) -> Progress:
    """A bar with loss, rate and the time that is left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %  loss {task.fields[loss]:.4f}"),
        TextColumn("rate {task.fields[rate]:.1e}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
