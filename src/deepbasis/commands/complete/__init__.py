# SPDX-License-Identifier: Apache-2.0
"""`deepbasis complete`: files in, files out."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from deepbasis.options import options
from deepbasis.pretrained import default_model

MANIFESTS = (".parquet", ".jsonl")
# Results of one file each, or for all frames in order, which shards and archives do not hold.
NOT_IN_SHARDS = ("cloud", "exr")
NOT_IN_ARCHIVES = ("sequence", "poses", "out_bag", "rerun", "json")


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
    """Images (.jpg, .png), or folders of them, or videos (.mp4, .avi, ...; needs PyAV); or a
    recording: a ROS 1 or ROS 2 bag (.bag, .mcap, .db3, or its folder), a TUM RGB-D folder, or a
    transforms.json; or a manifest: a table of frames, .parquet or .jsonl."""
    out: Path
    """Folder to write to; it is created if it does not exist. Shards may be written to any address
    that fsspec supports, such as s3://BUCKET/FOLDER."""
    sparse: Path | None = None
    """Measured depth: a file, or a folder of files named like the images. Depth image or array
    (.png .tif .npy .npz .pfm), rows of `u v metres [sigma]` (.csv .txt .npy), point cloud (.ply
    .pcd .bin .xyz .las .laz .e57) with --intrinsics, or the folder of a sparse COLMAP model.
    Without it, depth is estimated from the image alone."""
    trajectory: Path | None = None
    """Poses of the images in the frame of the map, a point cloud passed as --sparse: a file of
    `time tx ty tz qx qy qz qw`, as TUM RGB-D and ORB-SLAM write it. Images must be named by their
    time in seconds."""
    confidence: Path | None = None
    """Confidence of the depth images of --sparse, which may be smaller than the images: 0, 1 or 2
    as phones write it; a file, or a folder of files named like the images."""
    depth_scale: float | None = None
    """Metres = value / scale, for depth images, rows, point clouds, and lengths of COLMAP, maps and
    trajectories: 1000 for millimetres, 256 for KITTI, 5000 for TUM (default: the number in a
    scale.txt beside depth images or in the folder above; without it, integer depth images are
    refused, and everything else is in metres). For depth images of bags, TUM folders and
    transforms.json the default is their usual scale."""
    intrinsics: Path | None = None
    """Camera, `fx fy cx cy` or 3x3, in .txt or .json: a file, or a folder of them."""
    extrinsics: Path | None = None
    """Transform from a cloud's frame to the camera's (x right, y down, z forward): a file with a
    3x4 or 4x4 matrix. Points that a nearer surface hides from the camera are then dropped."""
    image: str | None = None
    """Topic of the images of a bag (default: the only one)."""
    points: str | None = None
    """Topic of the points of a bag: clouds, laser scans, ranges, or depth images aligned with the
    image (default: the only cloud)."""
    info: str | None = None
    """Topic of the camera info of a bag (default: camera_info beside the image)."""
    tf: bool = False
    """Also use transforms of a bag that change, such as those of a pan-tilt unit, interpolated at
    the time of the points. Transforms that never change are always used."""
    tolerance: float | None = None
    """Maximum time in seconds between an image of a recording and its points, or between an image
    and its pose (default 0.02); other images are left out."""
    ground_truth: Path | None = None
    """Ground truth to compare with: a depth image or array, or a folder of them."""
    ground_truth_scale: float | None = None
    """Metres = value / scale, for the ground truth (default: that of --depth-scale)."""
    sequence: bool = False
    """The images are consecutive frames of a video, in the order of their names: each starts from
    the estimate of the previous one, so that depth does not flicker."""
    poses: Path | None = None
    """Poses of the camera in a sequence: a file of `timestamp tx ty tz qx qy qz qw`, as in TUM
    RGB-D, from the camera's frame to the world's. Points are then carried over from frame to
    frame; needs --intrinsics. Not for recordings."""
    model: str | None = None
    """Name of a pretrained model, a model file, or a training folder (default: indoor, or open if
    that is not installed)."""
    max_depth: float | None = None
    """Drop measurements beyond this many metres."""
    robust: bool = True
    """Do not leave out points that contradict the others; they are still listed as outliers."""
    huber: float | None = None
    """Down-weight points whose residual exceeds this many standard deviations (Huber); typical
    value 1.345."""
    errors: Literal["independent", "correlated", "paper"] | None = None
    """Error model (default: the model's own)."""
    interval: tuple[float, ...] = ()
    """Also write maps of the interval with this coverage: --interval 0.9, after the images."""
    cloud: bool = False
    """Also write a coloured point cloud with the std of each point; needs --intrinsics."""
    png: Literal["ros", "kitti", "tum"] | None = None
    """Convention of the 16-bit .png files: metres = value / 1000 (ros), 256 (kitti) or 5000 (tum)
    (default: ros if all depths fit, up to 65.535 m, else kitti)."""
    exr: bool = False
    """Also write depth and std as channels Z and std of an OpenEXR image."""
    out_bag: Path | None = None
    """Also write image, depth, std and, if the camera is known, a cloud with std to this bag: ROS 1
    if the name ends in .bag, else a ROS 2 folder with MCAP. A bag that exists already is replaced
    only if the same command wrote it."""
    rerun: str | None = None
    """Also write image, points, depth, std, camera and cloud to this Rerun recording, a .rrd file,
    or send them to a running viewer at rerun+http://HOST:9876/proxy, or to one that `spawn`
    starts."""
    figure: bool = True
    """Do not draw image, depth and std."""
    check: bool = False
    """Hold out points, predict them from the others (in a sequence also from the frames before),
    and report whether they contradict the error bars or the image, with the most likely cause."""
    rescale: bool = False
    """Run the check, and widen the intervals until their coverage is correct on the held-out points
    of the frame: split conformal prediction, by level and by distance to the nearest point. Needs
    at least 40 held-out points."""
    save_calibration: Path | None = None
    """Run the check, and write one conformal table for all frames to this .json file; needs 9
    frames with points or more. Take that of sequences from several places."""
    calibration: Path | None = None
    """Use the intervals of a conformal table written by --save-calibration or `deepbasis adapt`."""
    device: str | None = None
    """cpu, cuda, cuda:1, ... (default: a GPU if there is one)."""
    ray: str | None = None
    """Complete frames on a Ray cluster: its address (HOST:6379, or auto), or local to start Ray on
    this machine only."""
    workers: int | None = None
    """Number of worker processes for --ray, each on one core or one GPU (default: one for each GPU,
    or for each core if there is none)."""
    shard_frames: int | None = None
    """Instead of files for each frame, write shards of this many frames, for example 64: Parquet
    files with the maps of depth and std."""
    half: bool = False
    """Store the maps of shards as float16 instead of float32: half the size, rounded by up to
    0.05 %."""
    quiet: bool = False
    """Print warnings and errors only."""
    json: bool = False
    """Print the summary of each frame, or why it failed, as one line of JSON."""

    def run(self) -> None:
        """Complete all images."""
        self.validate()
        if self.is_archive:
            from deepbasis.commands.complete.archive import complete_here, run_archive
            from deepbasis.commands.complete.storage import to_path

            settings = replace(self, out=to_path(str(self.out)))
            if self.ray is None:
                run_archive(settings, complete_here)
            else:
                from deepbasis.data.extras import need

                need("ray.data", "ray", "--ray")
                from deepbasis.commands.complete.on_ray import complete_on_ray

                run_archive(settings, complete_on_ray)
        else:
            from deepbasis.commands.complete.run import run

            run(self)

    @property
    def is_archive(self) -> bool:
        """Whether frames are completed in groups, possibly on many machines."""
        manifest = any(path.suffix.lower() in MANIFESTS for path in self.images)
        return self.ray is not None or self.shard_frames is not None or manifest

    @cached_property
    def chosen_model(self) -> str:
        """The model to use; a warning says so once if it is not the usual or not calibrated."""
        if self.model is None:
            return default_model()
        if self.model.startswith("hf:"):
            warnings.warn(
                f"the error bars of {self.model} are not calibrated: `deepbasis adapt` does this",
                stacklevel=2,
            )
        return self.model

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
            raise ValueError("--rescale calibrates each frame separately: leave out --calibration")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(f"--tolerance {self.tolerance:g} must be 0 or more seconds")
        if self.out_bag is not None and self.out_bag.suffix.lower() in (".mcap", ".db3"):
            raise ValueError(
                f"--out-bag {self.out_bag} would be a folder of ROS 2: leave out "
                f"{self.out_bag.suffix}, or write a .bag"
            )
        self.validate_archive()

    def validate_archive(self) -> None:
        """Refuse settings that make no sense for frames completed in groups."""
        for name in ("workers", "shard_frames"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"--{name.replace('_', '-')} {count} must be at least 1")
        if self.workers is not None and self.ray is None:
            raise ValueError("--workers is for Ray only: pass --ray local, or its address")
        if self.half and self.shard_frames is None:
            raise ValueError("--half is for shards only: pass --shard-frames")
        if not self.is_archive:
            return
        refused = NOT_IN_ARCHIVES + (NOT_IN_SHARDS if self.shard_frames is not None else ())
        for name in refused:
            if getattr(self, name):
                raise ValueError(
                    f"--{name.replace('_', '-')} is not possible with --ray, --shard-frames or a "
                    "manifest: leave it out"
                )
