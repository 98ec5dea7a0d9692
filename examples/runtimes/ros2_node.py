# SPDX-License-Identifier: Apache-2.0
"""A ROS 2 node: images and points in, depth with its error bar out.

    ros2 run ... or: python ros2_node.py --ros-args -r image:=/camera/image_raw \
        -r points:=/velodyne_points -r info:=/camera/camera_info -p model:=outdoor

Points are paired with images by their stamps. `lidar_to_camera` is a parameter of 12 or 16 numbers,
row by row; without it, points are in the camera's frame (TF is not read). Only `main` needs ROS.
"""

import numpy as np
import torch

import deepbasis
from deepbasis.data import bags, messages
from deepbasis.points import Points, remove_occluded


def complete(model, image, points, info, pose=None, rectified=False):
    """Completion of an Image with a PointCloud2, or with a depth Image that is aligned with it."""
    lens = messages.to_lens(info, rectified=rectified)
    pixels = messages.to_image(image)
    size = pixels.shape[:2]
    if hasattr(points, "encoding"):
        measured = Points.from_map(lens.undistort_depth(messages.to_depth(points)))
    else:
        cloud = torch.from_numpy(messages.to_cloud(points))
        measured = Points.from_cloud(cloud, lens.matrix, pose, size)
        if pose is not None:
            measured = remove_occluded(measured, size)
    return model.complete(lens.undistort(pixels), measured)


def fill(message, header, values):
    """Write a map to an Image message."""
    message.header = header
    for name, value in messages.image_fields(values.astype(np.float32)).items():
        setattr(message, name, value.tobytes() if name == "data" else value)
    return message


def main():
    """Run the node."""
    import message_filters
    import rclpy
    from rclpy.node import Node
    from sensor_msgs.msg import CameraInfo, Image, PointCloud2

    rclpy.init()
    node = Node("deepbasis")
    node.declare_parameter("model", "indoor")
    node.declare_parameter("lidar_to_camera", [0.0])
    numbers = [*node.get_parameter("lidar_to_camera").value]
    if numbers != [0.0] and len(numbers) not in (12, 16):
        raise SystemExit(f"lidar_to_camera has {len(numbers)} numbers; pass 12 or 16 (3x4 or 4x4)")
    pose = torch.tensor([*numbers[:12], 0, 0, 0, 1]).double().view(4, 4) if numbers[1:] else None
    model = deepbasis.load(node.get_parameter("model").value)
    rectified = bags.is_rectified(node.resolve_topic_name("image"))  # as remapped
    outputs = {name: node.create_publisher(Image, name, 1) for name in ("depth", "std")}

    def on_frame(image, points, info):
        try:
            out = complete(model, image, points, info, pose, rectified)
        except ValueError as error:
            node.get_logger().warning(str(error))
            return
        for name, publisher in outputs.items():
            publisher.publish(fill(Image(), image.header, getattr(out, name)))

    kinds = (("image", Image), ("points", PointCloud2), ("info", CameraInfo))
    inputs = [message_filters.Subscriber(node, kind, name) for name, kind in kinds]
    message_filters.ApproximateTimeSynchronizer(inputs, 5, 0.02).registerCallback(on_frame)
    rclpy.spin(node)


if __name__ == "__main__":
    main()
