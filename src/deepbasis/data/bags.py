# SPDX-License-Identifier: Apache-2.0
"""Bags of ROS 1 (.bag) and ROS 2 (a folder, .mcap, .db3), read and written by `rosbags`.

Images are paired with the points nearest in time by the stamps of their headers. Images with lens
distortion become those of a pinhole camera with the same matrix; so do their depth images. Clouds
are moved to the camera by the transforms of the bag.
"""

import bz2
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepbasis.data.clouds import to_xyz
from deepbasis.data.extras import need
from deepbasis.data.lens import Lens
from deepbasis.data.limits import MissingOption, reading, unpack
from deepbasis.data.messages import (
    cloud_fields,
    image_fields,
    seconds,
    to_cloud,
    to_depth,
    to_image,
    to_lens,
    to_transforms,
)
from deepbasis.data.recording import NANOSECONDS, TOLERANCE, Recorded, pair
from deepbasis.data.transforms import Transforms, find_transform
from deepbasis.points import Points, remove_occluded
from deepbasis.shapes import Float, UInt8

BAGS = (".bag", ".mcap", ".db3")
PICTURES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
CLOUDS = tuple(f"sensor_msgs/msg/{name}" for name in ("PointCloud2", "LaserScan", "Range"))
FOR_POINTS = (*CLOUDS, *PICTURES)
INFO = "sensor_msgs/msg/CameraInfo"
# Of the folder of a ROS 2 bag.
METADATA = "metadata.yaml"
# What each begins with.
SIGNATURES = {".bag": b"#ROSBAG V", ".mcap": b"\x89MCAP", ".db3": b"SQLite format 3"}
# Programs that mend a bag whose end is missing.
MENDED = {".bag": "rosbag reindex", ".mcap": "mcap recover"}
# Topics that a message lists.
LISTED = 12


def _limit_unpacking() -> None:
    """Let rosbags unpack compressed chunks and messages up to our limit; it has none itself."""
    lz4 = need("lz4.frame", "ros", "reading bags").LZ4FrameDecompressor
    first = need("rosbags.rosbag1.reader", "ros", "reading bags")
    mcap = need("rosbags.rosbag2.storage_mcap", "ros", "reading bags")
    second = need("rosbags.rosbag2.reader", "ros", "reading bags")
    zstd = mcap.zstd.ZstdDecompressor
    first.decompressors |= {
        "bz2": partial(unpack, bz2.BZ2Decompressor), "lz4": partial(unpack, lz4),
    }  # fmt: skip
    mcap.DECOMPRESSORS |= {
        "lz4": lambda content, _: unpack(lz4, content),
        "zstd": lambda content, _: unpack(zstd, content),
    }
    second.zstd = SimpleNamespace(open=mcap.zstd.open, decompress=partial(unpack, zstd))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """`reading`; errors that we raise ourselves only get the path in front."""
    with reading(path, "a bag"):
        try:
            yield
        except ValueError as error:
            kind = MissingOption if isinstance(error, MissingOption) else ValueError
            raise kind(f"{path}: {error}") from error
        except Exception as error:
            suffix = ".mcap" if any(path.glob("*.mcap")) else path.suffix.lower()
            mend = MENDED.get(suffix)
            if mend is None or not type(error).__module__.startswith("rosbags"):
                raise
            reason = " ".join(str(error).split())
            raise ValueError(
                f"it is damaged ({reason}); copy it again or, if recording was interrupted, repair "
                f"it with `{mend}`"
            ) from error


def _check_signature(path: Path) -> None:
    """Refuse a file that is not what its name says."""
    if path.is_dir():
        return
    with path.open("rb") as file:
        begins = file.read(16)
    kinds = {suffix: what for suffix, what in SIGNATURES.items() if begins.startswith(what)}
    if path.suffix.lower() not in kinds:
        known = f"it is a {next(iter(kinds))} file: rename it" if kinds else "check what it is"
        raise ValueError(f"it does not begin like a {path.suffix.lower()} file; {known}")


def is_bag(path: Path) -> bool:
    """Whether this is a bag by its name, or a folder of ROS 2."""
    return path.suffix.lower() in BAGS or (path / METADATA).is_file()


