# SPDX-License-Identifier: Apache-2.0
"""Finding and reading what is to be completed, whatever form the measurements have."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepbasis import sparse
from deepbasis.complete.config import Settings
from deepbasis.data.clouds import CLOUDS, read_cloud, read_points
from deepbasis.data.files import PICTURES, find_file, list_by_stem
from deepbasis.data.folder import read_extrinsics, read_intrinsics, read_scale
from deepbasis.data.formats import DEPTHS, check_metres, read_depth, read_image
from deepbasis.shapes import Float, UInt8

TABLES = (".csv", ".txt")
# Of these the file does not tell the unit.
INTEGERS = (".png", ".tif", ".tiff")


class Frame(NamedTuple):
    """Files of one frame."""

    name: str
    image: Path
    sparse: Path | None
    intrinsics: Path | None
    truth: Path | None


class Loaded(NamedTuple):
    """One frame as read."""

    frame: Frame
    image: UInt8[np.ndarray, "h w 3"]
    sparse: Float[np.ndarray, "..."] | None
    dropped: dict[str, int]
    """Measurements that never reached the image, by the reason."""
    camera: Float[Tensor, "3 3"] | None
    truth: Float[np.ndarray, "h w"] | None


def find_frames(images: Sequence[Path], settings: Settings) -> list[Frame]:
    """The frames that images, or folders of them, make with the files named like them."""
    paths: list[Path] = []
    for path in images:
        found = list_by_stem(path, PICTURES).values() if path.is_dir() else [find_file(path)]
        paths.extend(found)
    by_name = {path.stem: path for path in paths}
    if len(by_name) < len(paths):
        twice = next(path for path in paths if by_name[path.stem] != path)
        raise ValueError(f"{twice} and {by_name[twice.stem]} would share the name of their results")
    names = list(by_name)
    measured = _partners(settings.sparse, names, (*DEPTHS, *TABLES, *CLOUDS), "--sparse")
    truths = _partners(settings.truth, names, DEPTHS, "--truth")
    cameras = _cameras(settings.intrinsics, names)
    return [
        Frame(name, by_name[name], measured.get(name), cameras.get(name), truths.get(name))
        for name in names
    ]


def load(frame: Frame, settings: Settings) -> Loaded:
    """Read all files of a frame."""
    image = read_image(frame.image)
    camera = None if frame.intrinsics is None else read_intrinsics(frame.intrinsics)
    truth = None if frame.truth is None else _read_map(frame.truth, frame, image, settings)
    if truth is not None and not (truth > 0).any():
        raise ValueError(f"{frame.truth} holds no depth to compare with: all of it is unmeasured")
    points, dropped = None, dict[str, int]()
    if frame.sparse is not None:
        points, dropped = read_sparse(frame.sparse, frame, image, camera, settings)
    return Loaded(frame, image, points, dropped, camera, truth)


def read_sparse(
    path: Path,
    frame: Frame,
    image: UInt8[np.ndarray, "h w 3"],
    camera: Float[Tensor, "3 3"] | None,
    settings: Settings,
) -> tuple[Float[np.ndarray, "..."], dict[str, int]]:
    """Measurements in any form, and how many of them never reached the image, by the reason."""
    if path.suffix.lower() in TABLES:
        rows = read_points(path)
        check_metres(rows[:, 2][np.isfinite(rows[:, 2]) & (rows[:, 2] > 0)], path)
        return rows, {}
    if path.suffix.lower() not in CLOUDS:
        return _read_map(path, frame, image, settings), {}
    if camera is None:
        raise ValueError(f"{path} is a point cloud, so the camera must be known: pass --intrinsics")
    pose = None if settings.extrinsics is None else read_extrinsics(settings.extrinsics)
    return _project(path, image.shape[:2], camera, pose)


def _project(
    path: Path,
    size: tuple[int, ...],
    camera: Float[Tensor, "3 3"],
    pose: Float[Tensor, "4 4"] | None,
) -> tuple[Float[np.ndarray, "h w"], dict[str, int]]:
    """A cloud as the camera sees it, and what it does not see."""
    cloud = torch.from_numpy(read_cloud(path))
    try:
        depth = sparse.project(cloud, camera, pose, (size[0], size[1]))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    seen = depth if pose is None else sparse.remove_occluded(depth)
    z = cloud[:, 2] if pose is None else cloud @ pose[2, :3].double() + pose[2, 3]
    behind, ahead = int((z <= 0).sum()), int((depth > 0).sum())
    counts = {
        "behind the camera": behind,
        "outside the image, or behind another point on its pixel": len(cloud) - behind - ahead,
        "hidden by a nearer surface": ahead - int((seen > 0).sum()),
    }
    return seen[0].numpy(), {reason: count for reason, count in counts.items() if count}


def _read_map(
    path: Path, frame: Frame, image: UInt8[np.ndarray, "h w 3"], settings: Settings
) -> Float[np.ndarray, "h w"]:
    scale = settings.depth_scale
    if scale is None and path.suffix.lower() in INTEGERS:
        beside, above = (folder / "scale.txt" for folder in path.absolute().parents[:2])
        scale = read_scale(beside) or read_scale(above)
    depth = read_depth(path, scale)
    if depth.shape != image.shape[:2]:
        raise ValueError(
            f"{path} is {depth.shape[0]} x {depth.shape[1]} pixels (height x width), but the image "
            f"{frame.image} is {image.shape[0]} x {image.shape[1]}; they must be of one size"
        )
    return depth


def _partners(
    path: Path | None, names: Sequence[str], suffixes: Sequence[str], option: str
) -> dict[str, Path]:
    """Files by the name of the frame that they belong to."""
    if path is None:
        return {}
    if not path.is_dir():
        if len(names) > 1:
            raise ValueError(
                f"{option} {path} is one file for {len(names)} images; pass a folder of files that "
                "are named like the images"
            )
        return {names[0]: find_file(path)}
    found = list_by_stem(path, suffixes)
    if missing := [name for name in names if name not in found]:
        raise ValueError(
            f"{option} {path} holds {len(found)} files, but none named {missing[0]!r}, as "
            f"{len(missing)} of {len(names)} images are; each image needs its own"
        )
    return {name: found[name] for name in names}


def _cameras(path: Path | None, names: Sequence[str]) -> dict[str, Path]:
    """One camera for all, or one for each frame."""
    if path is not None and not path.is_dir():
        return dict.fromkeys(names, find_file(path))
    return _partners(path, names, (".txt", ".json"), "--intrinsics")
