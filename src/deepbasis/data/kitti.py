# SPDX-License-Identifier: Apache-2.0
"""KITTI depth completion: roads, a colour camera and a 64-beam LiDAR."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from deepbasis.data.files import PICTURES, check_choice, check_paired, find_folder, list_by_stem
from deepbasis.data.folder import read_intrinsics
from deepbasis.data.formats import KITTI, read_depth_png, to_sample
from deepbasis.data.images import read_image
from deepbasis.data.limits import read_text, reading
from deepbasis.data.sample import Sample, halve
from deepbasis.points import check_camera
from deepbasis.shapes import Float

CAMERAS = ("image_02", "image_03")
SELECTIONS = {"val_selection": "val_selection_cropped", "test": "test_depth_completion_anonymous"}
# The cameras differ by a few pixels; the benchmark scores this much of every frame.
SIZE = (352, 1216)


class _Frame(NamedTuple):
    name: str
    image: Path
    sparse: Path
    depth: Path | None
    camera: Path
    """File with the intrinsics; it need not exist."""


class Kitti:
    """The KITTI depth completion benchmark in its published layout.

    ```
    root/
      train/2011_09_26_drive_0001_sync/proj_depth/groundtruth/image_02/0000000005.png
      train/2011_09_26_drive_0001_sync/proj_depth/velodyne_raw/image_02/0000000005.png
      val/2011_09_26_drive_0002_sync/...                           likewise
      raw/2011_09_26/2011_09_26_drive_0001_sync/image_02/data/0000000005.png
      raw/2011_09_26/calib_cam_to_cam.txt                          optional: intrinsics
      depth_selection/val_selection_cropped/image/X_image_0000000005_image_02.png
      depth_selection/val_selection_cropped/groundtruth_depth/X_groundtruth_depth_0000000005_image_02.png
      depth_selection/val_selection_cropped/velodyne_raw/X_velodyne_raw_0000000005_image_02.png
      depth_selection/val_selection_cropped/intrinsics/X_image_0000000005_image_02.txt
      depth_selection/test_depth_completion_anonymous/image/0000000000.png
      depth_selection/test_depth_completion_anonymous/velodyne_raw/0000000000.png
      depth_selection/test_depth_completion_anonymous/intrinsics/0000000000.txt
    ```

    `groundtruth` and `velodyne_raw` may also stay apart, as the archives unpack them, in
    data_depth_annotated/train/... and data_depth_velodyne/train/... . Depths are 16-bit PNG, metres
    = value / 256, and 0 means no measurement. `sparse` is one sweep of the LiDAR, `depth` is
    accumulated from eleven sweeps. The depth of the test set is not public, and 0 everywhere.

    Args:
        root: the folder that holds these.
        split: "train", "val", "val_selection" or "test".
        halve: reduce height and width by 2; the benchmark requires False.
    """

    def __init__(
        self,
        root: Path,
        split: Literal["train", "val", "val_selection", "test"] = "train",
        halve: bool = True,
    ) -> None:
        check_choice("split", split, ("train", "val", *SELECTIONS))
        self.halve = halve
        find_folder(root)
        if split in SELECTIONS:
            self.frames = list(_list_selection(root / "depth_selection" / SELECTIONS[split]))
        else:
            self.frames = list(_list_drives(root, split))

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.frames)

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.frames[index].name

    def __getitem__(self, index: int) -> Sample:
        """Read one frame."""
        frame = self.frames[index]
        depth = None if frame.depth is None else read_depth_png(frame.depth, KITTI)
        sparse = read_depth_png(frame.sparse, KITTI)
        camera = _read_camera(frame)
        sample = to_sample(frame.name, read_image(frame.image), depth, sparse, camera)
        return halve(sample) if self.halve else sample


def _list_drives(root: Path, split: str) -> Iterator[_Frame]:
    """Frames of all drives and both cameras of a split that exist."""
    merged = (root / split).is_dir()
    annotated, velodyne = (
        root / split if merged else root / f"data_depth_{name}" / split
        for name in ("annotated", "velodyne")
    )
    hint = f"`root` should hold {split}/, or data_depth_annotated/{split}/ and data_depth_velodyne/"
    drives = sorted(p for p in find_folder(annotated, hint).iterdir() if p.is_dir())
    folders = [
        (drive / "proj_depth" / "groundtruth" / camera, drive.name, camera)
        for drive in drives
        for camera in CAMERAS
    ]
    present = [entry for entry in folders if entry[0].is_dir()]
    if not present:
        raise FileNotFoundError(f"{annotated} has no drive with proj_depth/groundtruth/image_02")
    for truth, drive, camera in present:
        sparse = velodyne / drive / "proj_depth" / "velodyne_raw" / camera
        raw = root / "raw" / drive[:10]  # the name of a drive starts with its date
        yield from _list_drive(truth, sparse, raw / drive / camera / "data")


def _list_drive(truth: Path, sparse: Path, images: Path) -> Iterator[_Frame]:
    """Frames of one drive and camera that have ground truth."""
    depths, sweeps = (list_by_stem(folder, [".png"]) for folder in (truth, sparse))
    check_paired(depths, sweeps, (f"{truth}/*.png", f"{sparse}/*.png"))
    hint = f"it should hold the images of {truth}, from KITTI's raw data"
    pictures = list_by_stem(images, PICTURES, hint)
    drive, camera = images.parents[1].name, images.parent.name
    for stem, depth in depths.items():
        if stem not in pictures:
            raise FileNotFoundError(
                f"there is no image {images}/{stem}.png for {depth}; "
                f"{images}/* are {len(pictures)} files, {truth}/* are {len(depths)}"
            )
        calibration = images.parents[2] / "calib_cam_to_cam.txt"
        yield _Frame(f"{drive}/{camera}/{stem}", pictures[stem], sweeps[stem], depth, calibration)


def _list_selection(folder: Path) -> Iterator[_Frame]:
    """Frames of the benchmark's selected validation or anonymous test set."""
    hint = "unpack KITTI's data_depth_selection.zip in `root`"
    images = list_by_stem(folder / "image", [".png"], hint)
    sweeps = _list_renamed(folder, "velodyne_raw")
    check_paired(images, sweeps, (f"{folder}/image/*.png", f"{folder}/velodyne_raw/*.png"))
    depths: dict[str, Path] = {}
    if folder.name == SELECTIONS["val_selection"]:
        depths = _list_renamed(folder, "groundtruth_depth")
        check_paired(images, depths, (f"{folder}/image/*.png", f"{folder}/groundtruth_depth/*.png"))
    for stem, image in images.items():
        camera = folder / "intrinsics" / f"{stem}.txt"
        yield _Frame(stem, image, sweeps[stem], depths.get(stem), camera)


