# SPDX-License-Identifier: Apache-2.0
"""Manifests: tables of frames, with a column for each kind of file.

    image         file of the image, the only column that is needed
    name          of the frame (default: the image's, without folder and suffix)
    sparse        measured depth in any form that --sparse takes
    intrinsics    camera
    ground_truth  true depth
    confidence    of the depth image in `sparse`

Files are named relative to the manifest, or by an address such as s3://BUCKET/NAME. An empty or
missing value means that the frame has no such file.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deepbasis.arguments import show as tell
from deepbasis.commands.complete import MANIFESTS, Complete
from deepbasis.commands.complete.inputs import Frame, find_frames
from deepbasis.commands.complete.storage import address, open_file, show, to_path
from deepbasis.data.extras import need
from deepbasis.data.limits import check_count, reading

# Of a frame; those of its results have a few letters more, and file systems allow 255 bytes.
LONGEST_NAME = 200
FILES = ("image", "sparse", "intrinsics", "ground_truth", "confidence")
COLUMNS = ("name", *FILES)
# Options that name files, in place of which a manifest has columns.
OPTIONS = ("sparse", "intrinsics", "ground_truth", "confidence", "trajectory")


def list_frames(settings: Complete) -> list[Frame]:
    """All frames, of images, a recording or a manifest, sorted by name."""
    if not any(path.suffix.lower() in MANIFESTS for path in settings.images):
        return sorted(find_frames(settings), key=lambda frame: frame.name)
    if len(settings.images) > 1:
        raise ValueError("pass a single manifest, without images or other manifests")
    for option in OPTIONS:
        if getattr(settings, option) is not None:
            raise ValueError(
                f"--{option.replace('_', '-')} is for images; a manifest names the files of each "
                "frame in its columns"
            )
    return read_manifest(settings.images[0])


def read_manifest(path: Path) -> list[Frame]:
    """The frames of a manifest, sorted by name."""
    rows = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_lines(path)
    frames: dict[str, Frame] = {}
    for number, row in enumerate(rows, 1):
        try:
            frame = _to_frame(row, path.parent)
        except ValueError as error:
            raise ValueError(f"{show(path)}, row {number}: {error}") from error
        if frame.name in frames:
            raise ValueError(
                f"{show(path)}, row {number}: the name {frame.name!r} is that of an earlier row; "
                "names must differ (column `name`)"
            )
        frames[frame.name] = frame
    if not frames:
        raise ValueError(f"{show(path)} lists no frame")
    return [frames[name] for name in sorted(frames)]


def _read_parquet(path: Path) -> Iterable[dict[str, Any]]:
    parquet = need("pyarrow.parquet", "ray", f"reading {show(path)}")
    with open_file(path) as file, reading(to_path(show(path)), "a Parquet table"):
        table = parquet.ParquetFile(file)
        check_count(table.metadata.num_rows, path, "rows")
        table = table.read()
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _read_lines(path: Path) -> Iterable[dict[str, Any]]:
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{show(path)}, line {number} is not JSON ({error}); write one object a line, "
                    'such as {"image": "rgb/1.png", "sparse": "lidar/1.npy"}'
                ) from error


def _to_frame(row: Any, folder: Path) -> Frame:
    if not isinstance(row, dict):
        raise ValueError("it is not an object with a value for each column")
    if unknown := sorted(row.keys() - set(COLUMNS)):
        raise ValueError(
            f"there is no column {tell(unknown[0])} in a manifest; its columns are "
            f"{', '.join(COLUMNS)}"
        )
    for column, value in row.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{column} is {tell(value)}, not a text")
    files = {column: _find(row[column], folder) for column in FILES if row.get(column)}
    if "image" not in files:
        raise ValueError("it names no image (column `image`)")
    name = row.get("name") or files["image"].stem
    if "/" in name or "\\" in name or name.startswith(".") or not name.isprintable():
        raise ValueError(f"the name {tell(name)} is not that of a file; leave out folders")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"the name {tell(name)} is longer than {LONGEST_NAME} bytes")
    return Frame(
        name,
        files["image"],
        files.get("sparse"),
        files.get("intrinsics"),
        files.get("ground_truth"),
        confidence=files.get("confidence"),
    )


def _find(text: str, folder: Path) -> Path:
    path = to_path(text)
    return path if address(path) is not None else folder / path
