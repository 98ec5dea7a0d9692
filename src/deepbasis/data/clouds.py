# SPDX-License-Identifier: Apache-2.0
"""Reading and writing points: tables of pixels with depth, and PLY, PCD and BIN point clouds.

A cloud is float64 [n, 3] of x, y, z in metres. Only what sensors write is read: vertices with
scalar properties, as text or plain binary. Points that are not finite, or beyond a million
kilometres, are dropped, since organised clouds use them for "no return".
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from torch import Tensor

from deepbasis.data.files import atomic_write, find_file
from deepbasis.data.formats import check_metres
from deepbasis.data.limits import check_count, read_text, reading
from deepbasis.data.surveys import SURVEYS, read_survey
from deepbasis.latent import LARGEST_DEPTH
from deepbasis.shapes import Float, UInt8

PLY_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
    "float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2",
    "int32": "i4", "uint32": "u4", "float32": "f4", "float64": "f8",
}  # fmt: skip
PCD_TYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
PLY_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
LONGEST_LINE = 4096  # of a header; a binary file that is not a cloud may have no line breaks
# Characters of a wrong line that a message shows.
LONGEST_SHOWN = 60
# Between the columns of a table.
SEPARATOR = r"\s*[,;]\s*|\s+"
CLOUDS = (".ply", ".pcd", ".bin", ".xyz", *SURVEYS)
# Beginning of lines without points in clouds that are text; CloudCompare writes `//X Y Z`.
COMMENTS = ("#", "//")
# Lines of a header, and numbers of a point.
MOST_FIELDS = 10_000
ROW_FIRST = ("v", "row", "y", "r")
# What the columns of a table of points are called.
COLUMNS = {
    "u": ("u", "col", "column"), "v": ("v", "row"), "depth": ("depth", "metres", "meters"),
    "sigma": ("sigma", "std"),
}  # fmt: skip
# Without all of these names, a table whose header begins with one of these is read by position.
COLUMN_FIRST = (*COLUMNS["u"], "x")


class _Table(NamedTuple):
    """Layout of the points in a file. `order` is "" for text, else the byte order."""

    fields: list[tuple[str, str]]
    points: int
    order: str
    skip: int = 0
    """Number of lines of text, or of bytes, before the first point."""


def read_points(path: Path | str) -> Float[np.ndarray, "n columns"]:
    """Read measured pixels from a text file: `u v depth` or `u v depth sigma` on each line.

    u is the column, v the row, depth and sigma (its standard deviation) are in metres. Commas or
    white space separate columns. `#` starts a comment. The first line may be a header; if it names
    u, v and depth, they may be in any order, with other columns between them. If not, it must begin
    with the name of the column, such as x.
    """
    path = Path(path)
    rows: list[list[float]] = []
    text = read_text(find_file(path))
    lines = _bare_lines(text)
    columns: list[int] = []
    if lines and not any(map(_is_number, _split(lines[0][1]))):
        header = _split(lines.pop(0)[1])
        columns = _find_columns(header)
        if not columns:
            _check_header(header, path)
    for number, line in lines:
        words = _split(line)
        if len({gap.strip() for gap in re.findall(SEPARATOR, line)}) > 1:
            raise ValueError(
                f"{path}, line {number}: {_show(line)} has more than one kind of separator; if "
                "there are decimal commas, write decimal points instead"
            )
        if columns:
            if len(words) != len(header):
                raise ValueError(
                    f"{path}, line {number}: {_show(line)} has {len(words)} columns, but the "
                    f"header {_show(' '.join(header))} has {len(header)}"
                )
            words = [words[column] for column in columns]
        wanted = len(rows[0]) if rows else 4 if len(words) == 4 else 3
        if len(words) != wanted or not all(map(_is_number, words)):
            raise ValueError(
                f"{path}, line {number}: {_show(line)} is not {wanted} numbers; "
                "each line is `u v depth` or `u v depth sigma`, the same in the whole file"
            )
        rows.append([float(word) for word in words])
    if not rows:
        raise ValueError(
            f"{path} contains no points; each line is `u v depth` or `u v depth sigma`"
        )
    return np.array(rows)


def read_cloud(
    path: Path | str, scale: float = 1.0, *, is_map: bool = False
) -> Float[np.ndarray, "n 3"]:
    """Read a .ply, .pcd, .xyz, .las, .laz or .e57 point cloud, or a .bin file of KITTI: x, y, z in
    metres.

    Args:
        path: the file.
        scale: metres = coordinate / scale.
        is_map: whether the points may be far from 0, so that their distance from it does not tell
            millimetres from metres.
    """
    path = Path(path)
    if path.suffix.lower() in SURVEYS:
        return read_survey(path) / scale
    headers = {".ply": _ply_table, ".pcd": _pcd_table, ".bin": _bin_table, ".xyz": _xyz_table}
    if path.suffix.lower() not in headers:
        raise ValueError(f"{path} is not a supported point cloud; convert it to .ply or .pcd")
    with reading(path, "a point cloud"), find_file(path).open("rb") as file:
        table = headers[path.suffix.lower()](file)
        check_count(table.points * max(len(table.fields), 1), path, "numbers")
        xyz = _read_table(file, table) / scale
    if not is_map:
        check_metres(np.linalg.norm(xyz, axis=1), path)
    return xyz


def write_ply(
    path: Path,
    xyz: Float[np.ndarray, "n 3"],
    rgb: UInt8[np.ndarray, "n 3"] | None = None,
    extra: Mapping[str, Float[np.ndarray, " n"]] | None = None,
) -> None:
    """Write a binary PLY cloud; numbers keep their precision.

    Args:
        path: file to write.
        xyz: points in metres.
        rgb: colour of each point.
        extra: more properties by name, such as `std`, one number for each point.
    """
    if not len(xyz):
        raise ValueError(f"{path} would be an empty point cloud; there is no point to write")
    columns = dict(zip("xyz", xyz.T, strict=True))
    if rgb is not None:
        columns |= dict(zip(("red", "green", "blue"), rgb.T, strict=True))
    columns |= extra or {}
    kinds = {"f2": "f4", "f4": "f4", "f8": "f8", "u1": "u1"}
    fields = {name: kinds[column.dtype.str[1:]] for name, column in columns.items()}
    points = np.empty(len(xyz), [(name, f"<{kind}") for name, kind in fields.items()])
    for name, column in columns.items():
        points[name] = column
    words = {"f4": "float", "f8": "double", "u1": "uchar"}
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(xyz)}"]
    header += [f"property {words[kind]} {name}" for name, kind in fields.items()]
    with atomic_write(path) as file:
        file.write("\n".join([*header, "end_header\n"]).encode())
        file.write(points.tobytes())


def to_xyz(
    depth: Float[np.ndarray, "h w"], camera: Float[Tensor, "3 3"]
) -> tuple[Float[np.ndarray, "n 3"], tuple[np.ndarray, np.ndarray]]:
    """Every pixel as a point in the camera's frame, and its row and column."""
    (fx, _, cx), (_, fy, cy), _ = camera.tolist()
    row, column = np.nonzero(np.isfinite(depth))
    z = depth[row, column].astype(np.float64)
    xyz = np.stack([(column - cx) / fx * z, (row - cy) / fy * z, z], 1)
    return xyz.astype(np.float32), (row, column)