@dataclass(frozen=True)
class Topics:
    """What to read from a bag; a topic that is the only one of its kind need not be named."""

    image: str | None = None
    points: str | None = None
    info: str | None = None


class _Stamped(NamedTuple):
    """Where a message is."""

    stamp: int
    logged: int


class Bag:
    """Images of a bag with points, as a `Recording`.

    Args:
        path: .bag, .mcap, .db3, or a folder of ROS 2 with its metadata.yaml.
        topics: to read.
        camera: used in place of the bag's camera info.
        extrinsics: used in place of the bag's transforms: from the cloud's frame to the camera's.
        depth_scale: metres = value / scale, for depth images (default: 1000 for integers).
        tolerance: seconds between an image and its points.
        tf: also use transforms that change, at the time of the points.
    """

    def __init__(
        self,
        path: Path,
        topics: Topics | None = None,
        *,
        camera: Float[Tensor, "3 3"] | None = None,
        extrinsics: Float[Tensor, "4 4"] | None = None,
        depth_scale: float | None = None,
        tolerance: float = TOLERANCE,
        tf: bool = False,
    ) -> None:
        self.path, self.extrinsics, self.scale = path, extrinsics, depth_scale
        self._own = threading.local()
        self._open: list[Any] = []
        if not path.exists():
            raise FileNotFoundError(f"there is no bag {path}; check its name")
        need("rosbags.highlevel", "ros", "reading bags")
        asked = topics or Topics()
        with _reading(path):
            _check_signature(path)
            kinds = {c.topic: c.msgtype for c in self._reader.connections}
            self.image = _choose(asked.image, kinds, PICTURES, "--image")
            self.points = self._choose_points(asked.points, kinds)
            if depth_scale is not None and kinds.get(self.points or "") not in PICTURES:
                raise ValueError("--depth-scale is for depth images only: leave it out")
            self._calibrated = (0, 0)
            self.lens = self._find_lens(asked.info, kinds) if camera is None else Lens(camera)
            self.transforms = Transforms(moving=tf, tolerance=tolerance)
            self._read_transforms(kinds)
            self._index(kinds, tolerance)

    def close(self) -> None:
        """Close the bag; after that it is opened again when it is read."""
        while self._open:
            with suppress(Exception):
                self._open.pop().close()
        self._own = threading.local()

    def __del__(self) -> None:
        self.close()

    def files(self, name: str) -> list[Path]:
        """Files that a frame depends on: all of the bag."""
        return sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]

    def read(self, name: str) -> Recorded:
        """Read a frame."""
        image_at, points_at = self._frames[name]
        with _reading(self.path):
            message = self._message(self.image, image_at)
            image = to_image(message)
            frame_id = message.header.frame_id.lstrip("/")
            points = None
            if self.points is not None and points_at is not None:
                message = self._message(self.points, points_at)
                points = self._to_points(message, image, frame_id, points_at.stamp)
            matrix = None
            if self.lens is not None:
                self._check_size(image.shape[:2])
                image, matrix = self.lens.undistort(image), self.lens.matrix
            return Recorded(image, points, matrix, image_at.stamp, frame_id or "camera")

    def _to_points(
        self, message: Any, image: UInt8[np.ndarray, "h w 3"], frame_id: str, time: int
    ) -> Points:
        size = image.shape[:2]
        if hasattr(message, "encoding") or hasattr(message, "format"):
            depth = to_depth(message, self.scale)
            if depth.shape != size:
                raise MissingOption(
                    f"{self.points} is {depth.shape[0]} x {depth.shape[1]} pixels (height x width) "
                    f"and {self.image} {size[0]} x {size[1]}; use a depth topic that is aligned "
                    "with the image"
                )
            return Points.from_map(depth if self.lens is None else self.lens.undistort_depth(depth))
        if self.lens is None:
            raise MissingOption(
                f"{self.points} is a point cloud, so the camera must be known: pass --info, the "
                "topic of its camera info, or --intrinsics"
            )
        cloud = torch.from_numpy(to_cloud(message))
        if not len(cloud):
            raise ValueError(
                f"{self.points} has no valid point at {seconds(time)} s: all are missing, not "
                "finite or out of range"
            )
        pose = self._find_pose(message.header.frame_id.lstrip("/"), frame_id, time)
        found = Points.from_cloud(cloud, self.lens.matrix, pose, size)
        apart = bool(pose[:3, 3].any())
        return remove_occluded(found, size) if apart else found

    def _check_size(self, size: tuple[int, ...]) -> None:
        """Refuse a camera info for images of another size; 0 x 0 means unknown."""
        if self._calibrated not in (size, (0, 0)):
            raise MissingOption(
                f"its camera info is for images of {self._calibrated[0]} x {self._calibrated[1]} "
                f"pixels (height x width), but {self.image} is {size[0]} x {size[1]}; pass --info "
                "with the right topic, or --intrinsics"
            )

    @property
    def _reader(self) -> Any:
        """The open bag; one for each thread, since those of SQLite may not be shared."""
        if not hasattr(self._own, "reader"):
            high = need("rosbags.highlevel", "ros", "reading bags")
            types = need("rosbags.typesys", "ros", "reading bags")
            usual = types.get_typestore(types.Stores.ROS2_HUMBLE)
            _limit_unpacking()
            reader = high.AnyReader([self.path], default_typestore=usual)
            reader.open()
            self._open.append(reader)
            self._own.reader = reader
        return self._own.reader

    def _messages(self, topic: str, *times: int) -> Iterator[tuple[Any, int, bytes]]:
        reader = self._reader
        connections = [c for c in reader.connections if c.topic == topic]
        return reader.messages(connections, *times)

    def _message(self, topic: str, at: _Stamped) -> Any:
        """The message with this stamp."""
        for connection, logged, raw in self._messages(topic, at.logged, at.logged + 1):
            if _stamp(raw, self._reader.is2, logged) == at.stamp:
                return self._reader.deserialize(raw, connection.msgtype)
        raise ValueError(f"its message of {topic} at {seconds(at.stamp)} is missing")

    def _choose_points(self, asked: str | None, kinds: dict[str, str]) -> str | None:
        """The topic of points; without a name the only cloud, or else none."""
        if asked is not None:
            return _choose(asked, kinds, FOR_POINTS, "--points")
        clouds = CLOUDS[:1]
        return _choose(None, kinds, clouds, "--points") if clouds[0] in kinds.values() else None

    def _find_lens(self, asked: str | None, kinds: dict[str, str]) -> Lens | None:
        """The first camera info of the topic that is named, or that stands beside the image."""
        beside = f"{self.image.removesuffix('/compressed').rpartition('/')[0]}/camera_info"
        if asked is None and kinds.get(beside) != INFO:
            return None
        topic = _choose(asked or beside, kinds, (INFO,), "--info")
        for connection, _, raw in self._messages(topic):
            message = self._reader.deserialize(raw, connection.msgtype)
            self._calibrated = int(message.height), int(message.width)
            return to_lens(message, rectified=is_rectified(self.image))
        raise ValueError(f"its topic {topic} holds no message")

    def _read_transforms(self, kinds: dict[str, str]) -> None:
        """Those of /tf, then the static ones."""
        if self.extrinsics is not None or self.points is None or kinds[self.points] in PICTURES:
            return
        for topic in ("/tf", "/tf_static"):
            if topic not in kinds:
                continue
            for connection, _, raw in self._messages(topic):
                message = self._reader.deserialize(raw, connection.msgtype)
                for names, (time, pose) in to_transforms(message).items():
                    self.transforms.add(names, pose, time if topic == "/tf" else None)

    def _find_pose(self, start: str, end: str, time: int) -> Tensor:
        """From the frame of points to that of their image."""
        if self.extrinsics is not None:
            return self.extrinsics
        changing, known = self.transforms.changing, self.transforms.at(time)
        if changing and self.transforms.moving:
            return find_transform(known, start, end, f"transform at {seconds(time)} s")
        try:
            return find_transform(known, start, end)
        except ValueError as error:
            also = "--tf, since the bag has transforms that change, or " if changing else ""
            raise MissingOption(f"{error}; pass {also}--extrinsics") from error

    def _index(self, kinds: dict[str, str], tolerance: float) -> None:
        """Find all frames."""
        images = self._stamps(self.image)
        if not images:
            raise ValueError(f"its topic {self.image} holds no message")
        pairs: dict[int, int] = {}
        points: list[_Stamped] = []
        if self.points is not None:
            points = self._stamps(self.points)
            times = [one.stamp for one in images], [one.stamp for one in points]
            pairs = pair(*times, tolerance, f"{self.image} and {self.points}")
        kept = {i: points[j] if points else None for i, j in pairs.items()}
        if self.points is None:
            kept = dict.fromkeys(range(len(images)))
        self._frames = {seconds(images[i].stamp): (images[i], at) for i, at in kept.items()}
        self.names = list(self._frames)
        several = "s" if len(self.names) > 1 else ""
        self.about = f"{self.path}: {len(self.names)} image{several} of {self.image}"
        if points:
            off = max(abs(images[i].stamp - points[j].stamp) for i, j in pairs.items())
            self.about += f", each with {self.points} at most {off / NANOSECONDS:.3g} s away"
            if left := len(images) - len(kept):
                self.about += f"; {left} without points within {tolerance:g} s left out"
        elif others := [t for t, kind in kinds.items() if kind in FOR_POINTS and t != self.image]:
            self.about += f", without points; pass --points with one of {_list(others)} to use them"

    def _stamps(self, topic: str) -> list[_Stamped]:
        """Stamps of all messages of a topic, sorted; of two with one stamp the first is kept."""
        is2 = self._reader.is2
        found = {_stamp(raw, is2, logged): logged for _, logged, raw in self._messages(topic)}
        return [_Stamped(stamp, found[stamp]) for stamp in sorted(found)]


