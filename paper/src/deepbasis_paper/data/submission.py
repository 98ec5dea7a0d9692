# SPDX-License-Identifier: Apache-2.0
"""The zip file that KITTI's depth completion benchmark takes: written, and checked."""

import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from deepbasis.data.files import atomic_write, find_file
from deepbasis.data.formats import KITTI, encode_depth
from deepbasis.data.kitti import SIZE
from deepbasis.data.limits import reading
from deepbasis.shapes import Float

# Frames of the test set.
FRAMES = 1000
# Bytes that a PNG may take beyond its pixels.
SPARE_BYTES = 100_000


def write_submission(
    path: Path,
    depths: Iterable[Float[np.ndarray, "h w"]],
    expected: int = FRAMES,
    size: tuple[int, int] = SIZE,
) -> None:
    """Write the zip file that the benchmark's server takes: 0000000000.png, ... at its root.

    Args:
        path: file to write; it is checked before it gets its name.
        depths: depth in metres at every pixel of the test frames, in their order and full size.
        expected: how many there must be; the server wants 1000.
        size: height and width of each.
    """
    written = 0
    with atomic_write(path) as file:
        with zipfile.ZipFile(file, "w") as archive:
            for depth in depths:
                name = submission_name(written)
                _check_prediction(depth, name, size)
                archive.writestr(name, encode_depth(depth, KITTI, name))
                written += 1
        if written != expected:
            raise ValueError(
                f"{path} would hold {written} depth maps; a submission holds {expected}, "
                "one for each frame of the test set"
            )
        file.flush()
        check_submission(Path(file.name), expected, size)


def submission_name(index: int) -> str:
    """Name of a depth map in a submission."""
    return f"{index:010d}.png"


def check_submission(path: Path, expected: int = FRAMES, size: tuple[int, int] = SIZE) -> None:
    """Refuse a zip file that the benchmark's server would not take, or would have to fill in."""
    find_file(path)
    with reading(path, "a zip file"):
        archive = zipfile.ZipFile(path)
    names = [submission_name(index) for index in range(expected)]
    with archive:
        _check_names(path, archive.namelist(), names)
        for name in names:
            _check_picture(f"{name} in {path}", archive, name, size)


def _check_names(path: Path, found: Sequence[str], names: Sequence[str]) -> None:
    for name in found:
        if "/" in name:
            raise ValueError(
                f"{name} in {path} is a folder or lies in one; all files belong at the top level"
            )
    if strange := sorted(set(found) - set(names)):
        raise ValueError(
            f"{strange[0]} in {path} does not belong there: a submission holds {names[0]} to "
            f"{names[-1]} and nothing else"
        )
    if missing := sorted(set(names) - set(found)):
        raise ValueError(
            f"{missing[0]} is not in {path}; {len(missing)} of {len(names)} files are missing"
        )
    if twice := [name for name, count in Counter(found).items() if count > 1]:
        raise ValueError(f"{twice[0]} is in {path} more than once; write the file anew")


def _check_picture(where: str, archive: zipfile.ZipFile, name: str, size: tuple[int, int]) -> None:
    most = 2 * size[0] * size[1] + SPARE_BYTES
    if archive.getinfo(name).file_size > most:
        raise ValueError(f"{where} is larger than the {most} bytes of a depth map; write it anew")
    with reading(Path(where), "a PNG"):
        content = io.BytesIO(archive.read(name))
        with Image.open(content, formats=["PNG"]) as picture:
            mode, found = picture.mode, (picture.height, picture.width)
            counts = np.array(picture) if found == size else None
    if not mode.startswith("I"):
        raise ValueError(f"{where} is a picture of mode {mode}, not of 16-bit grey")
    if counts is None:
        raise ValueError(
            f"{where} is {list(found)} pixels (height, width); the benchmark's frames are "
            f"{list(size)}"
        )
    if gaps := int((counts == 0).sum()):
        row, column = np.argwhere(counts == 0)[0].tolist()
        raise ValueError(
            f"{where} has no depth at row {row}, column {column}, and at {gaps} pixels in all; "
            "every pixel must be predicted"
        )


def _check_prediction(depth: Float[np.ndarray, "h w"], name: str, size: tuple[int, int]) -> None:
    if depth.shape != size:
        raise ValueError(
            f"{name} of the submission is {list(depth.shape)} pixels (height, width); the "
            f"benchmark's frames are {list(size)}"
        )
    bad = ~(np.isfinite(depth) & (depth > 0))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise ValueError(
            f"{name} of the submission is {depth[row, column]:.4g} at row {row}, column {column}, "
            f"and wrong at {bad.sum()} pixels in all; every depth must be positive and finite"
        )