def _ply_table(file: BinaryIO) -> _Table:
    """Read a PLY header, up to the first byte after it."""
    lines = _header(file, "end_header")
    if lines[0] != ["ply"] or lines[1][0] != "format" or lines[1][1] not in PLY_ORDERS:
        raise ValueError("it does not start with `ply` and `format ... 1.0`, like a PLY file")
    order, skip = PLY_ORDERS[lines[1][1]], 0
    for name, count, fields in _ply_elements(lines[2:]):
        if any(kind == "list" for _, kind in fields):
            raise ValueError(
                f"element {name!r} holds lists and stands in or before the vertices; "
                "export the cloud without faces"
            )
        if name == "vertex":
            return _Table(fields, count, order, skip)
        skip += count * (np.dtype([("", kind) for _, kind in fields]).itemsize if order else 1)
    raise ValueError("it has no element `vertex`, so it holds no points")


def _ply_elements(lines: list[list[str]]) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """Name and count of each element, and name and type of its properties."""
    elements: list[tuple[str, int, list[tuple[str, str]]]] = []
    for words in lines:
        if words[0] == "element":
            elements.append((words[1], int(words[2]), []))
        elif words[0] == "property":
            kind = "list" if words[1] == "list" else PLY_TYPES.get(words[1])
            if kind is None or not elements:
                raise ValueError(f"the header line {_show(' '.join(words))} is not valid")
            elements[-1][2].append((words[-1], kind))
    return elements


