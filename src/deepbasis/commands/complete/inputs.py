# SPDX-License-Identifier: Apache-2.0
"""Finding and reading what is to be completed, whatever form the measurements have."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepbasis.commands.complete import Complete
from deepbasis.data.bags import BAGS, METADATA, Bag, Topics, is_bag
from deepbasis.data.clouds import CLOUDS, read_cloud, read_points
from deepbasis.data.colmap import ColmapFrames, check_colmap, is_colmap
from deepbasis.data.confidence import read_confidence, to_points
from deepbasis.data.files import PICTURES, find_file, list_by_stem
from deepbasis.data.folder import read_extrinsics, read_intrinsics, read_scale
from deepbasis.data.formats import DEPTHS, check_metres, load_array, read_depth
from deepbasis.data.images import NOT_PICTURES, read_image
from deepbasis.data.limits import MissingOption, WrongUnit
from deepbasis.data.nerfstudio import NAME as TRANSFORMS
from deepbasis.data.nerfstudio import NerfFrames
from deepbasis.data.recording import TOLERANCE, Recording
from deepbasis.data.slam import MapFrames, TumFolder, check_tum, is_tum
from deepbasis.data.trajectories import read_trajectory
from deepbasis.data.video import VIDEOS, count_frames, open_video
from deepbasis.points import Points, remove_occluded
from deepbasis.shapes import Float, UInt8

TABLES = (".csv", ".txt")
# Options that choose what to read from a bag.
TOPICS = ("image", "points", "info", "tf")
# Names of the frames of a video.
NUMBERED = re.compile(r"(.+)-[0-9]{6}")
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
    """Message about a file that does not exist."""
    number: int | None = None
    """Of the frame, if the image is a video."""
    pose: Float[np.ndarray, "4 4"] | None = None
    """Of the camera in a sequence."""
    recording: Recording | None = None
    """That holds image and points; `image` is then its path."""
    confidence: Path | None = None
    shown: str = ""
    """Original path of the image, if `image` is a copy."""

    @property
    def has_points(self) -> bool:
        """Whether there is something to read points from."""
        return self.sparse is not None or self.recording is not None


class Loaded(NamedTuple):
    """One frame as read."""

    frame: Frame
    image: UInt8[np.ndarray, "h w 3"]
    points: Points | None
    camera: Float[Tensor, "3 3"] | None
    ground_truth: Float[np.ndarray, "h w"] | None
    time: int | None = None
    """Nanoseconds."""
    frame_id: str = "camera"


def find_frames(settings: Complete) -> list[Frame]:
    """The frames of images, or of folders of them, with the files of the same names; or those of a
    recording.
    """
    if any(is_recording(path) for path in settings.images):
        return recorded_frames(settings)
    by_name = _name_frames(_list_images(settings))
    if settings.sparse is not None and settings.sparse.is_dir():
        check_colmap(settings.sparse)
    if settings.trajectory is not None or (settings.sparse and is_colmap(settings.sparse)):
        return mapped_frames({name: path for name, (path, _) in by_name.items()}, settings)
    _check_options(settings)
    names = sorted(by_name, key=_natural) if settings.sequence else list(by_name)
    poses: Sequence[Float[np.ndarray, "4 4"] | None] = [None] * len(names)
    if settings.poses is not None:
        poses = read_trajectory(settings.poses).match(names, settings.poses, _tolerance(settings))
    measured = _partners(settings.sparse, names, (*DEPTHS, *TABLES, *CLOUDS), "--sparse")
    truths = _partners(settings.ground_truth, names, DEPTHS, "--ground-truth")
    cameras = _cameras(settings.intrinsics, names)
    trusted = _partners(settings.confidence, names, PICTURES, "--confidence")
    lacking = {
        name: f"{option} {folder} holds no file named {name!r}"
        for option, folder, files in (
            ("--ground-truth", settings.ground_truth, truths),
            ("--intrinsics", settings.intrinsics, cameras),
            ("--confidence", settings.confidence, trusted),
            # A sensor may be slower than the camera of a sequence.
            *([] if settings.sequence else [("--sparse", settings.sparse, measured)]),
        )
        for name in names
        if files and name not in files
    }
    return [
        Frame(
            name, by_name[name][0], measured.get(name), cameras.get(name), truths.get(name),
            lacking.get(name, ""), by_name[name][1], pose, confidence=trusted.get(name),
        )
        for name, pose in zip(names, poses, strict=True)
    ]  # fmt: skip


def _list_images(settings: Complete) -> list[Path]:
    """Images and videos, those of folders included."""
    for path in settings.images:
        if bags := _bags_of(path):
            raise ValueError(f"{path} is a folder of bags without metadata.yaml; pass {bags[0]}")
    _refuse(settings, TOPICS, f"is for bags only; {settings.images[0]} is not a bag")
    paths: list[Path] = []
    for path in settings.images:
        found = _pictures(path) if path.is_dir() else [find_file(path)]
        if path.suffix.lower() == ".json":
            raise ValueError(
                f"{path} is not an image; only files of Nerfstudio are read, and they must be "
                f"called {TRANSFORMS}"
            )
        if path.name == METADATA:
            raise ValueError(f"{path} is a part of a ROS 2 bag: pass its folder, {path.parent}")
        if path.suffix.lower() in NOT_PICTURES and found == [path]:
            raise ValueError(f"{path} is not an image; pass measurements with --sparse {path}")
        paths.extend(one for one in found if one not in paths)
    return paths


def _name_frames(paths: Sequence[Path]) -> dict[str, tuple[Path, int | None]]:
    """Image of each frame, and its number in a video."""
    by_name: dict[str, tuple[Path, int | None]] = {}
    for path in paths:
        for name, number in _frames_of(path):
            if name in by_name:
                raise ValueError(
                    f"the results of {by_name[name][0]} and {path} would have the same name; "
                    "rename one, or complete them separately with another --out"
                )
            by_name[name] = path, number
    return by_name


def _check_options(settings: Complete) -> None:
    """Refuse options of images that lack another one, or that would be ignored."""
    if settings.cloud and settings.intrinsics is None:
        raise ValueError("--cloud needs the camera: pass --intrinsics")
    if settings.extrinsics is not None and (settings.sparse is None or settings.intrinsics is None):
        raise ValueError("--extrinsics is for point clouds: pass --sparse and --intrinsics")
    if settings.sparse is None:
        _refuse(settings, ("confidence",), "is of the depth of --sparse: pass it as well")
        _refuse(
            settings, ("rescale",), "needs points to hold out, and there are none: pass --sparse"
        )
    if settings.poses is None:
        _refuse(settings, ("tolerance",), "is for recordings and poses: leave it out")
    elif not settings.sequence:
        raise ValueError("--poses is for sequences only: pass --sequence")
    elif settings.intrinsics is None:
        raise ValueError("--poses needs the camera: pass --intrinsics")


def is_recording(path: Path) -> bool:
    """Whether a path is not of pictures but of frames with depth."""
    return is_bag(path) or is_tum(path) or path.name == TRANSFORMS or (path / TRANSFORMS).is_file()


def _refuse(settings: Complete, options: Sequence[str], why: str) -> None:
    """Refuse options that would be ignored."""
    for option in options:
        if getattr(settings, option) not in (None, False):
            raise ValueError(f"--{option.replace('_', '-')} {why}")


def mapped_frames(images: dict[str, Path], settings: Complete) -> list[Frame]:
    """Images with the points of a sparse model or a map that are visible in them."""
    what = "--trajectory" if settings.trajectory else f"--sparse {settings.sparse}"
    _refuse(settings, ("extrinsics", "confidence", "poses"), f"cannot be combined with {what}")
    scale = settings.depth_scale or 1.0
    camera = None if settings.intrinsics is None else read_intrinsics(settings.intrinsics)
    recording: Recording
    if settings.trajectory is None:
        assert settings.sparse is not None
        _refuse(settings, ("tolerance",), f"cannot be combined with {what}")
        recording = ColmapFrames(images, settings.sparse, scale, camera)
    elif camera is None or settings.sparse is None:
        raise ValueError("--trajectory needs a map and the camera: pass --sparse and --intrinsics")
    else:
        recording = MapFrames(
            images, settings.trajectory, settings.sparse, camera, scale, _tolerance(settings)
        )
    settings.say(recording.about)
    truths = _partners(settings.ground_truth, list(images), DEPTHS, "--ground-truth")
    return [
        Frame(name, images[name], None, None, truths.get(name), recording=recording)
        for name in recording.names
    ]


def recorded_frames(settings: Complete) -> list[Frame]:
    """The frames of a recording."""
    if len(settings.images) > 1:
        raise ValueError("pass a single recording, without images or other recordings")
    (path,) = settings.images
    others = ("sparse", "ground_truth", "trajectory", "confidence")
    _refuse(settings, others, f"is for images; {path} has its own points")
    why = f"is for images and videos, not for recordings such as {path}: leave it out"
    _refuse(settings, ("poses",), why)
    recording = open_recording(path, settings)
    settings.say(recording.about)
    return [Frame(name, path, None, None, None, recording=recording) for name in recording.names]


def open_recording(path: Path, settings: Complete) -> Recording:
    """Find the frames of a recording."""
    camera = None if settings.intrinsics is None else read_intrinsics(settings.intrinsics)
    pose = None if settings.extrinsics is None else read_extrinsics(settings.extrinsics)
    if not is_bag(path):
        _refuse(settings, TOPICS, f"is for bags only; {path} is not a bag")
        _refuse(settings, ("extrinsics",), f"is not used with {path}: leave it out")
    if settings.tf and pose is not None:
        raise ValueError("--extrinsics replaces the transforms of the bag: leave out --tf")
    if is_tum(path):
        if camera is None and settings.cloud:
            raise ValueError("--cloud needs the camera: pass --intrinsics")
        return TumFolder(path, camera, settings.depth_scale, _tolerance(settings))
    if not is_bag(path):
        _refuse(settings, ("tolerance",), f"is not used with {path}: leave it out")
        return NerfFrames(path, settings.depth_scale, camera)
    bag = Bag(
        path, Topics(settings.image, settings.points, settings.info), camera=camera,
        extrinsics=pose, depth_scale=settings.depth_scale, tolerance=_tolerance(settings),
        tf=settings.tf,
    )  # fmt: skip
    if bag.lens is None and settings.cloud:
        raise ValueError("--cloud needs the camera: pass --info or --intrinsics")
    return bag


def _tolerance(settings: Complete) -> float:
    return TOLERANCE if settings.tolerance is None else settings.tolerance


@contextmanager
def _telling_scale(option: str, scale: float | None) -> Iterator[None]:
    """Name the option of the command that corrects the unit."""
    try:
        yield
    except WrongUnit as error:
        right = error.scale * (scale or 1.0)
        raise MissingOption(f"{error}: pass {option} {right:g}") from error


def load(frame: Frame, settings: Complete) -> Loaded:
    """Read all files of a frame."""
    if frame.missing:
        raise ValueError(frame.missing)
    if frame.recording is not None:
        with _telling_scale("--depth-scale", settings.depth_scale):
            found = frame.recording.read(frame.name)
        if settings.cloud and found.camera is None:  # that of COLMAP
            raise MissingOption(
                "--cloud needs a camera without lens distortion, and that of the COLMAP model has "
                "distortion and is not used: pass --intrinsics"
            )
        truth = _read_truth(frame, found.image, settings)
        return Loaded(
            frame, found.image, found.points, found.camera, truth, found.time, found.frame_id
        )
    if frame.number is None:
        image = read_image(frame.image)
    else:
        image = open_video(frame.image).read(frame.number)
    camera = None if frame.intrinsics is None else read_intrinsics(frame.intrinsics)
    truth = _read_truth(frame, image, settings)
    points = None
    if frame.sparse is not None:
        try:
            with _telling_scale("--depth-scale", settings.depth_scale):
                points = read_sparse(frame.sparse, frame, image, camera, settings)
        except ValueError as error:
            named = str(frame.sparse) in str(error)
            raise error if named else ValueError(f"{frame.sparse}: {error}") from error
    return Loaded(frame, image, points, camera, truth)


def _read_truth(
    frame: Frame, image: UInt8[np.ndarray, "h w 3"], settings: Complete
) -> Float[np.ndarray, "h w"] | None:
    if frame.ground_truth is None:
        return None
    return read_ground_truth(frame.ground_truth, frame, image, settings)


def read_sparse(
    path: Path,
    frame: Frame,
    image: UInt8[np.ndarray, "h w 3"],
    camera: Float[Tensor, "3 3"] | None,
    settings: Complete,
) -> Points:
    """Measurements in any form."""
    kind = path.suffix.lower()
    _check_form(path, settings)
    are_rows = kind in TABLES or (kind == ".npy" and is_rows(path, image.shape[:2]))
    if frame.confidence is not None and (are_rows or kind in CLOUDS):
        raise MissingOption(f"{path} is not a depth image: leave out --confidence")
    if are_rows:
        rows = read_points(path) if kind in TABLES else load_array(path).astype(np.float64)
        rows[:, 2:] /= settings.depth_scale or 1.0
        check_metres(rows[:, 2][np.isfinite(rows[:, 2]) & (rows[:, 2] > 0)], path)
        return Points.from_rows(rows)
    if frame.confidence is not None:
        depth = read_depth(path, settings.depth_scale or _scale_beside(path))
        return to_points(depth, read_confidence(frame.confidence), image.shape[:2], str(path))
    if kind not in CLOUDS:
        return Points.from_map(_read_map(path, frame, image, settings.depth_scale, "--depth-scale"))
    if camera is None:
        raise MissingOption(
            f"{path} is a point cloud, so the camera must be known: pass --intrinsics"
        )
    pose = None if settings.extrinsics is None else read_extrinsics(settings.extrinsics)
    cloud = torch.from_numpy(read_cloud(path, settings.depth_scale or 1.0))
    return _project(cloud, image.shape[:2], camera, pose)


def _check_form(path: Path, settings: Complete) -> None:
    """Refuse measurements of an unknown form, and extrinsics of what is not a point cloud."""
    kind = path.suffix.lower()
    if kind not in (*DEPTHS, *TABLES, *CLOUDS):
        raise ValueError(
            f"{path}: {kind or 'no suffix'} cannot hold measurements; use a depth image or "
            f"array ({', '.join(DEPTHS)}), rows of `u v metres` ({', '.join(TABLES)}, .npy) or a "
            f"point cloud ({', '.join(CLOUDS)})"
        )
    if settings.extrinsics is not None and kind not in CLOUDS:
        rename = " or, if each line is `x y z`, rename it to .xyz" if kind in TABLES else ""
        raise MissingOption(f"{path} is not a point cloud: leave out --extrinsics{rename}")


def read_ground_truth(
    path: Path, frame: Frame, image: UInt8[np.ndarray, "h w 3"], settings: Complete
) -> Float[np.ndarray, "h w"]:
    """A depth map of the image's size."""
    scale = settings.ground_truth_scale or settings.depth_scale
    option = "--ground-truth-scale"
    with _telling_scale(option, scale):
        truth = _read_map(path, frame, image, scale, option)
    if not (truth > 0).any():
        raise ValueError(f"{path} holds no depth to compare with")
    return truth


