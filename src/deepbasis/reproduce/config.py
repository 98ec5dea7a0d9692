# SPDX-License-Identifier: Apache-2.0
"""Settings of a reproduction; nothing heavy is imported, so that `--help` answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Target = Literal[
    "noise-term", "worlds", "mid", "low", "sparsity", "curves", "bounds", "shift", "nees", "prior",
    "runtime", "qualitative", "variances", "neighbours", "showcase", "enet",
]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What the trainings of one reproduction have in common."""

    data: Literal["nyu", "vkitti2", "kitti", "rooms", "roads"] = "rooms"
    """Data set. rooms and roads are rendered."""
    root: Path | None = None
    """Folder of the data set, or NYU's .mat file."""
    frames: int | None = None
    """Use only so many frames; of rooms and roads, render so many (100 by default)."""
    size: tuple[int, int] | None = None
    """Height and width of rendered frames."""
    halvings: int = 0
    """Halve the frames so many times; nyu starts at 224 x 304, the others at full size."""
    epochs: int | None = None
    """Of fits; the others train half as long again. By default the paper's 20 and 30, with its
    schedule; fewer go by one cosine."""
    seeds: int = 1
    """Train everything so many times; tables then show mean and spread."""
    encoder_weights: Path | None = None
    """Pretrained MobileNetV2 in torchvision's names, for colours from -1 to 1."""
    runs: Path = Path("runs")
    """Folder of the trainings; finished ones are used again."""
    out: Path = Path()
    """Folder to write pages and figures to."""
    seed: int = 0
    """Another seed draws other points."""
    no_train: bool = False
    """Train nothing: what is missing is named, with the command that makes it."""
    shift_root: Path | None = None
    """Of `shift`: frames of another domain. With --data rooms it is NYU, with roads and vkitti2
    KITTI, with nyu and kitti any folder of rgb/ and depth/."""
    width: int = 16
    """Of `enet`: channels at full size; the paper has 32."""
    with_images: bool = False
    """Of `qualitative` and `showcase`: draw photographs and true depth of real data sets too."""

    @property
    def held_back(self) -> int:
        """Training frames for calibration: 64, or an eighth of few."""
        few = 100 if self.data in ("rooms", "roads") else None
        count = self.frames or few
        return 64 if count is None else min(64, count // 8)
