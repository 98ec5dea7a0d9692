# SPDX-License-Identifier: Apache-2.0
"""Where should I measure next?"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.packaged import packaged

COUNTS = (0, 2, 4, 8, 16)

room = packaged("rooms")[0]
image, truth = room.image.permute(1, 2, 0).numpy(), room.depth[0].numpy()
known = truth > 0
scene = deepbasis.load("indoor").prepare(image)
chosen = scene.complete().next_points(max(COUNTS))


def error(u, v):
    """Mean absolute error after measuring some pixels."""
    points = np.stack([u, v, truth[v, u]], 1)
    return abs(scene.complete(points).depth - truth)[known].mean()


draw = np.random.default_rng(0)
orders = [draw.permutation(np.argwhere(known))[: max(COUNTS), ::-1] for _ in range(3)]
best = [error(*chosen[:n].T) for n in COUNTS]
others = [np.mean([error(*order[:n].T) for order in orders]) for n in COUNTS]
for n, one, other in zip(COUNTS, best, others, strict=True):
    print(f"{n:2d} points: mean error {one:.3f} m chosen, {other:.3f} m random")

fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
std = left.imshow(scene.complete().std, cmap="magma")
fig.colorbar(std, ax=left, shrink=0.8)
left.plot(*chosen.T, "o", color="white", markersize=11, markeredgecolor="black")
for i, (u, v) in enumerate(chosen):
    left.text(u, v, str(i + 1), fontsize=7, ha="center", va="center")
left.set(title="std without points (m), and where to measure", xticks=[], yticks=[])
right.plot(COUNTS, best, "o-", label="chosen")
right.plot(COUNTS, others, "s--", color="gray", label="random, mean of 3 draws")
right.set(xlabel="points", ylabel="mean absolute error (m)", ylim=(0, None))
right.legend()
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "next_points.png")