def is_rows(path: Path, size: tuple[int, ...]) -> bool:
    """Whether an array holds rows of points, not a depth map."""
    values = load_array(path)
    rows = values.ndim == 2 and values.shape[1] in (3, 4) and values.dtype.kind in "iuf"
    if rows and values.shape == size:
        raise ValueError(
            f"{path} is {list(values.shape)}, which could be a depth map of the image's size or "
            "rows of points; save the points as .csv"
        )
    return rows


def _project(
    cloud: Float[Tensor, "n 3"],
    size: tuple[int, ...],
    camera: Float[Tensor, "3 3"],
    pose: Float[Tensor, "4 4"] | None,
) -> Points:
    """A cloud as the camera sees it."""
    height, width = size[:2]
    points = Points.from_cloud(cloud, camera, pose, (height, width))
    # From the camera's own place, a sensor sees what the camera sees.
    apart = pose is not None and bool(pose[:3, 3].any())
    return remove_occluded(points, (height, width)) if apart else points


def _read_map(
    path: Path, frame: Frame, image: UInt8[np.ndarray, "h w 3"], scale: float | None, option: str
) -> Float[np.ndarray, "h w"]:
    depth = read_depth(path, _scale_beside(path) if scale is None else scale, option)
    if depth.shape != image.shape[:2]:
        phone = option == "--depth-scale" and depth.shape < image.shape[:2]
        smaller = ", unless --confidence is passed, as a phone writes it" if phone else ""
        raise ValueError(
            f"{path} is {depth.shape[0]} x {depth.shape[1]} pixels (height x width), but the image "
            f"{frame.image} is {image.shape[0]} x {image.shape[1]}; they must have the same size"
            f"{smaller}"
        )
    return depth


