# SPDX-License-Identifier: Apache-2.0
"""Your LiDAR: from its cloud, mounted beside the camera, to dense depth and a dense cloud."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import deepbasis
from deepbasis import patterns
from deepbasis.data.clouds import write_ply
from deepbasis.data.packaged import packaged
from deepbasis.points import Points, remove_occluded
from deepbasis.self_check import check

picture = Path(sys.argv[1] if len(sys.argv) > 1 else "your_lidar.png")

# A cloud as a LiDAR of 16 beams, 8 cm above the camera, would deliver it: x forward, y left, z up.
room = packaged("rooms")[0]
image, camera, truth = room.image.permute(1, 2, 0).numpy(), room.intrinsics, room.depth[0].numpy()
draw = torch.Generator().manual_seed(0)
scan = patterns.parse("lidar16")(room.depth, room.image, camera, draw)[0]
v, u = scan.nonzero(as_tuple=True)
rays = torch.linalg.inv(camera.double()) @ torch.stack([u, v, torch.ones_like(u)]).double()
to_camera = torch.tensor(
    [[0, -1, 0, 0], [0, 0, -1, -0.08], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.float64
)
cloud = (rays.T * scan[v, u, None] - to_camera[:3, 3]) @ to_camera[:3, :3]

# What you need: the cloud, the camera's intrinsics, and the transform from LiDAR to camera.
size = truth.shape
points = Points.from_cloud(cloud, camera.double(), to_camera, size)
points = remove_occluded(points, size)
scene = deepbasis.load("indoor").prepare(image)
out = scene.complete(points)
found = check(scene, out)

known = truth > 0
print(f"{len(cloud)} points in the cloud, {len(out.points)} used; not used: {out.dropped}")
error = np.abs(out.depth - truth)[known].mean()
print(f"mean error {error:.3f} m, median std {np.median(out.std):.3f} m")
print(f"self-check: {found.verdict}")

rows, columns = np.indices(size)
directions = np.linalg.inv(camera.numpy()) @ np.stack([columns, rows, np.ones(size)]).reshape(3, -1)
dense = (directions * out.depth.reshape(-1)).T
write_ply(picture.with_suffix(".ply"), dense, image.reshape(-1, 3), {"std": out.std.reshape(-1)})
print(f"dense cloud of {len(dense)} points written")

fig, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
axes[0].imshow(image)
axes[0].scatter(*out.points[:, :2].T, c=out.points[:, 2], s=2, cmap="viridis")
axes[0].set_title("points")
fig.colorbar(axes[1].imshow(out.depth, cmap="viridis"), ax=axes[1])
axes[1].set_title("depth (m)")
fig.colorbar(axes[2].imshow(out.std, cmap="magma"), ax=axes[2])
axes[2].set_title("std (m)")
for ax in axes:
    ax.set(xticks=[], yticks=[])
plt.savefig(picture)
