# SPDX-License-Identifier: Apache-2.0
"""How far is it from here to there, and how certain is that?"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.packaged import packaged

room = packaged("rooms")[0]
image, truth = room.image.permute(1, 2, 0).numpy(), room.depth[0].numpy()
camera = room.intrinsics.numpy()
draw = np.random.default_rng(0)
v, u = draw.permutation(np.argwhere(truth > 0))[:50].T
scene = deepbasis.load("indoor").prepare(image)

here, there = (60, 200), (270, 90)  # column and row
rays = [np.linalg.inv(camera) @ [*end, 1] for end in (here, there)]
ends = [truth[end[1], end[0]] * ray for end, ray in zip((here, there), rays, strict=True)]
print(f"true distance: {np.linalg.norm(ends[0] - ends[1]):.2f} m")

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
left.imshow(image)
left.plot(*zip(here, there, strict=True), "o-", color="tab:red", linewidth=2)
left.set(title="the distance in question", xticks=[], yticks=[])
counts = (0, 1, 3, 5, 10, 20, 50)
for place, count in enumerate(counts):
    points = np.stack([u, v, truth[v, u]], 1)[:count]
    found = scene.complete(points).distance(here, there, camera)
    interval = f"90 % interval {found.low:.2f} to {found.high:.2f} m"
    print(f"{count:3d} points: {found.value:.2f} m, {interval}")
    right.plot([place, place], [found.low, found.high], color="tab:blue", linewidth=3)
    right.plot(place, found.value, "o", color="tab:blue")
right.axhline(np.linalg.norm(ends[0] - ends[1]), color="black", linestyle="--", label="truth")
right.set(xticks=range(len(counts)), xticklabels=counts, xlabel="points", ylabel="distance (m)")
right.set_title("estimate and 90 % interval")
right.legend()
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "distance.png")
