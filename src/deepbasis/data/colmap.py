# SPDX-License-Identifier: Apache-2.0
"""Sparse models of COLMAP: `cameras`, `images` and `points3D`, as .bin or .txt.

    sparse/0/
      cameras.bin     size and intrinsics of each camera
      images.bin      pose of each image, and where it sees which point
      points3D.bin    place of each point

Each observation becomes a point: it keeps the place that was seen in the image, so that lens
distortion does not matter, and its depth is that of the point in the frame of the image. A model of
COLMAP has no unit unless it was given one: metres = length / scale.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from torch import Tensor

from deepbasis.data.formats import check_metres
from deepbasis.data.images import read_image
from deepbasis.data.limits import check_count, read_text, reading
from deepbasis.data.recording import Recorded, pose_of
from deepbasis.data.sample import make_intrinsics
from deepbasis.points import Points
from deepbasis.shapes import Float, Int

PARTS = ("cameras", "images", "points3D")
# Numbers of each camera model, in the order of the models in binary files.
CAMERA_MODELS = {
    "SIMPLE_PINHOLE": 3, "PINHOLE": 4, "SIMPLE_RADIAL": 4, "RADIAL": 5, "OPENCV": 8,
    "OPENCV_FISHEYE": 8, "FULL_OPENCV": 12, "FOV": 5, "SIMPLE_RADIAL_FISHEYE": 4,
    "RADIAL_FISHEYE": 5, "THIN_PRISM_FISHEYE": 12,
}  # fmt: skip
# COLMAP's first pixel has its centre at 0.5.
HALF = 0.5
# Bytes of the path of an image; longer ones are damaged.
LONGEST_NAME = 4096
# Characters of a name that a message shows.
LONGEST_SHOWN = 40


class ColmapCamera(NamedTuple):
    """Model, size in pixels and parameters."""

    model: str
    width: int
    height: int
    parameters: tuple[float, ...]


class ColmapView(NamedTuple):
    """An image: its pose takes points of the world to its camera."""

    camera: int
    pose: Float[Tensor, "4 4"]
    place: Float[np.ndarray, "n 2"]
    point: Int[np.ndarray, " n"]
    """Of each observation; those of no point are left out."""


@dataclass(frozen=True)
class ColmapModel:
    """A sparse model."""

    cameras: dict[int, ColmapCamera]
    views: dict[str, ColmapView]
    """By file name, without folder and suffix."""
    ids: Int[np.ndarray, " p"]
    """Of the points, sorted."""
    xyz: Float[np.ndarray, "p 3"]

    def rows(self, name: str, size: tuple[int, ...], scale: float) -> Float[np.ndarray, "n 3"]:
        """Points of an image as `u v metres`; the image may have another size than its camera."""
        view = self.views[name]
        camera = self.cameras[view.camera]
        kept = np.isin(view.point, self.ids)
        if 2 * kept.sum() < len(kept):
            raise ValueError(
                f"{len(kept) - kept.sum()} of the {len(kept)} points that {name} sees are not in "
                "the model; it is not complete, so copy points3D again"
            )
        known = self.xyz[np.searchsorted(self.ids, view.point[kept])]
        pose = view.pose.numpy()
        depth = (known @ pose[:3, :3].T + pose[:3, 3])[:, 2] / scale
        place = view.place[kept] * [size[1] / camera.width, size[0] / camera.height] - HALF
        rows = np.column_stack([place, depth])
        return rows[depth > 0]

    def intrinsics(self, name: str, size: tuple[int, ...]) -> Float[Tensor, "3 3"] | None:
        """Of the image; None if its camera is not a pinhole."""
        camera = self.cameras[self.views[name].camera]
        along, down = size[1] / camera.width, size[0] / camera.height
        if camera.model == "SIMPLE_PINHOLE":
            f, cx, cy = camera.parameters
            fx = fy = f
        elif camera.model == "PINHOLE":
            fx, fy, cx, cy = camera.parameters
        else:
            return None
        return make_intrinsics(fx * along, fy * down, cx * along - HALF, cy * down - HALF)


class ColmapFrames:
    """Images with the points of a sparse model, as a `Recording`.

    Args:
        images: files by name.
        folder: of the model.
        scale: metres = length / scale.
        camera: used in place of the model's.
    """

    def __init__(
        self,
        images: Mapping[str, Path],
        folder: Path,
        scale: float = 1.0,
        camera: Float[Tensor, "3 3"] | None = None,
    ) -> None:
        self.folder, self.model = folder, read_model(folder)
        self.images = {name: path for name, path in images.items() if name in self.model.views}
        self.names, self.scale, self.camera = list(self.images), scale, camera
        if not self.names:
            raise ValueError(
                f"none of {len(images)} images is in the model {folder}, which has "
                f"{next(iter(self.model.views), 'no image')[:40]!r}, ..."
            )
        several, are = "s" * (len(images) != 1), "is" if len(self.names) == 1 else "are"
        self.about = (
            f"{folder}: {len(self.names)} of {len(images)} image{several} {are} in this model"
        )

    def files(self, name: str) -> list[Path]:
        """Files that a frame depends on."""
        return [self.images[name], *(find_part(self.folder, part) for part in PARTS)]

    def read(self, name: str) -> Recorded:
        """Read a frame."""
        image = read_image(self.images[name])
        rows = self.model.rows(name, image.shape[:2], self.scale)
        if not len(rows):
            raise ValueError(f"{self.images[name]} sees no point of the model {self.folder}")
        check_metres(rows[:, 2], self.folder)
        own = self.model.intrinsics(name, image.shape[:2])
        camera = own if self.camera is None else self.camera
        return Recorded(image, Points.from_rows(rows), camera)


def is_colmap(folder: Path) -> bool:
    """Whether a folder holds a sparse model."""
    return all(find_part(folder, part).is_file() for part in PARTS)


def check_colmap(folder: Path) -> None:
    """Refuse a folder that is not a sparse model but has some of its files, or models in it."""
    there = [part for part in PARTS if find_part(folder, part).is_file()]
    if missing := [part for part in PARTS if there and part not in there]:
        raise FileNotFoundError(
            f"{folder} has {there[0]} of a model of COLMAP, but neither {missing[0]}.bin nor "
            f"{missing[0]}.txt"
        )
    inner = [*sorted(folder.glob("*")), *sorted(folder.glob("sparse/*"))]
    if models := [one for one in inner if is_colmap(one)]:
        raise ValueError(f"{folder} is not a model of COLMAP but holds one: pass {models[0]}")


def find_part(folder: Path, part: str) -> Path:
    """The binary file of a part or, without one, the text."""
    binary = folder / f"{part}.bin"
    return binary if binary.is_file() else folder / f"{part}.txt"


def read_model(folder: Path) -> ColmapModel:
    """Read a sparse model."""
    cameras, views, points = (find_part(folder, part) for part in PARTS)
    kind = "a part of a model of COLMAP"
    with reading(cameras, kind):
        found = _binary_cameras(cameras) if cameras.suffix == ".bin" else _text_cameras(cameras)
    with reading(views, kind):
        seen = _binary_views(views) if views.suffix == ".bin" else _text_views(views)
        if lost := [name for name, view in seen.items() if view.camera not in found]:
            raise ValueError(f"the camera of {lost[0]} is not in {cameras}")
    with reading(points, kind):
        ids, xyz = _binary_points(points) if points.suffix == ".bin" else _text_points(points)
        order = np.argsort(np.array(ids, np.int64))
    return ColmapModel(found, seen, np.array(ids, np.int64)[order], xyz[order])


def _camera(model: str, width: int, height: int, parameters: list[float]) -> ColmapCamera:
    if model not in CAMERA_MODELS or len(parameters) != CAMERA_MODELS[model]:
        raise ValueError(f"a camera {model[:30]!r} with {len(parameters)} parameters is unknown")
    if not (0 < width < 10**6 and 0 < height < 10**6 and np.isfinite(parameters).all()):
        raise ValueError(f"a camera has {width} x {height} pixels, or non-finite parameters")
    return ColmapCamera(model, width, height, tuple(parameters))


def _view(numbers: list[float], camera: int, places: np.ndarray, ids: np.ndarray) -> ColmapView:
    w, x, y, z, *translation = numbers
    pose = pose_of(translation, [x, y, z, w])
    good = (ids >= 0) & np.isfinite(places).all(1)
    return ColmapView(camera, pose, places[good], ids[good])


def _add(views: dict[str, ColmapView], name: str, view: ColmapView) -> None:
    stem = Path(name).stem
    if stem in views:
        raise ValueError(
            f"two images are called {stem[:LONGEST_SHOWN]!r}, in different folders or with "
            "different suffixes; rename one"
        )
    views[stem] = view


def _lines(path: Path) -> list[str]:
    return [line for line in read_text(path).splitlines() if not line.startswith("#")]


def _text_cameras(path: Path) -> dict[int, ColmapCamera]:
    words = [line.split() for line in _lines(path) if line.strip()]
    return {
        int(one[0]): _camera(one[1], int(one[2]), int(one[3]), [float(x) for x in one[4:]])
        for one in words
    }


def _text_views(path: Path) -> dict[str, ColmapView]:
    """Two lines for each image; the second is empty if it sees no point."""
    lines = _lines(path)
    while lines and not lines[-1].strip() and len(lines) % 2:
        lines.pop()
    views: dict[str, ColmapView] = {}
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        words = first.split(maxsplit=9)
        numbers = np.array(second.split(), np.float64).reshape(-1, 3)
        view = _view(
            [float(x) for x in words[1:8]], int(words[8]), numbers[:, :2],
            numbers[:, 2].astype(np.int64),
        )  # fmt: skip
        _add(views, words[9], view)
    return views


def _text_points(path: Path) -> tuple[list[int], Float[np.ndarray, "p 3"]]:
    words = [line.split(maxsplit=4)[:4] for line in _lines(path) if line.strip()]
    if short := [one for one in words if len(one) < 4]:
        raise ValueError(f"a line begins {' '.join(short[0])[:40]!r}, not `id x y z`")
    xyz = np.array([one[1:] for one in words], np.float64).reshape(-1, 3)
    return [int(one[0]) for one in words], _finite(xyz)


def _binary_cameras(path: Path) -> dict[int, ColmapCamera]:
    names = list(CAMERA_MODELS)
    cameras = {}
    with path.open("rb") as file:
        for _ in range(_count(file, path, 24)):
            number, model, width, height = _unpack(file, "<iiQQ")
            name = names[model] if 0 <= model < len(names) else str(model)
            values = _unpack(file, f"<{CAMERA_MODELS.get(name, 0)}d")
            cameras[number] = _camera(name, width, height, list(values))
    return cameras


def _binary_views(path: Path) -> dict[str, ColmapView]:
    views: dict[str, ColmapView] = {}
    with path.open("rb") as file:
        for _ in range(_count(file, path, 64)):
            _, *numbers, camera = _unpack(file, "<i7di")
            name = _read_name(file)
            many = _count(file, path, 24)
            kind = np.dtype([("place", "<f8", 2), ("point", "<i8")])
            found = np.frombuffer(_read(file, many * kind.itemsize), kind)
            view = _view(numbers, camera, found["place"], found["point"])
            _add(views, name, view)
    return views


def _binary_points(path: Path) -> tuple[list[int], Float[np.ndarray, "p 3"]]:
    ids, xyz = [], []
    with path.open("rb") as file:
        for _ in range(_count(file, path, 51)):
            number, *place, _, _, _, _, track = _unpack(file, "<Q3d3BdQ")
            _read(file, min(8 * track, path.stat().st_size))
            ids.append(number)
            xyz.append(place)
    return ids, _finite(np.array(xyz, np.float64).reshape(-1, 3))


def _finite(xyz: Float[np.ndarray, "p 3"]) -> Float[np.ndarray, "p 3"]:
    if not np.isfinite(xyz).all():
        raise ValueError("it holds a point that is not finite")
    return xyz


def _count(file: BinaryIO, path: Path, size: int) -> int:
    """How many entries of at least `size` bytes follow; refused if the file is smaller."""
    (count,) = _unpack(file, "<Q")
    if count * size > path.stat().st_size:
        raise ValueError(f"it claims {count} entries, more than it holds; copy it again")
    check_count(int(count) * size // 8, path, "numbers")
    return int(count)


def _read_name(file: BinaryIO) -> str:
    """Read up to a byte of 0."""
    name = b""
    while (letter := file.read(1)) not in (b"\0", b""):
        name += letter
        if len(name) > LONGEST_NAME:
            raise ValueError(f"a name in it is longer than {LONGEST_NAME} bytes; copy it again")
    return name.decode("utf-8", "replace")


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, _read(file, struct.calcsize(layout)))


def _read(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise ValueError("it ends too early; copy it again")
    return content
