# SPDX-License-Identifier: Apache-2.0
"""What people see of a training: a progress bar, TensorBoard, and run.json."""

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
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

import deepbasis
from deepbasis import fit
from deepbasis.data.files import whole
from deepbasis.data.points import WithPoints
from deepbasis.data.training import Item
from deepbasis.layer import BasisFit
from deepbasis.networks import Network
from deepbasis.plots import loss_curve, panel, save
from deepbasis.scaffold import scaffold
from deepbasis.sparse import parse
from deepbasis.train.checkpoint import State
from deepbasis.train.job import Job

PACKAGES = ("torch", "numpy", "scipy", "safetensors", "lightning-fabric")
# Held-back frames that are drawn, and the points they are drawn with.
SHOWN, SHOWN_POINTS = 2, "1%"


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
            self.task = self.bar.add_task("", total=self.job.schedule.total, loss=0.0, rate=0.0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.files.close()

    def step(
        self, state: State, loss: float, norm: float, rate: float, network: Network, item: Item
    ) -> None:
        """Note a step; every few minutes also pictures and histograms."""
        if not self.enabled:
            return
        schedule = self.job.schedule
        epochs = schedule.total // schedule.steps_per_epoch
        epoch = (state.step - 1) // schedule.steps_per_epoch + 1
        self.bar.update(
            self.task, completed=state.step, description=f"epoch {epoch}/{epochs}",
            loss=loss, rate=rate,
        )  # fmt: skip
        for name, value in (("loss", loss), ("gradient norm", norm), ("learning rate", rate)):
            self.writer.add_scalar(name, value, state.step)
        if state.step % schedule.steps_per_epoch == 0:
            self.writer.add_scalar("loss of an epoch", state.losses[-1], epoch)
            told = f"epoch {epoch}/{epochs}: loss {state.losses[-1]:.4f}"
            if state.watched:
                seen, unseen = state.watched[-1]
                self.writer.add_scalars("RMSE (m)", {"train": seen, "test": unseen}, epoch)
                told += f", RMSE {seen:.3f} m of training and {unseen:.3f} m of test frames"
            if not self.console.is_terminal:
                self.console.print(told)
        due = time.monotonic() - self.drawn > 60 * self.job.config.panel_minutes
        if due or state.step == schedule.total:
            self.draw(state.step, network, item)
            self.drawn = time.monotonic()

    @torch.no_grad()
    def draw(self, step: int, network: Network, item: Item) -> None:
        """Log how the weights of a batch vary, and predictions of held-back frames."""
        network.eval()
        if isinstance(network.last, BasisFit):
            self._draw_weights(step, network, item)
        frames = WithPoints(self.job.held, parse(SHOWN_POINTS))
        for index in range(min(SHOWN, len(frames))):
            sample = frames[index]
            image, sparse = (
                self.job.fabric.to_device(part[None]) for part in (sample[1], sample[3])
            )
            filled: tuple[Tensor, ...] = ()
            if network.architecture.depth_input:
                filled = tuple(part[None].to(image.device) for part in scaffold(sample.sparse))
            figure = panel(sample, network(image, sparse, *filled))
            self.writer.add_figure(f"held back/{index}", figure, step)
        network.train()

    def _draw_weights(self, step: int, network: Network, item: Item) -> None:
        layer = network.last
        assert isinstance(layer, BasisFit)
        image, sparse, *filled = (
            self.job.fabric.to_device(part)
            for part in (item.image, item.sparse, item.scaffold, item.valid)
        )
        layer.train()
        layer.gathered = []
        rgbd = network.architecture.depth_input
        layer.mean(network.features(image, sparse, *(filled if rgbd else ())), sparse)
        sample = fit.WeightSample.merge(layer.gathered)
        layer.gathered = None
        layer.eval()
        self.writer.add_histogram("weights/constant", sample.weights[:, 0], step)
        self.writer.add_histogram("weights/bases", sample.weights[:, 1:], step)

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write down the result."""
        if self.enabled:
            self.write_run({"finished": True, "metrics": metrics})
            save(loss_curve(metrics["losses"]), self.job.config.out / "loss.png")

    def write_run(self, result: dict[str, Any]) -> None:
        """Write run.json: all that is needed to do it again."""
        about = {
            "command": shlex.join(["deepbasis", *sys.argv[1:]]),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"deepbasis": deepbasis.__version__, "python": platform.python_version()}
            | {name: version(name) for name in PACKAGES},
            "processes": self.job.fabric.world_size,
            "seed": self.job.config.seed,
            "settings": self.job.settings,
            **result,
        }
        with whole(self.job.config.out / "run.json") as file:
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
