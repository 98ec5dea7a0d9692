# SPDX-License-Identifier: Apache-2.0
"""Messages of ROS, from a bag or a node, as arrays and back. No ROS is needed.

A message is any object with the fields of its definition, so that messages of `rosbags` and of
`rclpy` are read alike.
"""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deepbasis.data.formats import MILLIMETRES, decode_picture, without_saturated
from deepbasis.data.images import to_rgb
from deepbasis.data.lens import Lens
from deepbasis.data.limits import MissingOption
from deepbasis.data.recording import pose_of
from deepbasis.shapes import Float, UInt8

# Channels, in the order of each 8-bit encoding, as indices of RGB.
COLOURS = {
    "rgb8": (3, [0, 1, 2]), "bgr8": (3, [2, 1, 0]), "rgba8": (4, [0, 1, 2]),
    "bgra8": (4, [2, 1, 0]), "8uc3": (3, [2, 1, 0]), "8uc4": (4, [2, 1, 0]),
    "mono8": (1, [0, 0, 0]), "8uc1": (1, [0, 0, 0]),
}  # fmt: skip
# Row and column of the red pixel in each 2 x 2 cell; blue is opposite.
BAYER = {"bayer_rggb8": (0, 0), "bayer_grbg8": (0, 1), "bayer_gbrg8": (1, 0), "bayer_bggr8": (1, 1)}
# PointField's numbers of its types.
FIELD_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
DEPTH_ENCODINGS = {"16uc1": "u2", "mono16": "u2", "32fc1": "f4"}
# In the format of a compressed depth image of image transport.
DEPTH_TRANSPORT = "compresseddepth"
# Bytes of the header that image transport puts before a compressed depth image.
DEPTH_HEADER = 12


def stamp_of(message: Any) -> int:
    """Nanoseconds of a message's header."""
    stamp = message.header.stamp
    nanoseconds = getattr(stamp, "nanosec", None)
    return int(stamp.sec) * 10**9 + int(stamp.nsec if nanoseconds is None else nanoseconds)


def to_image(message: Any) -> UInt8[np.ndarray, "h w 3"]:
    """RGB of an Image or a CompressedImage."""
    if hasattr(message, "format"):
        if DEPTH_TRANSPORT in message.format.lower():
            raise _depth_as_image(message.format)
        return to_rgb(_decompress(bytes(message.data)))
    encoding = message.encoding.lower()
    if encoding in COLOURS:
        channels, order = COLOURS[encoding]
        return np.ascontiguousarray(_rows(message, "u1", channels)[..., order])
    if encoding in BAYER:
        return _from_bayer(_rows(message, "u1", 1)[..., 0], BAYER[encoding])
    if encoding == "mono16":
        return to_rgb(_rows(message, "u2", 1)[..., 0].astype(np.uint16))
    if encoding in DEPTH_ENCODINGS:
        raise _depth_as_image(message.encoding)
    raise MissingOption(
        f"an image has the encoding {message.encoding!r}, which is not supported; use one of "
        f"{', '.join([*COLOURS, *BAYER, 'mono16'])}"
    )


def _depth_as_image(encoding: str) -> MissingOption:
    return MissingOption(
        f"an image has the encoding {encoding!r}, so it is a depth image; pass the topic of "
        "colours as --image, and that of depth as --points: they may be swapped"
    )


def to_depth(message: Any, scale: float | None = None) -> Float[np.ndarray, "h w"]:
    """Depth in metres of an Image or a CompressedImage; 0 for no measurement, also for 65535.

    Integers are millimetres and floats metres, as REP 118 says, unless a scale is passed.
    """
    if hasattr(message, "format"):
        depth = _to_compressed_depth(message, scale)
    else:
        encoding = message.encoding.lower()
        if encoding not in DEPTH_ENCODINGS:
            raise MissingOption(
                f"a depth image has the encoding {message.encoding!r}; expected 16UC1 or 32FC1, so "
                "pass --points with the topic of depth, not of colours"
            )
        raw = _rows(message, DEPTH_ENCODINGS[encoding], 1)[..., 0]
        usual = MILLIMETRES if raw.dtype.kind == "u" else 1.0
        depth = without_saturated(raw).astype(np.float32) / np.float32(scale or usual)
    return np.where(np.isfinite(depth) & (depth > 0), depth, 0).astype(np.float32)


