# SPDX-License-Identifier: Apache-2.0
"""Reading and writing images and depth maps.

Images are RGB, uint8, [height, width, 3]. Depth maps are z-depth in metres, float32, [height,
width], and 0 means no measurement, whatever the file used for it (0, NaN or infinity).

    .png .tif .tiff   integers; metres = value / scale, and the scale is not in the file
    .npy .npz         float metres, or integers with a scale; an .npz holds one array or `depth`
    .pfm              float metres, rows from bottom to top

OpenEXR is left out: few sensors write it, and reading it takes a compiled library of its own.
"""

import io
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepbasis.data.files import find_file, whole
from deepbasis.data.sample import Sample, check_sizes, unknown_intrinsics
from deepbasis.shapes import Float, UInt8

KITTI = 256.0
MILLIMETRES = 1000.0
TUM = 5000.0
CENTIMETRES = 100.0
LARGEST = 2**16 - 1
JPEG_QUALITY = 95
# In metres half of a scene lies nearer than this; in millimetres nearly nothing does.
FAR_M = 200.0
# What a damaged picture makes Pillow raise.
DAMAGED = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)
DEPTHS = (".png", ".tif", ".tiff", ".npy", ".npz", ".pfm")


def read_image(path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """An 8-bit image as RGB: grey is repeated, transparency dropped, no rotation tag applied."""
    picture = _open(path)
    if picture.mode.startswith(("I", "F")):
        raise ValueError(
            f"{path} has more than 8 bits a pixel, so it is not a photograph; is it a depth map?"
        )
    if picture.mode == "P":
        picture = picture.convert("RGBA")
    return np.array(picture.convert("RGB"))


def write_image(path: Path, image: UInt8[np.ndarray, "h w 3"]) -> None:
    """Write an RGB image as .png or .jpg."""
    kinds = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
    if path.suffix.lower() not in kinds:
        raise ValueError(f"{path} is not the name of a picture; end it in .png or .jpg")
    with whole(path) as file:
        Image.fromarray(image).save(file, kinds[path.suffix.lower()], quality=JPEG_QUALITY)


def read_depth(path: Path, scale: float | None = None) -> Float[np.ndarray, "h w"]:
    """A depth map in metres, by the suffix of its file.

    Args:
        path: .png, .tif, .npy, .npz or .pfm.
        scale: metres = value / scale. Files of integers need one; None takes floats as metres.
    """
    raw = _read_raw(path)
    if np.issubdtype(raw.dtype, np.integer) and scale is None:
        raise ValueError(
            f"{path} holds integers, and the file does not say their unit: {_readings(raw)}; "
            "pass the right one (--depth-scale)"
        )
    depth = _to_metres(raw, 1.0 if scale is None else scale, path)
    check_metres(depth[depth > 0], path)
    return depth


def read_depth_png(path: Path, scale: float) -> Float[np.ndarray, "h w"]:
    """A 16-bit depth map in metres: value / scale."""
    return _to_metres(read_counts(path), scale, path)


def read_counts(path: Path) -> np.ndarray:
    """The numbers in a 16-bit grey picture (or in a floating point TIFF), as they are."""
    picture = _open(path)
    if not picture.mode.startswith(("I", "F")):
        raise ValueError(
            f"{path} is an 8-bit image of mode {picture.mode}, not a 16-bit depth map; "
            "it may be a picture of the depth made for viewing: find the file it was made from"
        )
    return np.array(picture)


def encode_depth(depth: Float[np.ndarray, "h w"], scale: float, name: str) -> bytes:
    """A depth map as a 16-bit PNG: round(scale * metres), and 0 where there is none.

    A depth that would round to 0, and so be lost, becomes the smallest number, 1.
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
    """Write a 16-bit depth map: round(scale * metres), 0 where there is no depth."""
    encoded = encode_depth(depth, scale, str(path))
    with whole(path) as file:
        file.write(encoded)


def write_npy(path: Path, values: np.ndarray) -> None:
    """Write an array as it is."""
    with whole(path) as file:
        np.save(file, values, allow_pickle=False)


def read_pfm(path: Path) -> Float[np.ndarray, "h w"]:
    """A grey portable float map, top row first; a negative scale in it means little endian."""
    content = find_file(path).read_bytes()
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
    with whole(path) as file:
        file.write(f"Pf\n{width} {height}\n-1.0\n".encode())
        file.write(values[::-1].astype("<f4").tobytes())


def check_metres(distance: Float[np.ndarray, " n"], path: Path) -> None:
    """Refuse distances that are millimetres by the look of them: half lie beyond 200 m."""
    middle = float(np.median(distance)) if distance.size else 0.0
    if middle > FAR_M:
        raise ValueError(
            f"half of the distances in {path} exceed {middle:.4g} m, which looks like millimetres "
            f"taken for metres; divided by 1000 (a depth scale of 1000) it would be "
            f"{middle / MILLIMETRES:.4g} m"
        )


def to_sample(
    name: str,
    image: UInt8[np.ndarray, "h w 3"],
    depth: Float[np.ndarray, "h2 w2"] | None = None,
    sparse: Float[np.ndarray, "h3 w3"] | None = None,
    intrinsics: Float[Tensor, "3 3"] | None = None,
) -> Sample:
    """A sample of what was read; depths that were not are zero."""
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


def _open(path: Path) -> Image.Image:
    find_file(path)
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except DAMAGED as error:
        raise ValueError(f"{path} cannot be read as a picture ({error}); copy it again") from error


def _read_raw(path: Path) -> np.ndarray:
    suffix = path.suffix.lower()
    if suffix not in DEPTHS:
        hint = "convert it to .npy or .pfm" if suffix == ".exr" else "see `deepbasis.data.formats`"
        raise ValueError(f"{path}: {suffix or 'no suffix'} is not a depth format we read; {hint}")
    if suffix == ".pfm":
        return read_pfm(path)
    raw = _load_numpy(path) if suffix in (".npy", ".npz") else read_counts(path)
    if raw.ndim != 2 or raw.dtype.kind not in "iuf":
        raise ValueError(
            f"{path} holds {raw.dtype} {list(raw.shape)}; a depth map is [height, width] numbers"
        )
    return raw


def _load_numpy(path: Path) -> np.ndarray:
    find_file(path)
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            names = loaded.files
            if "depth" in names or len(names) == 1:
                return loaded["depth" if "depth" in names else names[0]]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a numpy file ({error})") from error
    raise ValueError(
        f"{path} holds the arrays {', '.join(names) or '(none)'}; it must hold one, or one `depth`"
    )


def _to_metres(raw: np.ndarray, scale: float, path: Path) -> Float[np.ndarray, "h w"]:
    _check_scale(scale, str(path))
    return _without_gaps(raw.astype(np.float32), str(path)) / np.float32(scale)


def _without_gaps(depth: Float[np.ndarray, "h w"], name: str) -> Float[np.ndarray, "h w"]:
    """The same depths with 0 where there is none."""
    measured = np.isfinite(depth)
    if (depth[measured] < 0).any():
        raise ValueError(
            f"{name} holds negative depths, down to {depth[measured].min():.4g}; depth is in "
            "metres, and 0, NaN or infinity mean no measurement"
        )
    return np.where(measured, depth, 0)


def _check_scale(scale: float, name: str) -> None:
    if not 0 < scale < np.inf:
        raise ValueError(f"{name}: the depth scale is {scale}; metres = value / scale needs > 0")


def _readings(raw: np.ndarray) -> str:
    """What integers could mean."""
    values = raw[raw > 0]
    if not values.size:
        return "all are 0, which is no measurement under any"
    low, high = int(values.min()), int(values.max())
    return (
        f"read as millimetres (scale 1000) its depths run from {low / MILLIMETRES:.3g} to "
        f"{high / MILLIMETRES:.3g} m, with KITTI's 256 from {low / KITTI:.3g} to "
        f"{high / KITTI:.3g} m"
    )
