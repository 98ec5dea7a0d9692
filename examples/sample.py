# SPDX-License-Identifier: Apache-2.0
"""What could the whole depth map look like?"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.packaged import packaged

room = packaged("rooms")[0]
image, truth = room.image.permute(1, 2, 0).numpy(), room.depth[0].numpy()
v, u = np.random.default_rng(0).permutation(np.argwhere(truth > 0))[:20].T
out = deepbasis.load("indoor").complete(image, np.stack([u, v, truth[v, u]], 1))
maps = out.sample(3, seed=0)
print(f"std of the mean depth of a map: {np.std(out.sample(64).mean((1, 2))):.3f} m")
print(f"median std of a pixel: {np.median(out.std):.3f} m")

near, far = np.quantile(truth[truth > 0], [0.01, 0.99])
fig, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained")
known = np.where(truth > 0, truth, np.nan)
panels = {"20 points": image, "ground truth (m)": known, "median (m)": out.depth}
panels |= {f"sample {i + 1} (m)": one for i, one in enumerate(maps)}
for ax, (title, values) in zip(axes.flat, panels.items(), strict=True):
    shown = ax.imshow(values, cmap="viridis", vmin=near, vmax=far)
    ax.set(title=title, xticks=[], yticks=[])
axes[0, 0].plot(u, v, "o", color="tab:red", markersize=4)
fig.colorbar(shown, ax=axes, shrink=0.6)
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "sample.png")
