# SPDX-License-Identifier: Apache-2.0
"""Settings of a reproduction; nothing heavy is imported, so that `--help` is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deepbasis.options import options

Target = Literal[
    "noise-term", "worlds", "mid", "low", "sparsity", "curves", "bounds", "shift", "nees", "prior",
    "runtime", "qualitative", "zero-points", "published", "unguided", "claims", "ensembles",
    "variances", "neighbours", "showcase", "enet",
]  # fmt: skip


@options
@dataclass(frozen=True)
class Plan:
    """What the trainings of one reproduction have in common."""

    data: Literal["nyu", "vkitti2", "kitti", "rooms", "roads"] = "rooms"
    """Data set. rooms and roads are rendered."""
    root: Path | None = None
    """Folder of the data set, or NYU's .mat file."""
    frames: int | None = None
    """Use only this many frames; for rooms and roads, render this many (default 100)."""
    size: tuple[int, int] | None = None
    """Height and width of rendered frames."""
    downscale: int = 1
    """Reduce height and width by this factor, a power of 2; nyu starts at 224 x 304, the others at
    full size."""
    epochs: int | None = None
    """Epochs of methods with a fit; the others train 1.5 times as long. By default the paper's 20
    and 30 epochs with its schedule; with another number the learning rate follows one cosine."""
    seeds: int = 1
    """Train everything this many times; tables then show mean and standard deviation."""
    encoder: Literal["mobilenet_v2", "resnet34"] = "mobilenet_v2"
    """First half of the basis network; the paper's entry in KITTI's benchmark has a ResNet-34."""
    encoder_weights: Path | None = None
    """Pretrained encoder with torchvision's parameter names: a .safetensors or .pth file."""
    normalisation: Literal["imagenet", "symmetric"] = "imagenet"
    """Colour normalisation that these weights expect: torchvision's, or -1 to 1."""
    cache: bool = False
    """Keep all frames in memory. Use it with rendered frames, which are rendered again in every
    epoch otherwise, and with data sets that fit."""
    mixed_precision: bool = False
    """Compute networks in bfloat16 during training: faster on some processors and GPUs."""
    runs: Path = Path("runs")
    """Folder of the trainings; finished ones are used again."""
    out: Path = Path()
    """Folder to write pages and figures to."""
    seed: int = 0
    """Seed of the random points."""
    val_selection: bool = False
    """With --data kitti, test on the benchmark's selection of 1,000 validation frames instead of
    all."""
    no_train: bool = False
    """Train nothing: the page lists what is missing, with the commands that train it."""
    shift_root: Path | None = None
    """For shift: frames of another domain. With --data rooms it is NYU, with roads and vkitti2
    KITTI, with nyu and kitti any folder of rgb/ and depth/."""
    width: int = 16
    """For enet: channels at full size; the paper has 32."""
    with_images: bool = False
    """For qualitative, zero-points and showcase: also draw photographs and ground truth of real
    data sets."""

    @property
    def val_frames(self) -> int:
        """Training frames for calibration: 64, or an eighth of few."""
        few = 100 if self.data in ("rooms", "roads") else None
        count = self.frames or few
        return 64 if count is None else min(64, count // 8)

    @property
    def stands_for(self) -> str:
        """The data set of the paper that this one is compared with: itself, but for roads."""
        return "vkitti2" if self.data == "roads" else self.data

    def check(self) -> None:
        """Refuse what cannot work."""
        if self.seeds < 1:
            raise ValueError(f"--seeds {self.seeds} must be at least 1")
        if self.val_selection and self.data != "kitti":
            raise ValueError(f"--val-selection is for --data kitti, not {self.data}")
