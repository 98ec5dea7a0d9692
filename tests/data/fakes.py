# SPDX-License-Identifier: Apache-2.0
"""Tiny data sets in the real layouts. Frame k has the colour k + 1 and the depth k + 1 metres.

The first pixel of every depth map is not measured.
"""

import json
import re
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

DRIVES = {"train": "2011_09_26_drive_0001_sync", "val": "2011_09_26_drive_0002_sync"}
VKITTI2_SCENES = ("Scene01", "Scene02", "Scene06", "Scene18", "Scene20")
VKITTI2_VARIANTS = (
    "clone", "fog", "morning", "overcast", "rain", "sunset",
    "15-deg-left", "15-deg-right", "30-deg-left", "30-deg-right",
)  # fmt: skip
CALIBRATION = """calib_time: 09-Jan-2012 13:57:47
S_rect_02: 1.242000e+03 3.750000e+02
P_rect_02: 7.215377e+02 0 6.095593e+02 4.485728e+01 0 7.215377e+02 1.728540e+02 2.1e-01 0 0 1 2e-03
P_rect_03: 7.215377e+02 0 6.095593e+02 -3.39e+02 0 7.215377e+02 1.728540e+02 2.199936e+00 0 0 1 2e-3
"""


def image(path: Path, value: int, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


def counts(path: Path, value: int, size: tuple[int, int]) -> None:
    """A 16-bit picture of one number, but 0 in its first pixel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.full(size, value, np.uint16)
    values[0, 0] = 0
    Image.fromarray(values).save(path)


def folder(root: Path, size: tuple[int, int] = (4, 6)) -> Path:
    """As `Folder` reads it and `deepbasis render` writes it: millimetres."""
    for k in range(3):
        image(root / "rgb" / f"{k:06d}.jpg", k + 1, size)
        counts(root / "depth" / f"{k:06d}.png", 1000 * (k + 1), size)
        counts(root / "lidar" / f"{k:06d}.png", 500 * (k + 1), size)
    (root / "intrinsics").mkdir()
    for k in range(3):
        (root / "intrinsics" / f"{k:06d}.txt").write_text(f"{k + 1} 4 2.5 1.5\n")
    (root / "intrinsics.txt").write_text("3.0 4.0 2.5 1.5\n")
    (root / "scale.txt").write_text("1000\n")
    return root


def nyu_folder(root: Path) -> Path:
    for k in (0, 2, 3):
        image(root / "rgb" / f"{k:04d}.jpg", k + 1, (240, 320))
        counts(root / "depth" / f"{k:04d}.png", 1000 * (k + 1), (240, 320))
    (root / "split.json").write_text(json.dumps({"train": [3, 2], "test": [0]}))
    return root


def nyu_mat(path: Path, frames: tuple[int, ...] = (0, 1, 2)) -> Path:
    """Full size, but HDF5 stores only the frames that are written. Pixel (row, column) of frame k
    is red k + 1, green row / 2, blue column / 3, and k + 1 + row / 1000 metres away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    row, column = np.mgrid[:480, :640]
    with h5py.File(path, "w", userblock_size=512) as file:
        images = file.create_dataset("images", (1449, 3, 640, 480), "u1", chunks=(1, 3, 640, 480))
        depths = file.create_dataset("depths", (1449, 640, 480), "f4", chunks=(1, 640, 480))
        for k in frames:
            colours = np.stack([np.full_like(row, k + 1), row // 2, column // 3])
            images[k] = colours.transpose(0, 2, 1)
            depths[k] = (k + 1 + row / 1000).T
    return path


def vkitti2(root: Path, size: tuple[int, int] = (5, 8)) -> Path:
    for scene in VKITTI2_SCENES:
        for variant in VKITTI2_VARIANTS:
            for camera in ("Camera_0", "Camera_1"):
                frames = root / scene / variant / "frames"
                for k in range(2):
                    image(frames / "rgb" / camera / f"rgb_{k:05d}.jpg", k + 1, size)
                    counts(frames / "depth" / camera / f"depth_{k:05d}.png", 100 * (k + 1), size)
    return root


def kitti(root: Path, size: tuple[int, int] = (6, 8), *, apart: bool = False) -> Path:
    """Frames 5 and 6 of one drive for each split; the LiDAR measures half the depth."""
    for split, drive in DRIVES.items():
        truth = root / "data_depth_annotated" / split if apart else root / split
        sparse = root / "data_depth_velodyne" / split if apart else root / split
        for k, number in enumerate((5, 6)):
            for camera in ("image_02", "image_03"):
                name = f"{camera}/{number:010d}.png"
                counts(truth / drive / "proj_depth" / "groundtruth" / name, 256 * (k + 1), size)
                counts(sparse / drive / "proj_depth" / "velodyne_raw" / name, 128 * (k + 1), size)
                raw = root / "raw" / drive[:10] / drive / camera / "data"
                image(raw / f"{number:010d}.png", k + 1, size)
        # A raw drive has images from before the first ground truth.
        image(raw / "0000000000.png", 200, size)
    (root / "raw" / "2011_09_26" / "calib_cam_to_cam.txt").write_text(CALIBRATION)
    kitti_selection(root / "depth_selection", size)
    return root


def kitti_selection(root: Path, size: tuple[int, int]) -> None:
    drive, matrix = DRIVES["val"], "7.2e+02 0.0 6.0e+02 0.0 7.1e+02 1.7e+02 0.0 0.0 1.0"
    val, test = root / "val_selection_cropped", root / "test_depth_completion_anonymous"
    for k, number in enumerate((5, 8)):
        end = f"{number:010d}_image_02"
        image(val / "image" / f"{drive}_image_{end}.png", k + 1, size)
        counts(
            val / "groundtruth_depth" / f"{drive}_groundtruth_depth_{end}.png", 256 * (k + 1), size
        )
        counts(val / "velodyne_raw" / f"{drive}_velodyne_raw_{end}.png", 128 * (k + 1), size)
        image(test / "image" / f"{k:010d}.png", k + 1, size)
        counts(test / "velodyne_raw" / f"{k:010d}.png", 128 * (k + 1), size)
        for text in (val / f"intrinsics/{drive}_image_{end}", test / f"intrinsics/{k:010d}"):
            text.parent.mkdir(exist_ok=True)
            text.with_suffix(".txt").write_text(matrix)


def drawn_files(reader: type) -> list[str]:
    """Paths in the tree that a reader's docstring draws, without its root."""
    drawn = re.search(r"```\n(.*?)```", reader.__doc__ or "", re.DOTALL)
    assert drawn, f"{reader.__name__} draws no tree"
    lines = [line.split()[0] for line in drawn[1].splitlines()[1:] if line.strip()]
    return [line.replace("/X_", f"/{DRIVES['val']}_") for line in lines if "..." not in line]