def _pcd_table(file: BinaryIO) -> _Table:
    """Read a PCD header, up to the first byte after it."""
    lines = {words[0]: words[1:] for words in _header(file, "DATA")}
    if missing := {"FIELDS", "SIZE", "TYPE", "POINTS"} - lines.keys():
        raise ValueError(f"the PCD header has no line {', '.join(sorted(missing))}")
    if lines["DATA"] not in (["ascii"], ["binary"]):
        raise ValueError(
            f"its PCD data are {' '.join(lines['DATA'])!r}; convert it with "
            "`pcl_convert_pcd_ascii_binary in.pcd out.pcd 1`, which writes plain binary"
        )
    counts = [int(count) for count in lines.get("COUNT", ["1"] * len(lines["FIELDS"]))]
    if not 0 < sum(counts) <= MOST_FIELDS or min(counts) < 0:
        raise ValueError(f"its line COUNT gives a point {sum(counts)} numbers")
    columns = zip(lines["FIELDS"], lines["TYPE"], lines["SIZE"], counts, strict=True)
    kinds = [(f, f"{t.lower()}{s}", count) for f, t, s, count in columns]
    if strange := [kind for _, kind, _ in kinds if kind not in PCD_TYPES]:
        raise ValueError(f"its lines TYPE and SIZE name {strange[0][:20]!r}, which is not a number")
    fields = [(name, kind) for name, kind, count in kinds for _ in range(count)]
    return _Table(fields, int(lines["POINTS"][0]), "" if lines["DATA"] == ["ascii"] else "<")


def _xyz_table(file: BinaryIO) -> _Table:
    """A .xyz file has no header. Each line begins with x, y and z, also with commas between."""
    _check_characters(file)
    points = len(_text_rows(file))
    file.seek(0)
    return _Table([(name, "f8") for name in "xyz"], points, "")


