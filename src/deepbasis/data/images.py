# SPDX-License-Identifier: Apache-2.0
"""Images in any usual form, as networks take them: RGB, uint8.

    path, PIL image, numpy array or torch tensor
    [height, width], [height, width, c] or [c, height, width] with c = 1, 3 or 4 channels
    uint8; uint16; floating point from 0 to 1

Grey is repeated, transparency is dropped. Colours of 16 bits may use 8, 10, 12, 14 or all 16 of
them: the smallest of these that holds all values is what they use. Grey of 16 bits,
as thermal and machine-vision cameras give it, seldom uses its whole range: the range of its values,
without the most extreme 0.1 % on either side, becomes 0 to 255. What is ambiguous is refused, and
16-bit grey that looks like a depth map.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

from deepbasis.data.formats import open_picture
from deepbasis.shapes import UInt8

ImageLike = str | Path | Image.Image | np.ndarray | Tensor
CHANNELS = (1, 3, 4)
# Files of depth and points, which are easily passed in the wrong place.
NOT_PICTURES = (".npy", ".npz", ".pfm", ".csv", ".txt", ".ply", ".pcd", ".bin", ".xyz", ".las",
                ".laz")  # fmt: skip
# Range of 16-bit grey values that becomes 0 to 255, in per cent of the pixels.
GREY_RANGE = (0.1, 99.9)
# A 16-bit grey image is a depth map if this share of its pixels is exactly 0, for no measurement,
# and almost none lies between 0 and this share of the median: sensors have a least distance,
# while the dark parts of a photo have values of all sizes.
DEPTH_ZEROS, DEPTH_GAP = 0.01, 0.02
# Rounding that floating-point images may have beyond 0 and 1.
SLACK = 1e-3
# Bits of a colour that cameras store as 16.
BITS = (8, 10, 12, 14, 16)
WANTED = (
    "pass a path, a PIL image, or an array or tensor [height, width], [height, width, channels] or "
    "[channels, height, width] with 1, 3 or 4 channels: uint8, uint16, or floating point in 0..1"
)


def to_rgb(image: ImageLike) -> UInt8[np.ndarray, "h w 3"]:
    """An image as RGB, uint8 [height, width, 3]."""
    if isinstance(image, str | Path):
        image = _open(Path(image))
    values = _to_array(image)
    name = f"{values.dtype} {list(values.shape)}"
    if values.ndim == 2:
        values = values[..., None]
    elif not isinstance(image, Image.Image):
        values = _channels_last(values, name)
    if not values.size:
        raise ValueError(f"the image is {name}: it has no pixel; {WANTED}")
    if values.dtype == np.uint16:
        values = _from_16_bits(values)
    elif values.dtype.kind == "f":
        values = _from_unit_range(values, name)
    elif values.dtype != np.uint8:
        raise ValueError(f"the image is {name}; {WANTED}")
    colours = values[..., :3] if values.shape[2] >= 3 else np.repeat(values[..., :1], 3, 2)
    return np.require(colours, requirements=("C", "W"))  # PyTorch warns of what is not writable


def to_pixels(image: ImageLike) -> UInt8[Tensor, "1 3 h w"]:
    """An image as networks take it, a batch of one."""
    return torch.from_numpy(to_rgb(image)).permute(2, 0, 1)[None].contiguous()


def read_image(path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """An image file as RGB; no rotation tag is applied."""
    try:
        return to_rgb(path)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _open(path: Path) -> Image.Image:
    """Open a picture; a warning if it would be shown turned."""
    if path.suffix.lower() in NOT_PICTURES:
        raise ValueError(
            f"{path} is not a picture: {path.suffix} files hold depth or points; pass the photo as "
            "the image, and this file as its points"
        )
    picture = open_picture(path)
    try:
        turned = picture.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # a damaged tag, whatever Pillow makes of it
        turned = 1
    if turned != 1:
        warnings.warn(
            f"{path} has a rotation tag (EXIF orientation {turned}), which is not applied: the "
            f"image is used as it is stored, {picture.height} x {picture.width} pixels (height x "
            "width); rotate it upright first, and make sure that the points match",
            stacklevel=2,
        )
    return picture


def _to_array(image: Any) -> np.ndarray:
    if isinstance(image, Image.Image):
        return _from_pil(image)
    if isinstance(image, Tensor):
        tensor = image.detach().cpu()
        image = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if not isinstance(image, np.ndarray):
        raise ValueError(f"the image is of type {type(image).__name__}; {WANTED}")
    if np.ma.isMaskedArray(image):
        raise ValueError("the image is a masked array; fill the masked pixels first")
    return image


def _from_pil(picture: Image.Image) -> np.ndarray:
    if picture.mode.startswith("I;16"):
        return np.asarray(picture).astype(np.uint16)
    if picture.mode == "I":  # how some versions of Pillow open 16-bit grey
        values = np.asarray(picture)
        if values.min(initial=0) < 0 or values.max(initial=0) > np.iinfo(np.uint16).max:
            raise ValueError(f"the image holds 32-bit integers; {WANTED}")
        return values.astype(np.uint16)
    if picture.mode == "F":
        return np.asarray(picture)
    return np.array((picture.convert("RGBA") if picture.mode == "P" else picture).convert("RGB"))


def _channels_last(values: np.ndarray, name: str) -> np.ndarray:
    last = values.ndim == 3 and values.shape[2] in CHANNELS
    first = values.ndim == 3 and values.shape[0] in CHANNELS
    if first and last:
        raise ValueError(
            f"the image is {name}, so it is not clear whether channels come first or last; such a "
            "small image must be passed as a PIL image"
        )
    if not (first or last):
        raise ValueError(f"the image is {name}; {WANTED}")
    return values if last else np.moveaxis(values, 0, 2)


def _from_16_bits(values: np.ndarray) -> np.ndarray:
    if values.shape[2] >= 3:
        largest = next(2**bits - 1 for bits in BITS if values.max() < 2**bits)
        return (values / largest * 255).round().astype(np.uint8)
    if _looks_like_depth(values):
        raise ValueError(
            f"the image is 16-bit grey with {(values == 0).mean():.0%} zeros, like a depth map; "
            "pass the photo as the image, or convert it to 8 bits if it is one"
        )
    low, high = np.percentile(values, GREY_RANGE)
    spread = max(high - low, 1.0)
    return ((values - low) / spread * 255).round().clip(0, 255).astype(np.uint8)


def _looks_like_depth(values: np.ndarray) -> bool:
    known = values[values > 0]
    if known.size == values.size or not known.size:
        return False
    gap = np.percentile(known, GREY_RANGE[0]) > DEPTH_GAP * np.median(known)
    return bool(gap and known.size < (1 - DEPTH_ZEROS) * values.size)


def _from_unit_range(values: np.ndarray, name: str) -> np.ndarray:
    if not np.isfinite(values).all():
        raise ValueError(f"the image is {name} and holds NaN or infinity")
    low, high = float(values.min()), float(values.max())
    if low < -SLACK or high > 1 + SLACK:
        raise ValueError(
            f"the image is {name} with values from {low:.4g} to {high:.4g}; floating-point images "
            "go from 0 to 1, others are uint8 or uint16"
        )
    return (values.astype(np.float64) * 255).round().clip(0, 255).astype(np.uint8)
