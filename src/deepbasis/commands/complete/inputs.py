# SPDX-License-Identifier: Apache-2.0
"""Finding and reading what is to be completed, whatever form the measurements have."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepbasis.commands.complete import Complete
from deepbasis.data.clouds import CLOUDS, read_cloud, read_points
from deepbasis.data.files import PICTURES, find_file, list_by_stem
from deepbasis.data.folder import read_extrinsics, read_intrinsics, read_scale
from deepbasis.data.formats import DEPTHS, check_metres, load_array, read_depth
from deepbasis.data.images import read_image
from deepbasis.points import Points, remove_occluded
from deepbasis.shapes import Float, UInt8

TABLES = (".csv", ".txt")
# Folders that a message names.
LISTED = 3
# Of these the file does not tell the unit.
INTEGERS = (".png", ".tif", ".tiff")


class Frame(NamedTuple):
    """Files of one frame."""

    name: str
    image: Path
    sparse: Path | None
    intrinsics: Path | None
    ground_truth: Path | None
    missing: str = ""
    """What is said of a file that does not exist."""


class Loaded(NamedTuple):
    """One frame as read."""

    frame: Frame
    image: UInt8[np.ndarray, "h w 3"]
    points: Points | None
    camera: Float[Tensor, "3 3"] | None
    ground_truth: Float[np.ndarray, "h w"] | None


def find_frames(settings: Complete) -> list[Frame]:
    """The frames that images, or folders of them, make with the files named like them."""
    paths: list[Path] = []
    for path in settings.images:
        found = _pictures(path) if path.is_dir() else [find_file(path)]
        paths.extend(one for one in found if one not in paths)
    by_name = {path.stem: path for path in paths}
    if len(by_name) < len(paths):
        twice = next(path for path in paths if by_name[path.stem] != path)
        raise ValueError(f"{twice} and {by_name[twice.stem]} would share the name of their results")
    names = list(by_name)
    measured = _partners(settings.sparse, names, (*DEPTHS, *TABLES, *CLOUDS), "--sparse")
    truths = _partners(settings.ground_truth, names, DEPTHS, "--ground-truth")
    cameras = _cameras(settings.intrinsics, names)
    lacking = {
        name: f"{option} {folder} holds no file named {name!r}"
        for option, folder, files in (
            ("--ground-truth", settings.ground_truth, truths),
            ("--intrinsics", settings.intrinsics, cameras),
            ("--sparse", settings.sparse, measured),
        )
        for name in names
        if files and name not in files
    }
    return [
        Frame(
            name, by_name[name], measured.get(name), cameras.get(name), truths.get(name),
            lacking.get(name, ""),
        )
        for name in names
    ]  # fmt: skip


def load(frame: Frame, settings: Complete) -> Loaded:
    """Read all files of a frame."""
    if frame.missing:
        raise ValueError(frame.missing)
    image = read_image(frame.image)
    camera = None if frame.intrinsics is None else read_intrinsics(frame.intrinsics)
    truth = None
    if frame.ground_truth is not None:
        scale = settings.ground_truth_scale or settings.depth_scale
        truth = _read_map(frame.ground_truth, frame, image, scale)
        if not (truth > 0).any():
            raise ValueError(f"{frame.ground_truth} holds no depth to compare with")
    points = None
    if frame.sparse is not None:
        try:
            points = read_sparse(frame.sparse, frame, image, camera, settings)
        except ValueError as error:
            named = str(frame.sparse) in str(error)
            raise error if named else ValueError(f"{frame.sparse}: {error}") from error
    return Loaded(frame, image, points, camera, truth)


def read_sparse(
    path: Path,
    frame: Frame,
    image: UInt8[np.ndarray, "h w 3"],
    camera: Float[Tensor, "3 3"] | None,
    settings: Complete,
) -> Points:
    """Measurements in any form."""
    kind = path.suffix.lower()
    if kind in TABLES or (kind == ".npy" and is_rows(path, image.shape[:2])):
        rows = read_points(path) if kind in TABLES else load_array(path).astype(np.float64)
        rows[:, 2:] /= settings.depth_scale or 1.0
        check_metres(rows[:, 2][np.isfinite(rows[:, 2]) & (rows[:, 2] > 0)], path)
        return Points.from_rows(rows)
    if kind not in CLOUDS:
        return Points.from_map(_read_map(path, frame, image, settings.depth_scale))
    if camera is None:
        raise ValueError(f"{path} is a point cloud, so the camera must be known: pass --intrinsics")
    pose = None if settings.extrinsics is None else read_extrinsics(settings.extrinsics)
    return _project(path, image.shape[:2], camera, pose)


def is_rows(path: Path, size: tuple[int, ...]) -> bool:
    """Whether an array holds rows of points, not a depth map."""
    values = load_array(path)
    rows = values.ndim == 2 and values.shape[1] in (3, 4)
    if rows and values.shape == size:
        raise ValueError(
            f"{path} is {list(values.shape)}, which could be a depth map of the image's size or "
            "rows of points; save the points as .csv"
        )
    return rows


def _project(
    path: Path,
    size: tuple[int, ...],
    camera: Float[Tensor, "3 3"],
    pose: Float[Tensor, "4 4"] | None,
) -> Points:
    """A cloud as the camera sees it."""
    height, width = size[:2]
    cloud = torch.from_numpy(read_cloud(path))
    points = Points.from_cloud(cloud, camera, pose, (height, width))
    return points if pose is None else remove_occluded(points, (height, width))


def _read_map(
    path: Path, frame: Frame, image: UInt8[np.ndarray, "h w 3"], scale: float | None
) -> Float[np.ndarray, "h w"]:
    if scale is None and (files := find_scales(path)):
        scale = read_scale(files[0])
    depth = read_depth(path, scale)
    if depth.shape != image.shape[:2]:
        raise ValueError(
            f"{path} is {depth.shape[0]} x {depth.shape[1]} pixels (height x width), but the image "
            f"{frame.image} is {image.shape[0]} x {image.shape[1]}; they must be of one size"
        )
    return depth


def find_scales(path: Path) -> list[Path]:
    """Files that tell the unit of a depth image: scale.txt beside it or one folder above."""
    if path.suffix.lower() not in INTEGERS:
        return []
    near = (folder / "scale.txt" for folder in path.absolute().parents[:2])
    return [file for file in near if file.is_file()]


def _pictures(folder: Path) -> list[Path]:
    """Images of a folder; if they are one folder below, that is said."""
    try:
        return list(list_by_stem(folder, PICTURES).values())
    except FileNotFoundError as error:
        below = (p.parent for p in sorted(folder.glob("*/*")) if p.suffix.lower() in PICTURES)
        if not (inner := list(dict.fromkeys(below))):
            raise
        raise FileNotFoundError(
            f"{error}; did you mean {' or '.join(map(str, inner[:LISTED]))}?"
        ) from None


def _partners(
    path: Path | None, names: Sequence[str], suffixes: Sequence[str], option: str
) -> dict[str, Path]:
    """Files by the name of the frame that they belong to; refused if no frame has one."""
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
    if not found.keys() & set(names):
        raise ValueError(
            f"{option} {path} holds {len(found)} files, but none is named like an image: "
            f"{next(iter(found))!r} is not {names[0]!r}"
        )
    return {name: found[name] for name in names if name in found}


def _cameras(path: Path | None, names: Sequence[str]) -> dict[str, Path]:
    """One camera for all, or one for each frame."""
    if path is not None and not path.is_dir():
        return dict.fromkeys(names, find_file(path))
    return _partners(path, names, (".txt", ".json"), "--intrinsics")
