# SPDX-License-Identifier: Apache-2.0
"""Measuring a room: distances, sizes and clearances, each with its uncertainty."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.packaged import packaged

room = packaged("rooms")[0]
image, truth = room.image.permute(1, 2, 0).numpy(), room.depth[0].numpy()
camera = room.intrinsics.numpy()
v, u = np.random.default_rng(0).permutation(np.argwhere(truth > 0))[:50].T
measured = np.stack([u, v, truth[v, u]], 1)
scene = deepbasis.load("indoor").prepare(image)

here, there = (60, 200), (270, 90)  # column and row
rays = [np.linalg.inv(camera) @ [*end, 1] for end in (here, there)]
ends = [truth[end[1], end[0]] * ray for end, ray in zip((here, there), rays, strict=True)]
true_distance = np.linalg.norm(ends[0] - ends[1])
counts = (0, 1, 3, 5, 10, 20, 50)
outs = [scene.complete(measured[:count]) for count in counts]
found = [out.distance(here, there, camera) for out in outs]
for count, one in zip(counts, found, strict=True):
    interval = f"90 % interval {one.low:.2f} to {one.high:.2f} m"
    print(f"distance, {count:2d} points: {one.value:.2f} m, {interval}")
print(f"distance, true: {true_distance:.2f} m")

region = np.zeros(truth.shape, dtype=bool)
region[100:200, 100:220] = True  # the way ahead
size = outs[-1].size(region, camera)
print(f"width of the region: {size.width.value:.2f} m, std {size.width.std:.2f} m")
for metres in (1.5, 2.0, 2.5):
    probability = outs[-1].probability_closer(metres, region)
    print(f"anything in the region closer than {metres:g} m: probability {probability:.2f}")
print(f"nearest ground truth: {truth[region & (truth > 0)].min():.2f} m")

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
left.imshow(image)
left.plot(*zip(here, there, strict=True), "o-", color="tab:red", linewidth=2)
left.contour(region, levels=[0.5], colors="tab:orange")
left.set(title="the distance and the region", xticks=[], yticks=[])
low, value, high = np.array([[one.low, one.value, one.high] for one in found]).T
right.errorbar(range(len(counts)), value, [value - low, high - value], fmt="o", linewidth=3)
right.axhline(true_distance, color="black", linestyle="--", label="truth")
right.set(xticks=range(len(counts)), xticklabels=counts, xlabel="points", ylabel="distance (m)")
right.set_title("estimate and 90 % interval")
right.legend()
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "measure_room.png")
