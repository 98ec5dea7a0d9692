# SPDX-License-Identifier: Apache-2.0
"""Folders of TUM RGB-D, and trajectories with a map of points, as ORB-SLAM writes them.

    rgbd_dataset_freiburg1_desk/
      rgb.txt       `time path` on each line: 1305031452.791720 rgb/1305031452.791720.png
      depth.txt     the same, of 16-bit depth images aligned with the images; metres = value / 5000

`trajectories` describes the poses.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path

import torch
from torch import Tensor

from deepbasis.data.clouds import read_cloud
from deepbasis.data.formats import TUM, read_depth
from deepbasis.data.images import read_image
from deepbasis.data.limits import read_text
from deepbasis.data.recording import NANOSECONDS, TOLERANCE, Recorded, pair
from deepbasis.data.trajectories import NOT_SECONDS, read_trajectory
from deepbasis.points import Points, remove_occluded
from deepbasis.shapes import Float

LISTS = ("rgb.txt", "depth.txt")
# Of a file; longer ones are damaged.
LONGEST_NAME = 255


class TumFolder:
    """Images and depth images of a folder of TUM RGB-D, paired by time, as a `Recording`.

    Args:
        root: the folder with rgb.txt and depth.txt.
        camera: its intrinsics, if known.
        scale: metres = value / scale.
        tolerance: seconds between an image and its depth.
    """

    def __init__(
        self,
        root: Path,
        camera: Float[Tensor, "3 3"] | None = None,
        scale: float | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.camera, self.scale = camera, scale or TUM
        self.lists = [root / name for name in LISTS]
        images, depths = (_read_list(path) for path in self.lists)
        times = list(images), list(depths)
        pairs = pair(*times, tolerance, str(root))
        self._files: dict[str, tuple[int, Path, Path]] = {}
        for i, j in pairs.items():
            image = images[times[0][i]]
            if image.stem in self._files:
                raise ValueError(
                    f"{self.lists[0]}: two images are called {image.stem!r}, in different folders "
                    "or with different suffixes; rename one"
                )
            self._files[image.stem] = (times[0][i], image, depths[times[1][j]])
        self.names = list(self._files)
        off = max(abs(times[0][i] - times[1][j]) for i, j in pairs.items()) / NANOSECONDS
        self.about = (
            f"{root}: {len(self.names)} of {len(images)} images, each with a depth image at most "
            f"{off:.3g} s away"
        )

    def files(self, name: str) -> list[Path]:
        """Files that a frame depends on."""
        return [*self._files[name][1:], *self.lists]

    def read(self, name: str) -> Recorded:
        """Read a frame."""
        time, image, depth = self._files[name]
        pixels, metres = read_image(image), read_depth(depth, self.scale)
        if metres.shape != pixels.shape[:2]:
            raise ValueError(
                f"{depth} is {metres.shape[0]} x {metres.shape[1]} pixels (height x width), but "
                f"{image} is {pixels.shape[0]} x {pixels.shape[1]}"
            )
        return Recorded(pixels, Points.from_map(metres), self.camera, time)


class MapFrames:
    """Images whose pose in a map of points is known, as a `Recording`.

    Args:
        images: files by name; a name is its time in seconds.
        trajectory: file of poses.
        cloud: the map, .ply or another cloud, in the frame of the trajectory.
        camera: intrinsics.
        scale: metres = length / scale, of the map and of the trajectory.
        tolerance: seconds between an image and its pose.
    """

    def __init__(
        self,
        images: Mapping[str, Path],
        trajectory: Path,
        cloud: Path,
        camera: Float[Tensor, "3 3"],
        scale: float = 1.0,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.images, self.camera, self.shared = images, camera, [trajectory, cloud]
        known, poses = read_trajectory(trajectory).by_time()
        self.map = torch.from_numpy(read_cloud(cloud, scale, is_map=True))
        times = sorted((_to_time(name, path), name) for name, path in images.items())
        pairs = pair([time for time, _ in times], known, tolerance, str(trajectory))
        self._poses = {}
        for i, j in pairs.items():
            time, name = times[i]
            pose = torch.from_numpy(poses[j].copy())
            pose[:3, 3] /= scale
            self._poses[name] = (time, torch.linalg.inv(pose))
        self.names = list(self._poses)
        self.about = f"{trajectory}: {len(self.names)} of {len(images)} images have a pose"

    def files(self, name: str) -> list[Path]:
        """Files that a frame depends on."""
        return [self.images[name], *self.shared]

    def read(self, name: str) -> Recorded:
        """Read a frame."""
        time, pose = self._poses[name]
        image = read_image(self.images[name])
        points = Points.from_cloud(self.map, self.camera, pose, image.shape[:2])
        return Recorded(image, remove_occluded(points, image.shape[:2]), self.camera, time)


def is_tum(folder: Path) -> bool:
    """Whether a folder is one of TUM RGB-D."""
    return all((folder / name).is_file() for name in LISTS)


def check_tum(folder: Path) -> None:
    """Refuse a folder that has only one of the two lists."""
    there = [name for name in LISTS if (folder / name).is_file()]
    if len(there) == 1:
        (missing,) = set(LISTS) - set(there)
        raise FileNotFoundError(
            f"{folder} has {there[0]} of a TUM RGB-D folder, but not {missing}, which lists `time "
            "path` of each image; add it, or pass the folder of the images instead"
        )


def _read_list(path: Path) -> dict[int, Path]:
    """Files by time, sorted."""
    found = {}
    for number, words in _lines(path):
        if len(words) != 2 or len(words[1]) > LONGEST_NAME:
            raise ValueError(f"{path}, line {number}: {' '.join(words)[:60]!r} is not `time path`")
        found[_nanoseconds(words[0], path)] = path.parent / words[1]
    return dict(sorted(found.items()))


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    lines = enumerate(read_text(path).splitlines(), 1)
    return [(i, line.replace(",", " ").split()) for i, line in lines
            if line.strip() and not line.startswith("#")]  # fmt: skip


def _nanoseconds(word: str, path: Path) -> int:
    """Seconds in a text, to the nanosecond; some programs write nanoseconds themselves."""
    try:
        value = Decimal(word)
    except InvalidOperation:
        value = Decimal("nan")
    if not (value.is_finite() and 0 <= value < 10**19):
        raise ValueError(f"{path}: {word[:40]!r} is not a time in seconds")
    return int(value if value > NOT_SECONDS else value * NANOSECONDS)


def _to_time(name: str, path: Path) -> int:
    try:
        return _nanoseconds(name, path)
    except ValueError:
        raise ValueError(
            f"{path} is not named by its time in seconds, which a trajectory needs, as in "
            "1305031452.791720.png"
        ) from None
