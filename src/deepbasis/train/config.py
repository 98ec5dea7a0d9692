# SPDX-License-Identifier: Apache-2.0
"""All settings of a training. Each is written once: type, default, help and limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from deepbasis.options import options

# Bases and the constant: a maximum-likelihood fit needs more points than that.
WEIGHTS = 63

Data = Literal["nyu", "vkitti2", "kitti", "folder", "rooms", "roads"]


@options
@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training."""

    centred: ClassVar[bool] = False  # how frames are downscaled; see `deepbasis.data.sample.halve`
    out: Path = Path("run")
    """Folder of this training: checkpoint, model, logs."""
    data: Data = "rooms"
    """Data set. rooms and roads are rendered; a folder holds rgb/ and depth/."""
    root: Path | None = None
    """Folder of the data set, or NYU's .mat file."""
    frames: int | None = None
    """Use only this many frames; for rooms and roads, render this many (default 100)."""
    size: tuple[int, int] | None = None
    """Height and width of rendered frames."""
    downscale: int = 1
    """Reduce height and width by this factor, a power of 2; nyu starts at 224 x 304, the others at
    full size."""
    mix_in: Literal["rooms", "roads"] | None = None
    """Rendered frames to add, of the same size as the others."""
    mix_in_frames: int = 200
    """How many rendered frames to add."""
    cache: bool = False
    """Keep the frames in memory."""
    val_frames: int = 32
    """Number of validation frames: the last of the training frames. They are not trained on, but
    used to calibrate the error bars."""
    encoder: Literal["mobilenet_v2", "efficientnet_lite0", "resnet34"] = "mobilenet_v2"
    """Encoder of the network that predicts the bases."""
    decoder: Literal["light", "paper"] = "light"
    """Decoder of that network; the paper's takes three times as long."""
    embedding: int = 8
    """Size of the embedding by which errors of pixels are correlated; 0 uses colours instead."""
    head_width: int = 32
    """Channels of the convolutions that predict the embedding, at half resolution; 0 predicts it
    from each pixel alone."""
    encoder_weights: Path | None = None
    """Pretrained encoder weights, a .safetensors or .pth file: torchvision's, or those of
    EfficientNet-Lite0."""
    normalisation: Literal["imagenet", "symmetric", "efficientnet_lite"] = "imagenet"
    """Colour normalisation that the encoder's weights expect; symmetric is -1 to 1."""
    init_from: Path | None = None
    """Model to start from instead of a new one: its name, file or folder."""
    fit_points: str = "2000"
    """Points of each frame that the fit uses: a number, 5%, lidar64, tof, ..., a range such as
    1000-2500, or sensor for the data set's own."""
    few_points_weight: float = 0.1
    """Weight of two additional losses: for fits to 1 to 200 points, and to none."""
    kernel_weight: float = 0.3
    """Weight of the loss that trains the embedding: for predictions between a sensor's points."""
    kernel_only: bool = False
    """Train the embedding alone, and keep the bases of --init-from."""
    jitter: float = 0.1
    """Random change of brightness, contrast and saturation by up to this fraction."""
    zoom: float = 0.0
    """Enlarge a random part of each frame by up to this fraction."""
    vary_camera: float = 0.0
    """Strength of random gamma, white balance, blur and noise, as from other cameras; 1 is
    strong."""
    errors: Literal["correlated", "independent"] = "correlated"
    """Default error model of the trained model."""
    epochs: int = 20
    """Passes over the frames."""
    batch: int = 4
    """Frames in a batch, for each process."""
    accumulate: int = 1
    """Batches in a step of the optimiser."""
    lr: float = 4e-4
    """Largest learning rate of Adam; it rises for a tenth of the steps and falls to 0 as a
    cosine."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    mixed_precision: bool = False
    """Compute the bases in bfloat16, which is faster on some processors and GPUs; the fit stays
    exact."""
    devices: int = 1
    """Processes on this machine, one for each GPU if there are any."""
    nodes: int = 1
    """Machines; start the same command on each with torchrun. They must share --out."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto is cuda where it is available."""
    workers: int = 1
    """Processes that prepare frames, for each training process."""
    seed: int = 0
    """Seed of weights, order, flips and points."""
    checkpoint_minutes: float = 5.0
    """Write a checkpoint at least this often."""
    panel_minutes: float = 5.0
    """Log pictures and histograms this often."""
    eval_frames: int = 0
    """Measure the RMSE of this many training and test frames after every epoch."""
    resume: bool = False
    """Resume the training in --out from its checkpoint."""

    def check(self) -> None:
        """Refuse invalid settings. (Not on creation: tyro would draw a box around the message.)"""
        for name in ("batch", "accumulate", "devices", "nodes", "epochs", "downscale"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)} must be at least 1")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"--jitter {self.jitter} must be between 0 and 1")
        for name in (
            "few_points_weight",
            "kernel_weight",
            "zoom",
            "vary_camera",
            "embedding",
            "head_width",
        ):
            if not getattr(self, name) >= 0:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} {getattr(self, name)} must not be negative")
        if self.kernel_only and (
            self.init_from is None or not self.embedding or not self.kernel_weight
        ):
            raise ValueError(
                "--kernel-only needs a model to start from (--init-from), and --embedding and "
                "--kernel-weight above 0"
            )
        if self.eval_frames < 0:
            raise ValueError(f"--eval-frames {self.eval_frames} must not be negative")
        if not (self.lr > 0 and self.clip > 0):
            raise ValueError(f"--lr {self.lr} and --clip {self.clip} must be above 0")
        check_enough_points(self.fit_points, WEIGHTS)


def check_enough_points(points: str, weights: int) -> None:
    """Refuse fewer points in training than a fit of this many weights needs."""
    fewest = points.partition("-")[0]
    if fewest.isdigit() and int(fewest) <= weights:
        raise ValueError(
            f"--fit-points {points} cannot determine {weights} weights in training; use at "
            f"least {weights + 1}, better 1000 or more, regardless of your sensor"
        )
