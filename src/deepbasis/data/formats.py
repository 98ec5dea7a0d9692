# SPDX-License-Identifier: Apache-2.0
"""Reading and writing images and depth maps.

Images are RGB, uint8, [height, width, 3]. Depth maps are z-depth in metres, float32, [height,
width], and 0 means no measurement, which files store as 0, NaN or infinity, and 16-bit integers
also as 65535.

    .png .tif .tiff   integers; metres = value / scale, and the scale is not in the file
    .npy .npz         float metres, or integers with a scale; an .npz holds one array or `depth`
    .pfm              float metres, rows from bottom to top

OpenEXR is written without compression, but not read: few sensors write it.
"""

import io
import math
import re
import struct
import threading
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from deepbasis.data.files import atomic_write, find_file
from deepbasis.data.limits import MissingOption, WrongUnit, check_count, reading
from deepbasis.data.sample import Sample, check_sizes, unknown_intrinsics
from deepbasis.shapes import Float, UInt8

KITTI = 256.0
MILLIMETRES = 1000.0
TUM = 5000.0
CENTIMETRES = 100.0
LARGEST = 2**16 - 1
JPEG_QUALITY = 95
# If half of the depths are larger than this, they are probably not in metres.
FAR_M = 200.0
# Distances below this are seldom measured: such millimetres are centimetres.
NEAR_M = 0.5
# Others are refused, whatever their name: Pillow runs a program to read some of them.
PICTURES = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF", "PPM")
DEPTHS = (".png", ".tif", ".tiff", ".npy", ".npz", ".pfm")
# Files that claim this many bytes of pixels for each of theirs are damaged: deflate unpacks a byte
# to at most 1032, JPEG to about 1400.
MOST_UNPACKED = 4096
CENTIMETRES = 100.0
# Held while Pillow's own limit, which is a global variable, is not in force.
_OPENING = threading.Lock()


def write_image(path: Path, image: UInt8[np.ndarray, "h w 3"]) -> None:
    """Write an RGB image as .png or .jpg."""
    kinds = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
    if path.suffix.lower() not in kinds:
        raise ValueError(f"{path} is not the name of a picture; end it in .png or .jpg")
    with atomic_write(path) as file:
        Image.fromarray(image).save(file, kinds[path.suffix.lower()], quality=JPEG_QUALITY)


def read_depth(
    path: Path | str, scale: float | None = None, option: str = "--depth-scale"
) -> Float[np.ndarray, "h w"]:
    """Read a depth map in metres; the suffix of the file determines its format.

    Args:
        path: .png, .tif, .npy, .npz or .pfm.
        scale: metres = value / scale. Required for integers; by default floats are metres.
        option: of `deepbasis complete` that sets the scale, for the message if it is missing.
    """
    path = Path(path)
    raw = _read_raw(path)
    if np.issubdtype(raw.dtype, np.integer) and scale is None:
        raise MissingOption(
            f"{path} holds integers, and the file does not say their unit: {_readings(raw)}; "
            + tell_scale(option)
        )
    depth = _to_metres(raw, 1.0 if scale is None else scale, path)
    check_metres(depth[depth > 0], path)
    return depth


def tell_scale(option: str) -> str:
    """What to do about depths of an unknown unit."""
    return (
        "write the right one to a file scale.txt in the folder above, or pass it to `deepbasis "
        f"complete` as {option}"
    )


def read_depth_png(path: Path, scale: float) -> Float[np.ndarray, "h w"]:
    """Read a 16-bit depth map in metres: value / scale."""
    return _to_metres(without_saturated(read_counts(path)), scale, path)


def read_counts(path: Path) -> np.ndarray:
    """Read the numbers of a 16-bit grey image, or of a floating-point TIFF, without scaling."""
    picture = open_picture(path)
    if not picture.mode.startswith(("I", "F")):
        raise ValueError(
            f"{path} is an 8-bit image of mode {picture.mode}, not a 16-bit depth map; "
            "it may be a picture of the depth made for viewing: find the file it was made from"
        )
    counts = np.array(picture)
    # Some versions of Pillow open 16-bit .png files as 32-bit integers.
    return counts.astype(np.uint16) if picture.format == "PNG" else counts