class BagWriter:
    """Results as a bag: ROS 1 if its name ends in .bag, else a folder of ROS 2 with MCAP.

    With `replace`, a bag that is there already is replaced when the new one is complete.
    """

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        if path.exists() and not replace:
            raise ValueError(
                f"{path} exists already and is not an unchanged result of this command; choose "
                "another name for the bag"
            )
        types = need("rosbags.typesys", "ros", "writing bags")
        self.path, self.ros1 = path, path.suffix.lower() == ".bag"
        self.part = path.with_name(f".{path.name}.part")
        shutil.rmtree(self.part, ignore_errors=True)
        self.part.mkdir(parents=True)
        if self.ros1:
            module = need("rosbags.rosbag1", "ros", "writing bags")
            self.store = types.get_typestore(types.Stores.ROS1_NOETIC)
            self.writer = module.Writer(self.part / path.name)
        else:
            module = need("rosbags.rosbag2", "ros", "writing bags")
            self.store = types.get_typestore(types.Stores.ROS2_HUMBLE)
            kind = module.StoragePlugin.MCAP
            self.writer = module.Writer(self.part / path.name, version=9, storage_plugin=kind)
        self.writer.open()
        self.topics: dict[str, Any] = {}
        self.count = 0

    def add(
        self,
        recorded: Recorded,
        depth: Float[np.ndarray, "h w"],
        std: Float[np.ndarray, "h w"],
    ) -> None:
        """Write image, depth and std and, if the camera is known, its info and a cloud."""
        # Frames without a time get ten a second.
        time = self.count * NANOSECONDS // 10 if recorded.time is None else recorded.time
        head = self._header(time, recorded.frame_id)
        for name, values in (("image", recorded.image), ("depth", depth), ("std", std)):
            fields = image_fields(values)
            self._write(f"/deepbasis/{name}", "sensor_msgs/msg/Image", time, header=head, **fields)
        if recorded.camera is not None:
            self._write_info(recorded.camera, head, time, depth.shape)
            self._write_cloud(recorded, head, time, depth, std)
        self.count += 1

    def close(self, record: Callable[[Path], None] | None = None) -> None:
        """Finish the bag: only now it gets its name, after `record` was called with the file."""
        self.writer.close()
        new = self.part / self.path.name
        if record is not None:
            record(new)
        if self.path.exists():  # a folder cannot be replaced in one step
            self.path.rename(self.part / "previous bag")
        new.rename(self.path)
        shutil.rmtree(self.part)

    def abandon(self) -> None:
        """Remove what was written."""
        with suppress(Exception):
            self.writer.close()
        shutil.rmtree(self.part, ignore_errors=True)

    def _write_info(self, camera: Tensor, head: Any, time: int, size: tuple[int, ...]) -> None:
        k = camera.double().numpy()
        # Fields have large letters in ROS 1.
        case = str.upper if self.ros1 else str.lower
        matrices = {
            case("d"): np.zeros(5), case("k"): k.ravel(), case("r"): np.eye(3).ravel(),
            case("p"): np.pad(k, ((0, 0), (0, 1))).ravel(),
        }  # fmt: skip
        region = self.store.types["sensor_msgs/msg/RegionOfInterest"](0, 0, 0, 0, False)
        self._write(
            "/deepbasis/camera_info", INFO, time, header=head, height=size[0], width=size[1],
            distortion_model="plumb_bob", binning_x=0, binning_y=0, roi=region, **matrices,
        )  # fmt: skip

    def _write_cloud(
        self, recorded: Recorded, head: Any, time: int, depth: np.ndarray, std: np.ndarray
    ) -> None:
        assert recorded.camera is not None
        xyz, where = to_xyz(depth, recorded.camera)
        whole, fields = cloud_fields(xyz, recorded.image[where], std[where])
        make = self.store.types["sensor_msgs/msg/PointField"]
        whole["fields"] = [make(**field) for field in fields]
        self._write("/deepbasis/points", CLOUDS[0], time, header=head, **whole)

    def _header(self, time: int, frame_id: str) -> Any:
        sec, nanosec = divmod(time, NANOSECONDS)
        stamp = self.store.types["builtin_interfaces/msg/Time"](sec, nanosec)
        sequence = [self.count] if self.ros1 else []
        return self.store.types["std_msgs/msg/Header"](*sequence, stamp, frame_id)

    def _write(self, topic: str, kind: str, time: int, **fields: Any) -> None:
        if topic not in self.topics:
            self.topics[topic] = self.writer.add_connection(topic, kind, typestore=self.store)
        message = self.store.types[kind](**fields)
        serialize = self.store.serialize_ros1 if self.ros1 else self.store.serialize_cdr
        self.writer.write(self.topics[topic], time, serialize(message, kind))


