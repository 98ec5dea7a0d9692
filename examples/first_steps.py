# SPDX-License-Identifier: Apache-2.0
"""First steps: an image and a few points in, depth with error bars out."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.packaged import packaged

room = packaged("rooms")[0]  # stands in for your photo; its ground truth stands in for your sensor
image, truth = room.image.permute(1, 2, 0).numpy(), room.depth[0].numpy()
known = truth > 0
v, u = np.random.default_rng(0).permutation(np.argwhere(known))[:200].T
measured = np.stack([u, v, truth[v, u]], 1)  # column, row, metres

scene = deepbasis.load("indoor").prepare(image)  # runs the network, once
counts = (0, 1, 20, 200)
fig, axes = plt.subplots(len(counts), 3, figsize=(9, 9), layout="constrained")
for row, count in zip(axes, counts, strict=True):
    out = scene.complete(measured[:count])  # any number of points, in milliseconds
    low, high = out.interval(0.9)
    error = np.abs(out.depth - truth)[known].mean()
    inside = ((low < truth) & (truth < high))[known].mean()
    width = (high - low)[known].mean()
    print(
        f"{count:3d} points: mean error {error:.2f} m; 90 % interval {width:.2f} m wide, "
        f"contains the ground truth at {inside:.0%} of the pixels"
    )
    row[0].imshow(image)
    row[0].plot(*measured[:count, :2].T, "o", color="tab:red", markersize=3)
    fig.colorbar(row[1].imshow(out.depth, cmap="viridis"), ax=row[1], shrink=0.8)
    fig.colorbar(row[2].imshow(out.std, cmap="magma"), ax=row[2], shrink=0.8)
    for ax, title in zip(row, (f"{count} points", "depth (m)", "std (m)"), strict=True):
        ax.set(title=title, xticks=[], yticks=[])
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "first_steps.png")