def _list_renamed(folder: Path, kind: str) -> dict[str, Path]:
    """Files of one kind by the stem of their image; file names contain the kind."""
    found = list_by_stem(folder / kind, [".png"])
    return {stem.replace(f"_{kind}_", "_image_"): path for stem, path in found.items()}


def _read_camera(frame: _Frame) -> Float[Tensor, "3 3"] | None:
    if not frame.camera.exists():
        return None
    if frame.camera.name == "calib_cam_to_cam.txt":
        return read_calibration(frame.camera, frame.image.parents[1].name)
    return read_intrinsics(frame.camera)


def read_calibration(path: Path, camera: str) -> Float[Tensor, "3 3"]:
    """Intrinsics of `image_02` or `image_03` from a drive's calib_cam_to_cam.txt."""
    key = f"P_rect_{camera[-2:]}"
    lines = dict(line.split(":", 1) for line in read_text(path).splitlines() if ":" in line)
    numbers = lines.get(key, "").split()
    try:
        if len(numbers) == 12:
            found = torch.tensor([float(number) for number in numbers]).view(3, 4)[:, :3].clone()
            with reading(path, "a calibration of KITTI"):
                check_camera(found)
            return found
    except (ValueError, RuntimeError) as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {key} holds something that is not a number") from error
    raise ValueError(
        f"{path} has no row `{key}:` of 12 numbers (found {len(numbers)}); "
        "it is the calibration of rectified images that comes with KITTI's raw data"
    )
