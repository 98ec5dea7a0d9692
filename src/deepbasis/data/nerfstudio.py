# SPDX-License-Identifier: Apache-2.0
"""`transforms.json` of Nerfstudio: images with poses and, for the points, depth maps or a cloud.

Used are `frames` with `file_path`, `transform_matrix` and `depth_file_path`; `ply_file_path`; and,
for all frames or for each, `fl_x` (or `camera_angle_x`) and `fl_y cx cy k1 k2 k3 k4 p1 p2
camera_model`. Poses are those of OpenGL: x right, y up, z backward. Images with distortion become
those of a pinhole camera.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepbasis.data.clouds import read_cloud
from deepbasis.data.formats import MILLIMETRES, read_depth
from deepbasis.data.images import read_image
from deepbasis.data.lens import Lens
from deepbasis.data.limits import MissingOption, read_text, reading
from deepbasis.data.recording import Recorded
from deepbasis.data.sample import make_intrinsics
from deepbasis.points import Points, remove_occluded
from deepbasis.shapes import Float

NAME = "transforms.json"
DISTORTIONS = {
    "OPENCV": ("plumb_bob", ("k1", "k2", "p1", "p2", "k3")),
    "PINHOLE": ("plumb_bob", ("k1", "k2", "p1", "p2", "k3")),
    "SIMPLE_PINHOLE": ("plumb_bob", ("k1", "k2", "p1", "p2", "k3")),
    "OPENCV_FISHEYE": ("equidistant", ("k1", "k2", "k3", "k4")),
}
# Either gives the focal length.
FOCAL = ("fl_x", "camera_angle_x")
# Of a file; longer ones are damaged.
LONGEST_NAME = 255
# Nerfstudio's first pixel has its centre at 0.5.
HALF = 0.5


class NerfFrames:
    """Frames of a transforms.json, as a `Recording`.

    Args:
        path: the file, or the folder that holds it.
        scale: metres = value / scale, of integer depth maps (default 1000), of the cloud and of
            the poses (default 1).
        camera: intrinsics, if the file has none.
    """

    def __init__(
        self, path: Path, scale: float | None = None, camera: Float[Tensor, "3 3"] | None = None
    ) -> None:
        self.path = path / NAME if path.is_dir() else path
        self.scale, self.camera = scale, camera
        with reading(self.path, NAME):
            self.content = json.loads(read_text(self.path))
            frames = self.content["frames"]
            self._frames = {Path(str(one["file_path"])).stem: one for one in frames}
            if any(len(str(name)) > LONGEST_NAME for one in frames for name in one.values()
                   if isinstance(name, str)):  # fmt: skip
                raise ValueError(f"a name in it is longer than {LONGEST_NAME} characters")
            if not frames or len(self._frames) < len(frames):
                raise ValueError(f"it has {len(frames)} frames with {len(self._frames)} names")
            own = self.content.get("ply_file_path")
            self.cloud = None if own is None else self.path.parent / str(own)
            self.names = list(self._frames)
            known = any(key in one for one in (self.content, *frames) for key in FOCAL)
            if known and camera is not None:
                raise ValueError(f"{self.path} has its own camera: leave out --intrinsics")
            if not known and camera is None:
                raise MissingOption(
                    f"{self.path} has no camera (fl_x or camera_angle_x): pass --intrinsics"
                )
            depths = sum("depth_file_path" in one for one in frames)
        source = f"{depths} with depth maps" if self.cloud is None else f"points of {self.cloud}"
        self.about = f"{self.path}: {len(self.names)} images, {source}"
        self._map: Tensor | None = None

    def files(self, name: str) -> list[Path]:
        """Files that a frame depends on."""
        depth = self._depth(name)
        optional = [path for path in (depth, self.cloud) if path is not None]
        return [self.path, self._image(name), *optional]

    def read(self, name: str) -> Recorded:
        """Read a frame: its depth map or, without one, the points of the cloud that it sees."""
        image = read_image(self._image(name))
        with reading(self.path, NAME):
            lens = self._lens(name, image.shape[:2])
        points = None
        if (path := self._depth(name)) is not None:
            depth = self._read_depth(path, image.shape[:2])
            points = Points.from_map(lens.undistort_depth(depth))
        elif self.cloud is not None:
            points = self._project(name, lens, image.shape[:2])
        return Recorded(lens.undistort(image), points, lens.matrix)

    def _image(self, name: str) -> Path:
        path = self.path.parent / str(self._frames[name]["file_path"])
        return path if path.suffix else path.with_suffix(".png")

    def _depth(self, name: str) -> Path | None:
        own = self._frames[name].get("depth_file_path")
        return None if own is None else self.path.parent / str(own)

    def _read_depth(self, path: Path, size: tuple[int, ...]) -> Float[np.ndarray, "h w"]:
        integers = path.suffix.lower() in (".png", ".tif", ".tiff")
        depth = read_depth(path, self.scale or (MILLIMETRES if integers else None))
        if depth.shape != size:
            raise ValueError(
                f"{path} is {depth.shape[0]} x {depth.shape[1]} pixels (height x width), but its "
                f"image is {size[0]} x {size[1]}"
            )
        return depth

    def _lens(self, name: str, size: tuple[int, ...]) -> Lens:
        if self.camera is not None:
            return Lens(self.camera)
        known: dict[str, Any] = self.content | self._frames[name]
        along = size[1] / float(known.get("w", size[1]))
        down = size[0] / float(known.get("h", size[0]))
        if "fl_x" in known:
            fx = float(known["fl_x"])
        else:
            fx = size[1] / along / 2 / math.tan(float(known["camera_angle_x"]) / 2)
        fy = float(known.get("fl_y", fx))
        cx = float(known.get("cx", size[1] / along / 2))
        cy = float(known.get("cy", size[0] / down / 2))
        model = str(known.get("camera_model", "OPENCV"))
        if model not in DISTORTIONS:
            raise ValueError(f"its camera model {model[:30]!r} is not supported")
        kind, names = DISTORTIONS[model]
        matrix = make_intrinsics(fx * along, fy * down, cx * along - HALF, cy * down - HALF)
        return Lens(matrix, kind, tuple(float(known.get(one, 0)) for one in names))

    def _project(self, name: str, lens: Lens, size: tuple[int, int]) -> Points:
        assert self.cloud is not None
        if self._map is None:
            xyz = read_cloud(self.cloud, self.scale or 1.0, is_map=True)
            self._map = torch.from_numpy(xyz)
        with reading(self.path, NAME):
            pose = torch.tensor(self._frames[name]["transform_matrix"], dtype=torch.float64)
            if pose.shape != (4, 4) or not pose.isfinite().all() or pose.det().abs() < 1e-9:
                raise ValueError(f"the transform_matrix of {name} is not a pose")
        pose[:3, 3] /= self.scale or 1.0
        to_camera = torch.diag(torch.tensor([1.0, -1, -1, 1]).double()) @ torch.linalg.inv(pose)
        points = Points.from_cloud(self._map, lens.matrix, to_camera, size)
        return remove_occluded(points, size)
