# SPDX-License-Identifier: Apache-2.0
"""Bags of a room that a LiDAR and a camera see, as drivers write them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

# LiDAR: x forward, y left, z up; camera: x right, y down, z forward; 8 cm apart.
LIDAR_TO_CAMERA = np.array([[0, -1, 0, 0.0], [0, 0, -1, -0.08], [1, 0, 0, 0], [0, 0, 0, 1]])
START = 1_700_000_000_123_456_789


class FakeBag:
    """Writes messages to a bag of any kind: `.bag`, a folder with MCAP or, by `db3`, SQLite.

    With `packed`, its chunks are compressed: by lz4 in ROS 1, by zstd in MCAP.
    """

    def __init__(self, path: Path, *, db3: bool = False, packed: bool = False) -> None:
        self.ros1 = path.suffix == ".bag"
        if self.ros1:
            self.store = get_typestore(Stores.ROS1_NOETIC)
            many = "geometry_msgs/TransformStamped[] transforms"
            self.store.register(get_types_from_msg(many, "tf2_msgs/msg/TFMessage"))
            self.writer: Any = Writer1(path)
        else:
            self.store = get_typestore(Stores.ROS2_HUMBLE)
            kind = StoragePlugin.SQLITE3 if db3 else StoragePlugin.MCAP
            self.writer = Writer2(path, version=9, storage_plugin=kind)
        if packed and self.ros1:
            self.writer.set_compression(Writer1.CompressionFormat.LZ4)
        elif packed:
            self.writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        self.writer.open()
        self.connections: dict[str, Any] = {}

    def make(self, kind: str, *values: Any, **fields: Any) -> Any:
        return self.store.types[kind](*values, **fields)

    def header(self, time: int, frame: str) -> Any:
        stamp = self.make("builtin_interfaces/msg/Time", time // 10**9, time % 10**9)
        return self.make("std_msgs/msg/Header", *([0] if self.ros1 else []), stamp, frame)

    def write(self, topic: str, kind: str, time: int, *, frame: str = "", **fields: Any) -> None:
        if topic not in self.connections:
            self.connections[topic] = self.writer.add_connection(topic, kind, typestore=self.store)
        if frame:
            fields["header"] = self.header(time, frame)
        message = self.make(kind, **fields)
        serialize = self.store.serialize_ros1 if self.ros1 else self.store.serialize_cdr
        # Written a little later than measured, as in life.
        self.writer.write(self.connections[topic], time + 5_000_000, serialize(message, kind))

    def image(
        self, topic: str, time: int, values: np.ndarray, encoding: str, frame: str = "camera"
    ) -> None:
        content = np.ascontiguousarray(values)
        self.write(
            topic, "sensor_msgs/msg/Image", time, frame=frame, height=values.shape[0],
            width=values.shape[1], encoding=encoding, is_bigendian=0, step=content.strides[0],
            data=content.view(np.uint8).reshape(-1),
        )  # fmt: skip

    def compressed(self, topic: str, time: int, values: np.ndarray, kind: str = "PNG") -> None:
        buffer = io.BytesIO()
        Image.fromarray(values).save(buffer, kind)
        self.write(
            topic, "sensor_msgs/msg/CompressedImage", time, frame="camera",
            format=kind.lower(), data=np.frombuffer(buffer.getvalue(), np.uint8),
        )  # fmt: skip

    def cloud(self, topic: str, time: int, xyz: np.ndarray, frame: str = "lidar") -> None:
        """With the layout of a usual driver: padding, an intensity, and a NaN for no return."""
        kind = np.dtype(
            {
                "names": ["x", "y", "z", "intensity", "ring"],
                "formats": ["<f4", "<f4", "<f4", "<f4", "<u2"],
                "offsets": [0, 4, 8, 16, 20],
                "itemsize": 32,
            }
        )
        points = np.zeros(len(xyz) + 1, kind)
        points["x"][:-1], points["y"][:-1], points["z"][:-1] = xyz.T
        points["x"][-1] = np.nan
        types = {"<f4": 7, "<u2": 4}
        fields = [
            self.make("sensor_msgs/msg/PointField", name, offset, types[form], 1)
            for name, form, offset in zip(
                kind.names, ["<f4", "<f4", "<f4", "<f4", "<u2"], [0, 4, 8, 16, 20], strict=True
            )
        ]
        self.write(
            topic, "sensor_msgs/msg/PointCloud2", time, frame=frame, height=1, width=len(points),
            fields=fields, is_bigendian=False, point_step=32, row_step=32 * len(points),
            data=points.view(np.uint8).reshape(-1), is_dense=False,
        )  # fmt: skip

    def info(
        self, topic: str, time: int, camera: np.ndarray, size: tuple[int, int],
        distortion: tuple[float, ...] = (0, 0, 0, 0, 0), model: str = "plumb_bob",
    ) -> None:  # fmt: skip
        case = str.upper if self.ros1 else str.lower
        region = self.make("sensor_msgs/msg/RegionOfInterest", 0, 0, 0, 0, False)
        matrices = {
            case("d"): np.array(distortion, float), case("k"): camera.ravel(),
            case("r"): np.eye(3).ravel(), case("p"): np.pad(camera, ((0, 0), (0, 1))).ravel(),
        }  # fmt: skip
        self.write(
            topic, "sensor_msgs/msg/CameraInfo", time, frame="camera", height=size[0],
            width=size[1], distortion_model=model, binning_x=0, binning_y=0, roi=region, **matrices,
        )  # fmt: skip

    def transform(
        self, time: int, pose: np.ndarray, parent: str, child: str, topic: str = "/tf_static"
    ) -> None:
        """A transform that takes points of the child to the parent."""
        from scipy.spatial.transform import Rotation

        g = "geometry_msgs/msg"
        turn = Rotation.from_matrix(pose[:3, :3]).as_quat()
        moved = self.make(
            f"{g}/Transform", self.make(f"{g}/Vector3", *pose[:3, 3]),
            self.make(f"{g}/Quaternion", *turn),
        )  # fmt: skip
        one = self.make(f"{g}/TransformStamped", self.header(time, parent), child, moved)
        self.write(topic, "tf2_msgs/msg/TFMessage", time, transforms=[one])

    def close(self) -> None:
        self.writer.close()


def to_lidar(depth: np.ndarray, camera: np.ndarray) -> np.ndarray:
    """Points of a depth map in the LiDAR's frame."""
    row, column = np.nonzero(depth)
    z = depth[row, column].astype(np.float64)
    pixels = np.stack([column * z, row * z, z])
    seen = np.linalg.solve(camera, pixels)
    return ((seen.T - LIDAR_TO_CAMERA[:3, 3]) @ LIDAR_TO_CAMERA[:3, :3]).astype(np.float32)
