# SPDX-License-Identifier: Apache-2.0
"""All settings of a training. Each is written once: type, default, help and what it must not be."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from deepbasis.methods import METHODS, Method

PRESETS = Path(__file__).parent.parent / "presets"
# Bases and the constant: a fit by maximum likelihood needs more points than that.
WEIGHTS = 63


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training; the defaults are the paper's."""

    out: Path = Path("run")
    """Folder of this training: checkpoint, model, logs."""
    preset: str | None = None
    """Start from the settings of a preset: tiny, nyu-5, nyu-500, vkitti2-5, vkitti2-500, kitti or
    kitti-benchmark."""
    data: Literal["nyu", "vkitti2", "kitti", "folder", "rooms", "roads"] = "rooms"
    """Data set. rooms and roads are rendered; a folder holds rgb/ and depth/."""
    root: Path | None = None
    """Folder of the data set, or NYU's .mat file."""
    frames: int | None = None
    """Use only so many frames; of rooms and roads, render so many (100 by default)."""
    also: Literal["rooms", "roads"] | None = None
    """Rendered frames to mix in, of the size of the others."""
    also_frames: int = 200
    """How many of them."""
    size: tuple[int, int] | None = None
    """Height and width of rendered frames."""
    halvings: int = 0
    """Halve the frames so many times; nyu starts at 224 x 304, the others at full size."""
    cache: bool = False
    """Keep the frames in memory."""
    held_back: int = 32
    """Training frames that are not trained on, but calibrate the variance and choose snapshots."""
    method: Method = "bdbf"
    """What stands on which network; `deepbasis models` explains them."""
    width: int = 32
    """Of enet: channels at full size, doubled by each of five steps down; the paper has 32."""
    encoder: Literal["mobilenet_v2", "resnet34"] = "mobilenet_v2"
    """First half of the basis network."""
    encoder_weights: Path | None = None
    """Pretrained encoder in torchvision's names: a .safetensors or .pth file."""
    normalisation: Literal["imagenet", "symmetric"] = "imagenet"
    """How colours enter, as the encoder's weights want it; symmetric is -1 to 1."""
    init: Path | None = None
    """Model to start from, in place of a fresh one."""
    input: Literal["rgb", "rgbd"] = "rgbd"
    """Whether the network sees the image alone or the points too."""
    input_points: str = "5%"
    """Points that the network sees: 500, 5%, lidar64, tof, ..., a range as 0-850, or sensor."""
    input_drop: float = 0.0
    """Probability that a frame's input points are withheld from the network."""
    fit_points: str = "same"
    """Points that the fit uses: the same, or others, disjoint from them, as 2000."""
    few: float = 0.0
    """Weight of two more losses of a fit: with up to 200 of its points, and with none at all."""
    jitter: float = 0.02
    """Of colours in training: brightness, contrast and saturation change by 1 +- so much."""
    errors: Literal["local", "independent"] = "local"
    """How the trained fit takes the errors of pixels."""
    through: Literal["independent", "local"] = "independent"
    """How training itself takes them; local goes on from the kernel of --init."""
    epochs: int | None = None
    """Passes over the frames; by default the paper's for the method, 20 or 30."""
    batch: int = 4
    """Frames in a batch, for each process."""
    accumulate: int = 1
    """Batches in a step of the optimiser."""
    lr: float = 2e-4
    """Learning rate of Adam, at its highest."""
    schedule: Literal["halve", "cosine"] = "halve"
    """halve: every `halve_every` epochs; cosine: up for a tenth of the time, then down to 0.
    Snapshots always use cycles of cosines."""
    halve_every: int = 5
    """Epochs after which the learning rate is halved."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    mixed_precision: bool = False
    """Compute the bases in bfloat16, which some GPUs do faster; the fit stays exact."""
    devices: int = 1
    """Processes on this machine, one for each GPU if there are any."""
    nodes: int = 1
    """Machines; start the same command on each with torchrun. They must share `out`."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """What to compute on; auto is cuda where there is one."""
    workers: int = 1
    """Processes that prepare frames, for each training process."""
    seed: int = 0
    """Of weights, order, flips and points."""
    checkpoint_minutes: float = 5.0
    """How much work may be lost."""
    panel_minutes: float = 5.0
    """How often pictures and histograms are logged."""
    watch: int = 0
    """Measure the RMSE of so many training and so many test frames after every epoch."""
    resume: bool = False
    """Go on where the training in `out` was stopped."""

    def check(self) -> None:
        """Refuse what cannot work. (Not on creation: the command line would frame the sentence.)"""
        for name in ("batch", "accumulate", "devices", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)} must be at least 1")
        if self.epochs is not None and self.epochs < METHODS[self.method].cycles:
            raise ValueError(
                f"--epochs {self.epochs} is too few: {self.method} needs at least "
                f"{METHODS[self.method].cycles}"
            )
        if not 0 <= self.input_drop <= 1:
            raise ValueError(f"--input-drop {self.input_drop} must be between 0 and 1")
        if self.through == "local" and (self.init is None or self.few > 0):
            raise ValueError("--through local needs the kernel of a model, --init, and no --few")
        if not (0 <= self.jitter < 1 and self.few >= 0):
            raise ValueError(
                f"--jitter {self.jitter} must be between 0 and 1, --few {self.few} not negative"
            )
        if self.width < 2 or self.watch < 0:
            raise ValueError(
                f"--width {self.width} must be at least 2, --watch {self.watch} not negative"
            )
        for name in ("encoder_weights", "init"):
            if getattr(self, name) is not None and not self.on_bases:
                raise ValueError(
                    f"--{name.replace('_', '-')} is for methods on the basis network; "
                    f"{self.method} starts afresh"
                )
        if not (self.lr > 0 and self.clip > 0):
            raise ValueError(f"--lr {self.lr} and --clip {self.clip} must be above 0")
        self._check_points()

    def _check_points(self) -> None:
        points = self.input_points if self.fit_points == "same" else self.fit_points
        fewest = points.partition("-")[0]
        weights = WEIGHTS if self.on_bases else self.width + 1
        if METHODS[self.method].fits and fewest.isdigit() and int(fewest) <= weights:
            raise ValueError(
                f"--fit-points {points} cannot determine {weights} weights in training; use at "
                f"least {weights + 1}, better 1000 or more, whatever the sensor will give later"
            )

    @property
    def on_bases(self) -> bool:
        """Whether the method stands on the basis network."""
        return METHODS[self.method].network == "basis"

    @property
    def depth_input(self) -> bool:
        """Whether the network sees a scaffold; those of other papers see the fit's points."""
        return self.on_bases and self.input == "rgbd"

    @property
    def total_epochs(self) -> int:
        """Passes over the frames in one training."""
        return METHODS[self.method].epochs if self.epochs is None else self.epochs


def read_preset(name: str) -> TrainConfig:
    """The settings of a preset."""
    path = PRESETS / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(preset.stem for preset in PRESETS.glob("*.toml")))
        raise ValueError(f"there is no preset {name!r}; choose one of {known}")
    values: dict[str, Any] = tomllib.loads(path.read_text())
    size = values.pop("size", None)
    known_fields = {entry.name for entry in fields(TrainConfig)}
    assert set(values) <= known_fields, f"{path} sets {set(values) - known_fields}"
    return TrainConfig(preset=name, size=tuple(size) if size else None, **values)
