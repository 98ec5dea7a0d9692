# SPDX-License-Identifier: Apache-2.0
"""Settings of `deepbasis complete`. No heavy import stands here: `--help` reads this file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """What to read beside the images, how to complete them, and what to write."""

    out: Path
    """Folder to write to; it is made if it is not there."""
    sparse: Path | None = None
    """Measured depth: a file, or a folder of files named like the images. Depth image or array
    (.png .tif .npy .npz .pfm), rows of `u v metres [sigma]` (.csv .txt), or point cloud (.ply .pcd
    .bin) with --intrinsics. Without it, depth comes from the image alone."""
    depth_scale: float | None = None
    """Metres = value / scale, for depth images: 1000 for millimetres, 256 for KITTI, 5000 for TUM;
    by default what a scale.txt beside them says."""
    intrinsics: Path | None = None
    """Camera, `fx fy cx cy` or 3x3, in .txt or .json: a file, or a folder of them."""
    extrinsics: Path | None = None
    """Pose that takes a cloud's points to the camera's frame (x right, y down, z forward): a file
    of 3x4 or 4x4 numbers. Points that a nearer surface hides from the camera are then dropped."""
    truth: Path | None = None
    """True depth to compare with: an image or array, or a folder of them."""
    model: str = "indoor"
    """Model that comes with the package, or a model file, or the folder of a training."""
    max_depth: float | None = None
    """Drop measurements beyond so many metres."""
    huber: float | None = None
    """Keep outliers from pulling: clip residuals beyond so many sigmas; 1.345 is customary."""
    errors: Literal["independent", "local"] | None = None
    """How errors of neighbouring pixels are taken; by default as the model was made to."""
    variance: Literal["predictive", "paper"] | None = None
    """What the error bars hold: noise and model, or the paper's model part alone."""
    interval: tuple[float, ...] = ()
    """Also write maps of the interval that holds so much of the probability, as 0.9."""
    cloud: bool = False
    """Also write a coloured point cloud with the std of each point; needs --intrinsics."""
    figure: bool = True
    """Draw image, depth and std."""
    check: bool = False
    """Hold back a tenth of the points, predict them, and say whether error bars hold here."""
    rescale: bool = False
    """Check, and multiply the std by the factor that makes it hold."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; by default a GPU if there is one."""

    def validate(self) -> None:
        """Refuse what cannot be meant."""
        for level in self.interval:
            if not 0 < level < 1:
                raise ValueError(f"--interval {level:g} is not a probability between 0 and 1")
        if self.max_depth is not None and not self.max_depth > 0:
            raise ValueError(f"--max-depth {self.max_depth:g} is not a positive depth in metres")
        if self.huber is not None and not self.huber > 0:
            raise ValueError(f"--huber {self.huber:g} is not a positive number of sigmas")
        if self.cloud and self.intrinsics is None:
            raise ValueError("--cloud needs the camera: pass --intrinsics")
        if self.extrinsics is not None and (self.sparse is None or self.intrinsics is None):
            raise ValueError("--extrinsics are of a point cloud: pass --sparse and --intrinsics")