def without_saturated(raw: np.ndarray) -> np.ndarray:
    """The same depths with 0 for the largest 16-bit integer, by which sensors such as RealSense and
    Kinect mean no measurement.
    """
    if raw.dtype.kind != "u" or raw.dtype.itemsize != 2:
        return raw
    return np.where(raw == LARGEST, np.uint16(0), raw)


def encode_depth(depth: Float[np.ndarray, "h w"], scale: float, name: str) -> bytes:
    """A depth map as a 16-bit PNG: round(scale * metres), and 0 for no measurement.

    A depth that would be rounded to 0, and so be lost, becomes 1.
    """
    _check_scale(scale, name)
    metres = _without_gaps(depth.astype(np.float64), name)
    counts = np.where(metres > 0, np.maximum(np.rint(metres * scale), 1), 0)
    if counts.max(initial=0) > LARGEST:
        raise ValueError(
            f"{name}: the largest depth is {metres.max():.6g} m, but 16 bits at scale {scale:g} "
            f"hold at most {LARGEST / scale:.6g} m; cap the depths or use a smaller scale"
        )
    buffer = io.BytesIO()
    Image.fromarray(counts.astype(np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


def write_depth_png(path: Path, depth: Float[np.ndarray, "h w"], scale: float) -> None:
    """Write a 16-bit depth map: round(scale * metres), and 0 for no measurement."""
    encoded = encode_depth(depth, scale, str(path))
    with atomic_write(path) as file:
        file.write(encoded)


def write_npy(path: Path, values: np.ndarray) -> None:
    """Write an array to a .npy file."""
    with atomic_write(path) as file:
        np.save(file, values, allow_pickle=False)


def read_pfm(path: Path) -> Float[np.ndarray, "h w"]:
    """Read a grey portable float map, top row first; a negative scale means little endian."""
    with reading(path, "a portable float map"):
        check_count(find_file(path).stat().st_size // 4, path, "numbers")
        return _parse_pfm(path.read_bytes(), path)


def _parse_pfm(content: bytes, path: Path) -> Float[np.ndarray, "h w"]:
    header = re.match(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(-?[\d.eE+-]+)\s", content)
    if header is None or header[1] != b"Pf":
        kind = "a colour" if header else "not a"
        raise ValueError(f"{path} is {kind} portable float map; a depth map is grey (`Pf`)")
    width, height = int(header[2]), int(header[3])
    values = content[header.end() :]
    if len(values) != 4 * width * height:
        raise ValueError(
            f"{path} should hold {width} x {height} numbers, {4 * width * height} bytes, but holds "
            f"{len(values)}; it is damaged, copy it again"
        )
    order = "<f4" if float(header[4]) < 0 else ">f4"
    return np.frombuffer(values, order).reshape(height, width)[::-1].astype(np.float32)


def write_pfm(path: Path, values: Float[np.ndarray, "h w"]) -> None:
    """Write a grey portable float map, little endian."""
    height, width = values.shape
    with atomic_write(path) as file:
        file.write(f"Pf\n{width} {height}\n-1.0\n".encode())
        file.write(values[::-1].astype("<f4").tobytes())


def write_exr(path: Path, channels: Mapping[str, Float[np.ndarray, "h w"]]) -> None:
    """Write an OpenEXR image of float32 channels, by name, without compression."""
    maps = {name: np.ascontiguousarray(channels[name], "<f4") for name in sorted(channels)}
    height, width = next(iter(maps.values())).shape
    # Type 2 is float32; then four reserved bytes, and the sampling along x and y.
    listed = b"".join(name.encode() + b"\0" + struct.pack("<iiii", 2, 0, 1, 1) for name in maps)
    window = struct.pack("<iiii", 0, 0, width - 1, height - 1)
    header = struct.pack("<ii", 20000630, 2)
    for name, kind, value in (
        ("channels", "chlist", listed + b"\0"), ("compression", "compression", b"\0"),
        ("dataWindow", "box2i", window), ("displayWindow", "box2i", window),
        ("lineOrder", "lineOrder", b"\0"), ("pixelAspectRatio", "float", struct.pack("<f", 1)),
        ("screenWindowCenter", "v2f", struct.pack("<ff", 0, 0)),
        ("screenWindowWidth", "float", struct.pack("<f", 1)),
    ):  # fmt: skip
        header += f"{name}\0{kind}\0".encode() + struct.pack("<i", len(value)) + value
    header += b"\0"
    size = 4 * width * len(maps)
    first = len(header) + 8 * height
    with atomic_write(path) as file:
        file.write(header)
        file.write((first + (size + 8) * np.arange(height, dtype="<u8")).astype("<u8").tobytes())
        for row in range(height):
            file.write(struct.pack("<ii", row, size))
            file.write(b"".join(values[row].tobytes() for values in maps.values()))


def check_metres(distance: Float[np.ndarray, " n"], path: Path) -> None:
    """Refuse distances that look like millimetres: half of them are beyond 200 m."""
    middle = float(np.median(distance)) if distance.size else 0.0
    if middle > FAR_M:
        near = middle / MILLIMETRES < NEAR_M
        unit, scale = ("centimetres", CENTIMETRES) if near else ("millimetres", MILLIMETRES)
        raise WrongUnit(
            f"half of the distances in {path} exceed {middle:.4g} m, which looks like {unit} "
            f"read as metres; divided by {scale:g} (a depth scale of {scale:g}) it would be "
            f"{middle / scale:.4g} m",
            scale,
        )


def to_sample(
    name: str,
    image: UInt8[np.ndarray, "h w 3"],
    depth: Float[np.ndarray, "h2 w2"] | None = None,
    sparse: Float[np.ndarray, "h3 w3"] | None = None,
    intrinsics: Float[Tensor, "3 3"] | None = None,
) -> Sample:
    """Make a sample; a depth map that is None becomes 0 everywhere."""
    pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
    none = torch.zeros(1, *pixels.shape[1:])
    return check_sizes(
        Sample(
            name,
            pixels,
            none if depth is None else torch.from_numpy(depth)[None],
            none.clone() if sparse is None else torch.from_numpy(sparse)[None],
            unknown_intrinsics() if intrinsics is None else intrinsics,
        )
    )


def open_picture(path: Path) -> Image.Image:
    """A picture as Pillow reads it."""
    with find_file(path).open("rb") as file:
        return decode_picture(file, path)


def decode_picture(file: IO[bytes] | io.BytesIO, name: Path) -> Image.Image:
    """The picture in an open file, or in a part of one that `name` tells messages of."""
    with reading(name, "a picture"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damaged tags, which are not used
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        with _open_without_limit(file) as picture:
            check_count(picture.size[0] * picture.size[1], name, "pixels")
            _check_picture(picture, size)
            picture.load()
            return picture


def _check_picture(picture: Image.Image, size: int) -> None:
    """Refuse a damaged header before memory is taken for the pixels that it claims."""
    width, height = picture.size
    # One bit is the least that a pixel takes; of one with a palette, Pillow does not tell.
    pixel = {"1": 1 / 8, "P": 1 / 8}.get(picture.mode, len(picture.getbands()))
    packed = picture.format in ("PNG", "JPEG", "MPO", "TIFF")
    if packed and width * height * pixel > MOST_UNPACKED * size:
        raise ValueError(
            f"it claims {height} x {width} pixels (height x width), more than {size} bytes hold: "
            "it is damaged"
        )


def _open_without_limit(file: IO[bytes] | io.BytesIO) -> Image.Image:
    """Read the header of a picture; our limit, which can be raised, takes the place of Pillow's."""
    with _OPENING:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=PICTURES)
        except UnidentifiedImageError:
            raise ValueError(f"it is not one of {', '.join(PICTURES)}") from None
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _read_raw(path: Path) -> np.ndarray:
    suffix = path.suffix.lower()
    if suffix not in DEPTHS:
        hint = "convert it to .npy or .pfm" if suffix == ".exr" else f"use {', '.join(DEPTHS)}"
        raise ValueError(f"{path}: {suffix or 'no suffix'} is not a supported depth format; {hint}")
    if suffix == ".pfm":
        return read_pfm(path)
    raw = load_array(path) if suffix in (".npy", ".npz") else read_counts(path)
    if raw.ndim != 2 or raw.dtype.kind not in "iuf":
        raise ValueError(
            f"{path} holds {raw.dtype} {list(raw.shape)}; a depth map is [height, width] numbers"
        )
    return without_saturated(raw)


def load_array(path: Path) -> np.ndarray:
    """The array of a .npy file, or of an .npz file with one array or one called `depth`."""
    find_file(path)
    with reading(path, "a numpy file"), path.open("rb") as file:
        if path.suffix.lower() != ".npz":
            _check_claim(file, path, path.stat().st_size)
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
        with zipfile.ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if "depth" not in names and len(names) != 1:
                raise ValueError(
                    f"{path} holds the arrays {', '.join(names)[:100] or '(none)'}; it must hold "
                    "one, or one called `depth`"
                )
            name = "depth" if "depth" in names else names[0]
            entry = archive.infolist()[names.index(name)]
            with archive.open(entry) as member:
                _check_claim(member, path, entry.file_size)
            with archive.open(entry) as member:
                return np.lib.format.read_array(member, allow_pickle=False)


def _check_claim(file: io.BufferedIOBase | IO[bytes], path: Path, size: int) -> None:
    """Refuse an array that claims more than the limit, or more than its file holds."""
    version = np.lib.format.read_magic(file)
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    if version[0] not in read:
        raise ValueError(f"its version is {version}")
    shape, _, kind = read[version[0]](file)
    claimed = math.prod(shape) * kind.itemsize
    check_count(max(math.prod(shape), claimed // 8), path, "numbers")
    if claimed > size:
        raise ValueError(f"it claims {list(shape)} numbers, more than it holds")


def _to_metres(raw: np.ndarray, scale: float, path: Path) -> Float[np.ndarray, "h w"]:
    _check_scale(scale, str(path))
    with np.errstate(over="ignore"):  # what float32 does not hold is no measurement
        depth = _without_gaps(raw.astype(np.float32), str(path)) / np.float32(scale)
        return np.where(np.isfinite(depth), depth, 0)


def _without_gaps(depth: Float[np.ndarray, "h w"], name: str) -> Float[np.ndarray, "h w"]:
    """The same depths with 0 for no measurement."""
    measured = np.isfinite(depth)
    if (depth[measured] < 0).any():
        raise ValueError(
            f"{name} holds negative depths, down to {depth[measured].min():.4g}; depth is in "
            "metres, and 0, NaN or infinity mean no measurement"
        )
    return np.where(measured, depth, 0)


def _check_scale(scale: float, name: str) -> None:
    limits = np.finfo(np.float32)
    if not float(limits.tiny) <= scale <= float(limits.max):
        raise ValueError(f"{name}: the depth scale is {scale}; metres = value / scale needs > 0")


def _readings(raw: np.ndarray) -> str:
    """Possible interpretations of integer depths."""
    values = raw[raw > 0]
    if not values.size:
        return "all are 0, which means no measurement"
    low, high = int(values.min()), int(values.max())
    return (
        f"read as millimetres (scale 1000) its depths run from {low / MILLIMETRES:.3g} to "
        f"{high / MILLIMETRES:.3g} m, with KITTI's 256 from {low / KITTI:.3g} to "
        f"{high / KITTI:.3g} m"
    )
