# SPDX-License-Identifier: Apache-2.0
"""All that a training needs to resume after a stop, in one file that is never half-written."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from deepbasis.data.tensors import load_tensors, save_tensors
from deepbasis.nets import DepthNetwork

# Settings that may change when a training is resumed: where and with what help it runs, and what
# helps one that failed. (The number of all processes may not, and has a sentence of its own.)
FREE = {
    "out", "root", "cache", "devices", "nodes", "accelerator", "workers", "checkpoint_minutes",
    "panel_minutes", "init_from", "encoder_weights", "errors", "lr", "clip", "processes",
}  # fmt: skip


@dataclass
class State:
    """How far a training is."""

    step: int = 0
    """Steps done."""
    losses: list[float] = field(default_factory=list)
    """Mean loss of every epoch that is over."""
    running: float = 0.0
    """Sum of the losses of this epoch's steps."""
    val_losses: list[float] = field(default_factory=list)
    """Loss of the validation frames after every epoch."""
    evaluated: list[tuple[float, ...]] = field(default_factory=list)
    """RMSE in metres of some training and some test frames after every epoch, if asked for."""

    def add(self, loss: float, steps_per_epoch: int) -> None:
        """Count a step."""
        self.step += 1
        self.running += loss
        if self.step % steps_per_epoch == 0:
            self.losses.append(self.running / steps_per_epoch)
            self.running = 0.0


def save_checkpoint(
    path: Path, network: DepthNetwork, adam: Optimizer, state: State, settings: dict[str, Any]
) -> None:
    """Write network, optimiser and state; whatever happens, the last good file stays."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for index, moments in adam.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{name}": tensor for name, tensor in moments.items()}
    try:
        save_tensors(path, tensors, {"state": asdict(state), "settings": settings})
    except OSError as error:
        kept = "the previous checkpoint is intact" if path.exists() else "there is no earlier one"
        raise OSError(
            f"cannot write the checkpoint {path} at step {state.step} ({error}); {kept}; free some "
            "disk space and continue with --resume"
        ) from error


def load_checkpoint(
    path: Path, network: DepthNetwork, adam: Optimizer, settings: dict[str, Any]
) -> State:
    """Restore network and optimiser in place; the settings must be the same as before."""
    tensors, header = load_tensors(path)
    if "state" not in header:
        raise ValueError(f"{path} is not the checkpoint of a training")
    before = header["settings"]
    if (processes := before.get("processes", settings["processes"])) != settings["processes"]:
        raise ValueError(
            f"--resume: {path} was made by {processes} processes, and now there are "
            f"{settings['processes']}; resume with --devices x --nodes = {processes}"
        )
    changed = [name for name in settings if name not in FREE and settings[name] != before.get(name)]
    if changed:
        told = ", ".join(f"{name} was {before.get(name)!r}" for name in changed)
        raise ValueError(f"--resume: {path} was made with other settings ({told})")
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "adam": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    network.load_state_dict(parts["network"])
    _load_adam(adam, parts["adam"])
    return State(**header["state"])


def _load_adam(adam: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give each parameter its moments, laid out in memory as the parameter is."""
    parameters = [p for group in adam.param_groups for p in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        like = parameters[int(index)]
        placed = torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor
        moments.setdefault(int(index), {})[key] = placed
    adam.load_state_dict({"state": moments, "param_groups": adam.state_dict()["param_groups"]})
