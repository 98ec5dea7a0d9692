# SPDX-License-Identifier: Apache-2.0
"""Settings of the paper's trainings, and its presets. Nothing heavy is imported."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from deepbasis.options import options
from deepbasis.train.config import WEIGHTS, TrainConfig, check_enough_points
from deepbasis_paper.methods import METHODS, MethodName, MethodSpec

RecipeName = Literal["paper", "corrected"]


@options
@dataclass(frozen=True)
class PaperConfig(TrainConfig):
    """Settings of a training; the defaults are the paper's."""

    centred: ClassVar[bool] = True
    method: MethodName = "bdbf"
    """Method to train; `deepbasis-paper methods` lists them."""
    recipe: RecipeName = "paper"
    """What bdbf and dbf learn after their steps, and how they predict. paper: as in the paper; the
    prior is the scatter of the last epoch's weights, the variance has no noise term and one factor.
    corrected: as in the library; prior without estimation noise, hyperpriors, calibrated error
    models, by default that of --errors."""
    width: int = 32
    """Of enet: channels at full size, doubled by each of five steps down; the paper has 32."""
    input: Literal["rgb", "rgbd"] = "rgbd"
    """Whether the basis network sees the image alone or the points too."""
    input_points: str = "5%"
    """Points that the network sees: 500, 5%, lidar64, tof, ..., a range such as 0-850, or
    sensor for the data set's own."""
    input_drop: float = 0.0
    """Probability that the input points of a frame are withheld from the network."""
    fit_points: str = "same"
    """Points that the fit uses: those of the input, or others, disjoint from them, such as 2000."""
    few_points_weight: float = 0.0
    """Weight of two additional losses of a fit: to 1 to 200 of its points, and to none."""
    jitter: float = 0.02
    """Random change of brightness, contrast and saturation by up to this fraction."""
    epochs: int = 0
    """Passes over the frames; 0 means the paper's number for the method: 20 for fits, 30 for
    convolutions, 10 for ENet and NCNN."""
    lr: float = 2e-4
    """Largest learning rate of Adam."""
    clip: float = math.inf
    """Largest norm of the gradient; the paper does not limit it."""
    decoder: Literal["paper"] = "paper"
    """Second half of the basis network."""
    embedding: Literal[0] = 0
    """The paper's networks have no learned kernel."""
    schedule: Literal["halve", "cosine"] = "halve"
    """Learning rate: halved every `halve_every` epochs, or a cosine after a warm-up. Snapshots
    always use cycles of cosines."""
    halve_every: int = 5
    """Epochs after which the learning rate is halved."""
    training: int = 0
    """Of bootstrap: number of this training; another number starts from other weights, with the
    frames in another order."""

    @property
    def spec(self) -> MethodSpec:
        """Of the method."""
        return METHODS[self.method]

    @property
    def as_in_paper(self) -> bool:
        """Whether a fit of the basis network follows the paper's recipe."""
        return self.spec.fits and self.on_bases and self.recipe == "paper"

    @property
    def on_bases(self) -> bool:
        """Whether the method uses the basis network."""
        return self.spec.network == "basis"

    @property
    def depth_input(self) -> bool:
        """Whether the network sees a scaffold; those of other papers see the fit's points."""
        return self.on_bases and self.input == "rgbd"

    @property
    def trained_points(self) -> str:
        """Points that a prediction was made from in training."""
        apart = self.fit_points != "same" and not self.depth_input
        return self.fit_points if apart else self.input_points

    def with_epochs(self) -> "PaperConfig":
        """The same with the paper's number of epochs, if none is set."""
        return self if self.epochs else replace(self, epochs=self.spec.epochs)

    def check(self) -> None:
        """Refuse what cannot work."""
        if not self.epochs:
            return self.with_epochs().check()
        super().check()
        if self.epochs < self.spec.cycles:
            raise ValueError(
                f"--epochs {self.epochs} is too few: {self.method} needs at least "
                f"{self.spec.cycles}"
            )
        if not 0 <= self.input_drop <= 1:
            raise ValueError(f"--input-drop {self.input_drop} must be between 0 and 1")
        if self.width < 2 or self.halve_every < 1:
            raise ValueError(
                f"--width {self.width} must be at least 2, --halve-every {self.halve_every} at "
                "least 1"
            )
        for name in ("encoder_weights", "init_from"):
            if getattr(self, name) is not None and not self.on_bases:
                raise ValueError(
                    f"--{name.replace('_', '-')} is for methods on the basis network; "
                    f"{self.method} takes no weights"
                )
        if self.spec.fits:
            points = self.input_points if self.fit_points == "same" else self.fit_points
            check_enough_points(points, WEIGHTS if self.on_bases else self.width + 1)
        return None


_LARGE = PaperConfig(val_frames=64, workers=4)
_VKITTI2 = replace(_LARGE, data="vkitti2", downscale=2)
_KITTI = replace(_LARGE, data="kitti", input_points="sensor")

# By name: what it is, and its settings. All but the first two need --root and --encoder-weights.
PRESETS: dict[str, tuple[str, PaperConfig]] = {
    "custom": ("the paper's optimiser and schedule, on any data", PaperConfig()),
    "tiny": (
        "rendered rooms, two minutes on two CPU cores: a check that everything works",
        PaperConfig(
            data="rooms", frames=144, size=(80, 112), cache=True, val_frames=16, input="rgb",
            fit_points="1500", epochs=6, lr=1e-3, schedule="cosine", recipe="corrected",
        ),
    ),
    "nyu-5": (
        "NYU Depth V2 at 224 x 304, measured at 5 % of the pixels",
        replace(_LARGE, data="nyu", input_points="5%"),
    ),
    "nyu-500": (
        "NYU Depth V2 at 224 x 304, measured at 500 points",
        replace(_LARGE, data="nyu", input_points="500"),
    ),
    "vkitti2-5": (
        "Virtual KITTI 2 at half size, measured at 5 % of the pixels",
        replace(_VKITTI2, input_points="5%"),
    ),
    "vkitti2-500": (
        "Virtual KITTI 2 at half size, measured at 500 points",
        replace(_VKITTI2, input_points="500"),
    ),
    "kitti": ("KITTI at half size, the LiDAR's own points", replace(_KITTI, downscale=2)),
    "kitti-benchmark": (
        "the entry in KITTI's benchmark: a ResNet-34, frames of full size",
        replace(_KITTI, encoder="resnet34"),
    ),
}  # fmt: skip