def to_cloud(message: Any) -> Float[np.ndarray, "n 3"]:
    """x, y, z in metres of a PointCloud2, a LaserScan or a Range, in the frame of its sensor."""
    if hasattr(message, "point_step"):
        return _from_cloud(message)
    if hasattr(message, "ranges"):
        ranges = np.asarray(message.ranges, np.float64)
        angle = message.angle_min + message.angle_increment * np.arange(len(ranges))
        good = (ranges >= message.range_min) & (ranges <= message.range_max)
        flat = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], 1)
        good &= np.isfinite(ranges)
        return ranges[good, None] * flat[good]
    if hasattr(message, "field_of_view"):
        good = message.min_range <= message.range <= message.max_range
        return np.array([[message.range, 0, 0]] if good else [], np.float64).reshape(-1, 3)
    raise ValueError(
        f"{type(message).__name__} holds no points; use a topic of PointCloud2, LaserScan, Range, "
        "or a depth image"
    )


def to_lens(message: Any, *, rectified: bool) -> Lens:
    """The camera of a CameraInfo: K and D or, for rectified images, P without distortion."""
    fields = {name.lower(): name for name in dir(message)}
    k, d, p = (np.asarray(getattr(message, fields[x]), np.float64) for x in "kdp")
    if rectified:
        projection = torch.from_numpy(p.reshape(3, 4)[:, :3].copy())
        return Lens(projection.float())
    matrix = torch.from_numpy(k.reshape(3, 3).copy()).float()
    return Lens(matrix, str(message.distortion_model), tuple(d.tolist()))


def to_transforms(message: Any) -> dict[tuple[str, str], tuple[int, Float[Tensor, "4 4"]]]:
    """Times and transforms of a TFMessage by (parent, child): they take points of the child to the
    parent.
    """
    found = {}
    for one in message.transforms:
        t, q = one.transform.translation, one.transform.rotation
        names = one.header.frame_id.lstrip("/"), one.child_frame_id.lstrip("/")
        found[names] = stamp_of(one), pose_of([t.x, t.y, t.z], [q.x, q.y, q.z, q.w])
    return found


def image_fields(values: np.ndarray) -> dict[str, Any]:
    """Fields of an Image but its header: float32 [h, w] as 32FC1, or uint8 [h, w, 3] as rgb8."""
    encoding = "rgb8" if values.ndim == 3 else "32FC1"
    kind = np.uint8 if values.ndim == 3 else np.float32
    content = np.ascontiguousarray(values, kind)
    return {
        "height": values.shape[0],
        "width": values.shape[1],
        "encoding": encoding,
        "is_bigendian": int(sys.byteorder == "big"),
        "step": content.strides[0],
        "data": content.view(np.uint8).reshape(-1),
    }