def _scale_beside(path: Path) -> float | None:
    files = find_scales(path)
    return read_scale(files[0]) if files else None


def find_scales(path: Path) -> list[Path]:
    """Files that give the unit of a depth image: scale.txt beside it or one folder above."""
    if path.suffix.lower() not in INTEGERS:
        return []
    near = (folder / "scale.txt" for folder in path.absolute().parents[:2])
    return [file for file in near if file.is_file()]


def _bags_of(path: Path) -> list[Path]:
    """Bags in a folder that holds no picture."""
    files = sorted(path.iterdir()) if path.is_dir() else []
    if any(file.suffix.lower() in PICTURES for file in files):
        return []
    return [file for file in files if file.suffix.lower() in BAGS]


def _frames_of(path: Path) -> list[tuple[str, int | None]]:
    """Names of the frames of an image or a video, and their numbers in the video."""
    if path.suffix.lower() not in VIDEOS:
        return [(path.stem, None)]
    return [(f"{path.stem}-{number:06d}", number) for number in range(count_frames(path))]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts 2 before 10."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _pictures(folder: Path) -> list[Path]:
    """Images of a folder; if they are one folder below, that is said."""
    try:
        return list(list_by_stem(folder, PICTURES).values())
    except FileNotFoundError as error:
        check_tum(folder)
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
        if not path.exists():
            raise FileNotFoundError(f"{option}: there is no file or folder {path}; check its name")
        if option == "--sparse" and path.suffix.lower() in BAGS:
            raise ValueError(f"{path} is a bag: pass it in place of the images, without --sparse")
        if len(names) > 1:
            raise ValueError(
                f"{option} {path} is one file for {len(names)} images; pass a folder of files that "
                "are named like the images"
            )
        return {names[0]: path}
    found = list_by_stem(path, suffixes)
    if not found.keys() & set(names) and (video := _one_video(names)):
        # Phones name the depth images of a video by the numbers of its frames only.
        found = {f"{video}-{stem}": file for stem, file in found.items()} | found
    if not found.keys() & set(names):
        raise ValueError(
            f"{option} {path} holds {len(found)} file{'s' * (len(found) != 1)}, but none is named "
            f"like an image: {next(iter(found))!r} is not {names[0]!r}"
        )
    return {name: found[name] for name in names if name in found}


def _one_video(names: Sequence[str]) -> str | None:
    """What all names begin with, if they end in a number each as those of one video do."""
    parts = {NUMBERED.fullmatch(name) for name in names}
    stems = {None if part is None else part[1] for part in parts}
    return stems.pop() if len(stems) == 1 else None


def _cameras(path: Path | None, names: Sequence[str]) -> dict[str, Path]:
    """One camera for all, or one for each frame."""
    if path is not None and not path.is_dir():
        return dict.fromkeys(names, find_file(path))
    return _partners(path, names, (".txt", ".json"), "--intrinsics")