def _bin_table(file: BinaryIO) -> _Table:
    """A .bin file has no header. Each point is four floats: x, y, z and reflectance."""
    if str(file.name).lower().endswith(".pcd.bin"):
        raise ValueError(
            "files of nuScenes have five numbers for each point, not four; save x, y and z as .ply"
        )
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size % 16:
        raise ValueError(f"its {size} bytes are not x, y, z and reflectance of 4 bytes each")
    return _Table([(name, "f4") for name in ("x", "y", "z", "reflectance")], size // 16, "<")


def _header(file: BinaryIO, last: str) -> list[list[str]]:
    """Words of each header line up to the one that begins with `last`, without comments."""
    lines: list[list[str]] = []
    while (raw := file.readline(LONGEST_LINE)) and len(lines) < MOST_FIELDS:
        words = raw.decode("latin-1").split()
        if words and words[0] not in ("comment", "obj_info") and words[0][0] != "#":
            lines.append(words)
        if words and words[0] == last:
            return lines
    raise ValueError(f"the header has no line {last!r}; the file is damaged or not a point cloud")


def _read_table(file: BinaryIO, table: _Table) -> Float[np.ndarray, "n 3"]:
    """Read the points whose coordinates are all finite."""
    names = [name for name, _ in table.fields]
    if not {"x", "y", "z"} <= set(names):
        raise ValueError(f"its properties are {', '.join(names)}, but not all of x, y and z")
    if table.points < 1:
        raise ValueError("it is an empty point cloud; was the sensor running?")
    columns = [names.index(axis) for axis in "xyz"]
    xyz = (_read_binary if table.order else _read_text)(file, table, columns)
    finite = xyz[(np.abs(xyz) < LARGEST_DEPTH).all(1)]
    if not len(finite):
        raise ValueError(f"it is an empty point cloud: none of its {len(xyz)} points is finite")
    return finite


def _read_binary(file: BinaryIO, table: _Table, columns: list[int]) -> Float[np.ndarray, "n 3"]:
    # Fields are named by position: clouds may have several padding fields of one name.
    kind = np.dtype([(str(i), table.order + k) for i, (_, k) in enumerate(table.fields)])
    file.seek(table.skip, os.SEEK_CUR)
    content = file.read(table.points * kind.itemsize)
    _check_complete(len(content) // kind.itemsize, table.points)
    points = np.frombuffer(content, kind, table.points)
    return np.stack([points[str(i)].astype(np.float64) for i in columns], 1)


def _read_text(file: BinaryIO, table: _Table, columns: list[int]) -> Float[np.ndarray, "n 3"]:
    _check_characters(file)
    lines = _text_rows(file, table.skip)
    _check_complete(len(lines), table.points)
    wanted = [_with_spaces(line) for line in lines[: table.points]]
    if short := [line for line in wanted if len(line.split()) <= max(columns)]:
        raise ValueError(f"its line {_show(short[0])} has fewer than {max(columns) + 1} numbers")
    return np.loadtxt(wanted, usecols=columns, ndmin=2)


def _text_rows(file: BinaryIO, skip: int = 0) -> list[str]:
    """Lines from here on without the first `skip`, empty lines and comments."""
    lines = file.read().decode("latin-1").splitlines()[skip:]
    return [line for line in lines if line.strip() and not line.lstrip().startswith(COMMENTS)]


def _with_spaces(line: str) -> str:
    """The same numbers with white space between them; decimal commas are refused."""
    if "," not in line and ";" not in line:
        return line
    line = line.split("#")[0].strip()
    if len({gap.strip() for gap in re.findall(SEPARATOR, line)}) > 1:
        raise ValueError(
            f"its line {_show(line)} has more than one kind of separator; if there are decimal "
            "commas, write decimal points instead"
        )
    return line.replace(",", " ").replace(";", " ")


def _check_characters(file: BinaryIO) -> None:
    check_count(os.fstat(file.fileno()).st_size, Path(file.name), "characters")


def _check_complete(found: int, wanted: int) -> None:
    if found < wanted:
        raise ValueError(f"it ends after {found} of {wanted} points; it is damaged, copy it again")


def _bare_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments and with their numbers; empty lines are left out."""
    bare = ((i, line.split("#")[0].strip()) for i, line in enumerate(text.splitlines(), 1))
    return [(i, line) for i, line in bare if line]


def _split(line: str) -> list[str]:
    return re.split(SEPARATOR, line)


def _show(line: str) -> str:
    """A line for a message, cut if it is long."""
    return repr(line[:LONGEST_SHOWN])


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _find_columns(header: list[str]) -> list[int]:
    """Places of u, v, depth and, if there is one, sigma; none if a name is missing or not clear."""
    named = [word.lower() for word in header]
    places = [[named.index(name) for name in names if name in named] for names in COLUMNS.values()]
    clear = len(set(named)) == len(named) and all(len(place) == 1 for place in places[:3])
    return [place[0] for place in places if len(place) == 1] if clear else []


def _check_header(header: list[str], path: Path) -> None:
    """Refuse a header that says that the order of the columns is not u, v, depth, sigma."""
    words = [word.lower() for word in header]
    if words[:3] == ["x", "y", "z"]:
        raise ValueError(
            f"{path} has columns x, y and z; if these are points in space, save them as "
            ".ply, and if they are pixels with depth, call them u, v and depth"
        )
    if "range" in words and not set(COLUMNS["depth"]) & set(words):
        raise ValueError(
            f"{path} has a column `range`, a distance along the ray, but z-depth is needed; "
            "convert it with deepbasis.points.range_to_depth and call it depth"
        )
    if words[0] in ROW_FIRST:
        raise ValueError(
            f"{path} has the row first, by its header {_show(' '.join(header))}; the order is u "
            "(column), v (row), depth: swap the first two"
        )
    if words[0] not in COLUMN_FIRST or not set(words[3:]) <= set(COLUMNS["sigma"]):
        raise ValueError(
            f"{path} does not say which columns are u, v and depth, by its header "
            f"{_show(' '.join(header))}; call them u, v, depth and, if there is one, sigma"
        )