def cloud_fields(
    xyz: Float[np.ndarray, "n 3"], rgb: UInt8[np.ndarray, "n 3"], std: Float[np.ndarray, " n"]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Fields of a PointCloud2 but its header, and its PointFields: x, y, z, rgb and std."""
    kinds = {"x": 7, "y": 7, "z": 7, "rgb": 7, "std": 7}
    points = np.empty(len(xyz), [(name, "<f4") for name in kinds])
    points["x"], points["y"], points["z"], points["std"] = *xyz.T, std
    red, green, blue = rgb.astype(np.uint32).T
    points["rgb"] = (red << 16 | green << 8 | blue).astype("<u4").view("<f4")
    fields = [
        {"name": name, "offset": 4 * i, "datatype": kind, "count": 1}
        for i, (name, kind) in enumerate(kinds.items())
    ]
    step = points.dtype.itemsize
    whole = {
        "height": 1, "width": len(xyz), "is_bigendian": False, "point_step": step,
        "row_step": step * len(xyz), "data": points.view(np.uint8).reshape(-1), "is_dense": True,
    }  # fmt: skip
    return whole, fields


def _rows(message: Any, kind: str, channels: int) -> np.ndarray:
    """Pixels of an Image [height, width, channels]; rows may be padded."""
    order = ">" if message.is_bigendian else "<"
    height, width, step = int(message.height), int(message.width), int(message.step)
    row = width * channels * int(kind[1:])
    data = np.frombuffer(bytes(message.data), np.uint8)
    if height < 1 or width < 1 or step < row or len(data) < height * step:
        raise ValueError(
            f"an image claims {height} x {width} pixels (height x width) of {channels} x {kind} in "
            f"rows of {step} bytes, but holds {len(data)} bytes"
        )
    packed = np.ascontiguousarray(data[: height * step].reshape(height, step)[:, :row])
    return packed.view(order + kind).reshape(height, width, channels)


def _decompress(content: bytes) -> Image.Image:
    return decode_picture(io.BytesIO(content), Path("a compressed image"))


def _to_compressed_depth(message: Any, scale: float | None) -> np.ndarray:
    """Image transport's compressed depth: a PNG of millimetres or of quantised inverse depth."""
    content = bytes(message.data)
    transported = DEPTH_TRANSPORT in message.format.lower()
    picture = _decompress(content[DEPTH_HEADER if transported else 0 :])
    if not picture.mode.startswith("I"):
        raise MissingOption(
            f"a compressed depth image is {picture.mode}, not 16-bit grey; pass --points with the "
            "topic of depth, not of colours"
        )
    counts = np.array(picture).astype(np.uint16)
    if not message.format.lower().startswith("32fc1"):
        return without_saturated(counts).astype(np.float32) / np.float32(scale or MILLIMETRES)
    raw = counts.astype(np.float32)
    a, b = np.frombuffer(content[4:DEPTH_HEADER], "<f4")
    with np.errstate(all="ignore"):
        return np.where(raw > 0, a / (raw - b), 0) / np.float32(scale or 1.0)


def _from_bayer(raw: np.ndarray, red: tuple[int, int]) -> UInt8[np.ndarray, "h w 3"]:
    """Bilinear interpolation of each colour."""
    from scipy.ndimage import convolve

    row, column = np.indices(raw.shape)
    row, column = (row + red[0]) % 2, (column + red[1]) % 2
    places = ((row == 0) & (column == 0), row != column, (row == 1) & (column == 1))
    window = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]], np.float64)
    colours = []
    for known in places:
        total = convolve(np.where(known, raw, 0).astype(np.float64), window, mode="constant")
        share = convolve(known.astype(np.float64), window, mode="constant")
        colours.append(np.where(known, raw, total / np.maximum(share, 1)))
    return np.stack(colours, -1).round().astype(np.uint8)


def _from_cloud(message: Any) -> Float[np.ndarray, "n 3"]:
    """Coordinates of a PointCloud2 with any layout of its fields; those not finite are dropped."""
    order = ">" if message.is_bigendian else "<"
    places = {field.name: field for field in message.fields}
    if not {"x", "y", "z"} <= places.keys():
        raise ValueError(f"a cloud has the fields {', '.join(places)}, but not all of x, y and z")
    kinds = []
    for axis in "xyz":
        field = places[axis]
        if field.datatype not in FIELD_TYPES:
            raise ValueError(f"the field {axis} of a cloud has the unknown type {field.datatype}")
        kinds.append(order + FIELD_TYPES[field.datatype])
    step, height, width = (int(getattr(message, n)) for n in ("point_step", "height", "width"))
    ends = [int(places[a].offset) + int(k[2:]) for a, k in zip("xyz", kinds, strict=True)]
    row_step = int(message.row_step) or step * width
    data = np.frombuffer(bytes(message.data), np.uint8)
    if step < max(ends) or row_step < step * width or len(data) < height * row_step:
        raise ValueError(
            f"a cloud claims {height} x {width} points of {step} bytes in rows of {row_step}, but "
            f"holds {len(data)} bytes"
        )
    offsets = [int(places[axis].offset) for axis in "xyz"]
    layout = np.dtype(
        {"names": list("xyz"), "formats": kinds, "offsets": offsets, "itemsize": step}
    )
    rows = data[: height * row_step].reshape(height, row_step)[:, : step * width]
    points = np.ascontiguousarray(rows).view(layout).reshape(-1)
    xyz = np.stack([points[axis].astype(np.float64) for axis in "xyz"], 1)
    return xyz[np.isfinite(xyz).all(1)]


def seconds(time: int) -> str:
    """Nanoseconds as seconds, exactly: the name of a frame."""
    return f"{time // 10**9}.{time % 10**9:09d}"
