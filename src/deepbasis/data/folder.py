# SPDX-License-Identifier: Apache-2.0
"""Your own frames, in plain folders."""

import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepbasis.data.files import PICTURES, check_paired, find_file, find_folder, list_by_stem
from deepbasis.data.formats import DEPTHS, read_depth, to_sample
from deepbasis.data.images import read_image
from deepbasis.data.limits import read_text
from deepbasis.data.sample import Sample, make_intrinsics
from deepbasis.points import check_pose
from deepbasis.shapes import Float


class Folder:
    """Images and depth maps of the same names, in two folders or three.

    ```
    root/
      rgb/000000.jpg          .jpg or .png
      depth/000000.png        .png or .tif (integers), .npy, .npz or .pfm (float metres)
      lidar/000000.png        optional, named by `sparse`: points of a sparse sensor
      intrinsics.txt          optional: `fx fy cx cy`, or a 3x3 matrix; also intrinsics.json
      intrinsics/000000.txt   or this: a camera for each frame
      scale.txt               optional: one number, metres = value / number
    ```

    Depth is z-depth in metres after division by the scale; 0, NaN and infinity mean no
    measurement. Files with the same name, apart from the suffix, belong to one frame. Frames are
    sorted by name.

    Args:
        root: the folder that holds the others.
        images, depths, sparse: names of folders in it; None where there is none, and then that
            depth is 0 everywhere.
        depth_scale: metres = value / depth_scale; by default what scale.txt says, and without that
            only files of floats can be read, as metres.
        intrinsics: 3x3 matrix of all frames; by default what the files say, else NaN.

    Examples:
        >>> frames = Folder(Path("my_robot"), depth_scale=1000)  # doctest: +SKIP
        >>> frames[0].depth.max()  # doctest: +SKIP
        tensor(4.1270)
    """

    def __init__(
        self,
        root: Path,
        images: str = "rgb",
        depths: str | None = "depth",
        sparse: str | None = None,
        depth_scale: float | None = None,
        intrinsics: Float[Tensor, "3 3"] | None = None,
    ) -> None:
        find_folder(root)
        self.images = list_by_stem(root / images, PICTURES, "name the folder with `images`")
        self.depths = self._list(root, images, depths, "depths")
        self.sparse = self._list(root, images, sparse, "sparse")
        self.names = list(self.images)
        self.scale = read_scale(root / "scale.txt") if depth_scale is None else depth_scale
        self.intrinsics = _find_intrinsics(root) if intrinsics is None else intrinsics
        self.cameras: dict[str, Path] = {}
        if self.intrinsics is None and (root / "intrinsics").is_dir():
            self.cameras = list_by_stem(root / "intrinsics", [".txt", ".json"])
            where = (f"{root / images}/*", f"{root / 'intrinsics'}/*")
            check_paired(self.images, self.cameras, where)

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.names)

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.names[index]

    def __getitem__(self, index: int) -> Sample:
        """Read one frame."""
        name = self.names[index]
        depth, sparse = (
            read_depth(paths[name], self.scale) if paths else None
            for paths in (self.depths, self.sparse)
        )
        camera = read_intrinsics(self.cameras[name]) if self.cameras else self.intrinsics
        return to_sample(name, read_image(self.images[name]), depth, sparse, camera)

    def _list(self, root: Path, images: str, folder: str | None, option: str) -> dict[str, Path]:
        if folder is None:
            return {}
        hint = f"name the folder with `{option}`, or pass `{option}=None` if there is none"
        found = list_by_stem(root / folder, DEPTHS, hint)
        check_paired(self.images, found, (f"{root / images}/*", f"{root / folder}/*"))
        return found


def read_intrinsics(path: Path | str) -> Float[Tensor, "3 3"]:
    """Read a camera matrix: `fx fy cx cy` (in JSON also by name) or 3x3 numbers."""
    path = Path(path)
    text = read_text(path)
    try:
        values = json.loads(text) if path.suffix == ".json" else text.replace(",", " ").split()
        if isinstance(values, dict):
            values = [values[key] for key in ("fx", "fy", "cx", "cy")]
        numbers = np.asarray(values, np.float64).ravel().tolist()
    except KeyError as missing:
        raise ValueError(f"{path} has no {missing}; give fx, fy, cx and cy in pixels") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error)[:100]
        raise ValueError(
            f"{path} does not hold the numbers of a camera ({reason}); write `fx fy cx cy` or a "
            "3x3 matrix to a .txt or .json file"
        ) from error
    if len(numbers) == 4:
        return _check_camera(make_intrinsics(*numbers), path)
    if len(numbers) == 9:
        return _check_camera(torch.tensor(numbers).view(3, 3), path)
    raise ValueError(
        f"{path} holds {len(numbers)} numbers; a camera is `fx fy cx cy` or a 3x3 matrix "
        "(is a row missing?)"
    )


def read_extrinsics(path: Path | str) -> Float[Tensor, "4 4"]:
    """Read the transform from a sensor to the camera: 3x4 or 4x4 numbers, as text or JSON."""
    path = Path(path)
    text = read_text(find_file(path))
    try:
        values = json.loads(text) if path.suffix == ".json" else text.replace(",", " ").split()
        numbers = np.asarray(values, np.float64).ravel()
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error)[:100]
        raise ValueError(f"{path} does not hold the numbers of a pose ({reason})") from error
    if len(numbers) not in (12, 16):
        raise ValueError(f"{path} holds {len(numbers)} numbers; a pose is 3x4 or 4x4 of them")
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3] = torch.from_numpy(numbers[:12]).view(3, 4)
    return check_pose(pose, str(path))


def _check_camera(matrix: Float[Tensor, "3 3"], path: Path) -> Float[Tensor, "3 3"]:
    finite = bool(matrix.isfinite().all())
    if not finite or matrix[2].tolist() != [0, 0, 1] or not (matrix.diag() > 0).all():
        raise ValueError(
            f"{path} is not a camera matrix: {matrix.tolist()}; the rows must be `fx 0 cx`, "
            "`0 fy cy` and `0 0 1`, in pixels"
        )
    return matrix


def _find_intrinsics(root: Path) -> Float[Tensor, "3 3"] | None:
    for path in (root / "intrinsics.txt", root / "intrinsics.json"):
        if path.exists():
            return read_intrinsics(path)
    return None


def read_scale(path: Path) -> float | None:
    """Read the number in a scale.txt, by which depths are divided; None without the file."""
    if not path.exists():
        return None
    text = read_text(path).strip()
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise ValueError(
            f"{path} holds {text[:40]!r}; it should hold one positive number, by which depths are "
            "divided to give metres"
        )
    return scale
