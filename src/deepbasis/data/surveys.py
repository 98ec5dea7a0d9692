# SPDX-License-Identifier: Apache-2.0
"""Point clouds of surveyors: .las and .laz by laspy, .e57 by pye57.

Scans of an .e57 file are joined in the frame of the file, to which the pose of each leads.
"""

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from deepbasis.data.extras import need
from deepbasis.data.files import find_file
from deepbasis.data.formats import MOST_UNPACKED
from deepbasis.data.limits import check_count, reading
from deepbasis.latent import LARGEST_DEPTH
from deepbasis.shapes import Float

SURVEYS = (".las", ".laz", ".e57")
# What .las and .laz files begin with.
SIGNATURE = b"LASF"
# Bit of the point format that says that points are compressed, and the record that says how.
COMPRESSED, LASZIP = 0x80, (b"laszip encoded", 22204)


def read_survey(path: Path) -> Float[np.ndarray, "n 3"]:
    """Read a cloud; it may be far from 0, on a map, so its unit is not checked."""
    kind = path.suffix.lower()
    e57 = kind == ".e57"
    library = need(*(("pye57", "e57") if e57 else ("laspy", "las")), f"reading {kind} files")
    with reading(path, "an E57 point cloud" if e57 else "a LAS point cloud"):
        xyz = (_read_e57 if e57 else _read_las)(library, find_file(path))
        finite = xyz[(np.abs(xyz) < LARGEST_DEPTH).all(1)]
        if not len(finite):
            raise ValueError("it is an empty point cloud")
        return finite


def _read_e57(pye57: Any, path: Path) -> Float[np.ndarray, "n 3"]:
    try:
        file = pye57.E57(str(path))
    except pye57.libe57.E57Exception as error:  # the rest of its text is for programmers
        reason = str(error).partition("*")[0].strip()
        raise ValueError(f"it is damaged ({reason}); copy it again") from error
    with file:
        scans = range(file.scan_count)
        points = sum(file.get_header(i).point_count for i in scans)
        check_count(3 * points, path, "numbers")
        if points > MOST_UNPACKED * path.stat().st_size:
            raise ValueError(f"it claims {points} points, more than its bytes hold")
        read = [file.read_scan(i, ignore_missing_fields=True) for i in scans]
    axes = [f"cartesian{axis}" for axis in "XYZ"]
    found = [np.stack([one[axis] for axis in axes], 1) for one in read]
    return np.concatenate([np.zeros((0, 3)), *found])


def _read_las(laspy: Any, path: Path) -> Float[np.ndarray, "n 3"]:
    _check_las(path)
    try:
        # On one thread: on several, lazrs allocates as much as the header says of a chunk.
        cloud = laspy.read(path, laz_backend=laspy.LazBackend.Lazrs)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # lazrs gave up; it is not an Exception
            raise
        raise ValueError(f"it is damaged ({error}); copy it again") from error
    return np.stack([np.asarray(axis, np.float64) for axis in (cloud.x, cloud.y, cloud.z)], 1)


def _check_las(path: Path) -> None:
    """Refuse a header that claims more than the file holds; laspy would not stop reading."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(375).ljust(375, b"\0")
    if not header.startswith(SIGNATURE):
        raise ValueError(f"it does not begin with {SIGNATURE.decode()}; check what it is")
    start, records = struct.unpack_from("<II", header, 96)
    length, points = struct.unpack_from("<HI", header, 105)
    extended, many = struct.unpack_from("<IQ", header, 243)
    if header[25] >= 4:  # minor version
        records, points = records + extended, max(points, many)
    check_count(3 * points, path, "numbers")
    if start > size or 54 * records > size or points * length > MOST_UNPACKED * size:
        raise ValueError(
            f"it claims {points} points and {records} records from byte {start}, more than its "
            f"{size} bytes hold"
        )
    if not header[104] & COMPRESSED and start + points * length > size:
        raise ValueError(
            f"it has {size} of the {start + points * length} bytes of its {points} points; copy it "
            "again"
        )
    if header[104] & COMPRESSED:
        with path.open("rb") as file:
            _check_chunks(file, start, size)
            _check_items(file, *struct.unpack_from("<H4xI", header, 94))


def _check_chunks(file: BinaryIO, start: int, size: int) -> None:
    """The points of a .laz file begin with the place of the table of chunks."""
    file.seek(start)
    (table,) = struct.unpack("<q", file.read(8))
    if table == -1:  # of a file that was streamed, at its end
        file.seek(-8, os.SEEK_END)
        (table,) = struct.unpack("<q", file.read(8))
    if not start <= table <= size - 8:
        raise ValueError(f"its table of chunks is said to be at byte {table} of {size}")
    file.seek(table)
    _, chunks = struct.unpack("<II", file.read(8))
    if chunks > size:
        raise ValueError(f"it claims {chunks} chunks, more than its {size} bytes hold")


def _check_items(file: BinaryIO, start: int, records: int) -> None:
    """A record tells what each point of a .laz file consists of; lazrs crashes if it is nothing."""
    file.seek(start)
    for _ in range(records):
        user, number, length = struct.unpack("<2x16sHH32x", file.read(54))
        content = file.read(length)
        if (user.rstrip(b"\0"), number) == LASZIP and content[32:34] == b"\0\0":
            raise ValueError("its record of LASzip says that points consist of nothing")
