# SPDX-License-Identifier: Apache-2.0
"""`deepbasis complete`: files in, files out."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from deepbasis.options import options


@options
@dataclass(frozen=True)
class Complete:
    """Complete sparse depth: dense depth with error bars, for one image or many.

    For an image NAME it writes NAME-depth and NAME-std as 16-bit .png and as .npy in metres, the
    figure NAME.png, and NAME.json: points used and dropped, outliers, warnings, and the scales of
    the 16-bit .png files, which are data for programs (most viewers show them black). Frames that
    are up to date are skipped.
    """

    images: Positional[tuple[Path, ...]]
    """Images (.jpg, .png), or folders of them."""
    out: Path
    """Folder to write to; it is created if it does not exist."""
    sparse: Path | None = None
    """Measured depth: a file, or a folder of files named like the images. Depth image or array
    (.png .tif .npy .npz .pfm), rows of `u v metres [sigma]` (.csv .txt .npy), or point cloud (.ply
    .pcd .bin .xyz) with --intrinsics. Without it, depth comes from the image alone."""
    depth_scale: float | None = None
    """Metres = value / scale, for depth images and rows: 1000 for millimetres, 256 for KITTI, 5000
    for TUM (default: what a scale.txt beside depth images says, 1 for rows)."""
    ground_truth_scale: float | None = None
    """The same for the ground truth (default: that of --depth-scale)."""
    intrinsics: Path | None = None
    """Camera, `fx fy cx cy` or 3x3, in .txt or .json: a file, or a folder of them."""
    extrinsics: Path | None = None
    """Transform from a cloud's frame to the camera's (x right, y down, z forward): a file of 3x4 or
    4x4 numbers. Points that a nearer surface hides from the camera are then dropped."""
    ground_truth: Path | None = None
    """True depth to compare with: an image or array, or a folder of them."""
    model: str = "indoor"
    """Name of a bundled model, a model file, or the folder of a training."""
    max_depth: float | None = None
    """Drop measurements beyond this many metres."""
    huber: float | None = None
    """Down-weight outliers: clip residuals beyond this many standard deviations; typical value
    1.345."""
    errors: Literal["independent", "correlated", "paper"] | None = None
    """Error model (default: the model's own)."""
    interval: tuple[float, ...] = ()
    """Also write maps of the interval with this coverage, for example 0.9."""
    cloud: bool = False
    """Also write a coloured point cloud with the std of each point; needs --intrinsics."""
    figure: bool = True
    """Do not draw image, depth and std."""
    check: bool = False
    """Hold out points, predict them from the others, and say whether they contradict the error bars
    or the image, and the most likely cause."""
    rescale: bool = False
    """Check, and make the intervals hold on the held-out points of the frame: split conformal, by
    level and by distance to the nearest point. Refused with too few points."""
    save_calibration: Path | None = None
    """Check, and write one conformal table of all frames to this .json file: 9 frames or more."""
    calibration: Path | None = None
    """Make the intervals those of a table that --save-calibration or `deepbasis adapt` wrote."""
    device: str | None = None
    """cpu, cuda, cuda:1, ... (default: a GPU if there is one)."""
    quiet: bool = False
    """Print warnings and errors only."""
    json: bool = False
    """Print the summary of each frame, or why it failed, as one line of JSON."""

    def run(self) -> None:
        """Complete all images."""
        self.validate()
        from deepbasis.commands.complete.run import run

        run(self)

    @property
    def checks(self) -> bool:
        """Whether points are held out."""
        return self.check or self.rescale or self.save_calibration is not None

    def say(self, text: str) -> None:
        """Print, unless something else was asked for."""
        if not (self.quiet or self.json):
            print(text, flush=True)

    def validate(self) -> None:
        """Refuse settings that make no sense."""
        if not self.images:
            raise ValueError("there is no image to complete; pass images or folders of them")
        for level in self.interval:
            if not 0 < level < 1:
                raise ValueError(f"--interval {level:g} is not a probability between 0 and 1")
        for name in ("depth_scale", "ground_truth_scale"):
            scale = getattr(self, name)
            if scale is not None and not 0 < scale < math.inf:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} {scale:g} is not positive; metres = value / scale")
        if self.max_depth is not None and not self.max_depth > 0:
            raise ValueError(f"--max-depth {self.max_depth:g} is not a positive depth in metres")
        if self.huber is not None and not 0 < self.huber < math.inf:
            raise ValueError(
                f"--huber {self.huber:g} is not a positive number of standard deviations"
            )
        if self.rescale and self.calibration is not None:
            raise ValueError("--rescale calibrates each frame by itself: leave out --calibration")
        if self.cloud and self.intrinsics is None:
            raise ValueError("--cloud needs the camera: pass --intrinsics")
        if self.extrinsics is not None and (self.sparse is None or self.intrinsics is None):
            raise ValueError("--extrinsics are of a point cloud: pass --sparse and --intrinsics")