def is_rectified(topic: str) -> bool:
    """Whether the name says so, as those of image_proc do: image_rect, image_rect_color."""
    return any(
        word == "rect" or word.startswith("rectified")
        for part in topic.split("/")
        for word in part.split("_")
    )


def _choose(asked: str | None, kinds: dict[str, str], wanted: tuple[str, ...], option: str) -> str:
    """The topic that is asked for, or else the only one of its kind."""
    there = [topic for topic, kind in kinds.items() if kind in wanted]
    if asked is None and len(there) == 1:
        return there[0]
    if not there:
        short = {kind: kind.rpartition("/")[2] for kind in (*wanted, *kinds.values())}
        every = _list([f"{topic} ({short[kind]})" for topic, kind in kinds.items()]) or "none"
        names = " or ".join(short[kind] for kind in wanted)
        raise ValueError(f"{option} needs a topic of {names}, and its topics are: {every}")
    if asked is None:
        raise ValueError(f"pass {option} with one of the topics {_list(there)}")
    if asked not in there:
        if asked in kinds:
            raise ValueError(f"{option} {asked} is of type {kinds[asked]}; pass {_list(there)}")
        raise ValueError(f"{option} {asked} is not one of the topics {_list(there)}")
    return asked


def _list(topics: list[str]) -> str:
    more = len(topics) - LISTED
    return ", ".join([*topics[:LISTED], *([f"and {more} more"] if more > 0 else [])])


def _stamp(raw: bytes, is2: bool, logged: int) -> int:
    """Nanoseconds of a serialised message's header, or when it was written if they are 0.

    The header comes first: in ROS 1 after a sequence number, in ROS 2 after four bytes that tell
    the byte order.
    """
    order = ">" if is2 and raw[1] % 2 == 0 else "<"
    sec, nanosec = struct.unpack_from(f"{order}II", raw, 4)
    return int(sec) * NANOSECONDS + int(nanosec) or logged
