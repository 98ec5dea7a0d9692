# SPDX-License-Identifier: Apache-2.0
"""`deepbasis evaluate`."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tyro.conf import Positional

from deepbasis.options import options
from deepbasis.train.config import Data


@options
@dataclass(frozen=True)
class Evaluate:
    """Evaluate models and classical baselines on the test frames of a data set."""

    centred: ClassVar[bool] = False  # how frames are downscaled; see `deepbasis.data.sample.halve`
    models: Positional[tuple[Path, ...]] = ()
    """Names of pretrained models, model files, or training folders."""
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
    variant: str | None = None
    """For roads and the test frames of vkitti2: another light, weather or camera direction, such as
    fog or 15-deg-left. For kitti: val_selection, the benchmark's 1,000 validation frames."""
    points: tuple[str, ...] = ("5%", "1%", "500", "50", "10", "1", "0")
    """Points of each frame, one row for each entry: a number, a percentage of the pixels, a pattern
    (lidar64, tof, features300, ...), or sensor for the points of the data set itself."""
    baselines: tuple[str, ...] = ()
    """Classical baselines to evaluate too: nearest, linear, kriging, colourisation."""
    errors: tuple[Literal["independent", "correlated", "paper"], ...] = ()
    """Error models to evaluate each model with, one row for each (default: the model's own)."""
    out: Path | None = None
    """Write OUT.json, OUT.csv and OUT.md."""
    seed: int = 0
    """Seed of the random points."""
    workers: int = 1
    """Processes that prepare frames."""

    def run(self) -> None:
        """Evaluate, print the table row by row, write the files."""
        from deepbasis.model import load

        self.evaluate("deepbasis", load)

    def evaluate(self, program: str, load: Callable[[Path], Any]) -> None:
        """`run` of any command whose models have the interface of `Completer`."""
        from deepbasis.data.sources import Source
        from deepbasis.evaluation import open_methods, report

        methods = open_methods(self.models, self.baselines, self.errors, load)
        if not methods or (set(self.points) == {"0"} and not self.models):
            raise ValueError(
                "nothing to evaluate; name a model, or --baselines with --points other than 0"
            )
        if self.workers < 0:
            raise ValueError(f"--workers {self.workers} must be 0 or more")
        if self.out is not None and not self.out.parent.is_dir():
            raise ValueError(f"--out {self.out}: there is no folder {self.out.parent}; create it")
        source = Source(
            self.data, self.root, self.frames, self.size, self.downscale, variant=self.variant,
            centred=self.centred,
        )  # fmt: skip
        command = shlex.join([program, *sys.argv[1:]])
        report(methods, source, self.points, self.out, command, self.seed, self.workers)
