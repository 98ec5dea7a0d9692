# SPDX-License-Identifier: Apache-2.0
"""Is anything in this region closer than a given distance?"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.packaged import packaged

room = packaged("rooms")[0]
image, truth = room.image.permute(1, 2, 0).numpy(), room.depth[0].numpy()
v, u = np.random.default_rng(0).permutation(np.argwhere(truth > 0))[:30].T
out = deepbasis.load("indoor").complete(image, np.stack([u, v, truth[v, u]], 1))

region = np.zeros(truth.shape, dtype=bool)
region[100:200, 100:220] = True  # the way ahead
metres = np.linspace(0.5, 4, 15)
joint = [out.probability_closer(m, region) for m in metres]
# What it would be if pixels were independent: far too alarmed.
alone = [1 - np.prod(1 - out.probability_closer(m)[region].astype(float)) for m in metres]
nearest = truth[region & (truth > 0)].min()
for m in (1.0, 1.5, 2.0, 2.5):
    print(f"closer than {m:g} m: probability {out.probability_closer(m, region):.2f}")
print(f"nearest in truth: {nearest:.2f} m")

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
left.imshow(image)
left.contour(region, levels=[0.5], colors="tab:red")
left.set(title="the region", xticks=[], yticks=[])
shown = middle.imshow(out.probability_closer(2.0), cmap="magma", vmin=0, vmax=1)
fig.colorbar(shown, ax=middle, shrink=0.8)
middle.set(title="P(closer than 2 m), each pixel", xticks=[], yticks=[])
right.plot(metres, joint, "o-", label="joint posterior")
right.plot(metres, alone, "s:", color="gray", label="as if pixels were independent")
right.axvline(nearest, color="black", linestyle="--", label="nearest in truth")
right.set(xlabel="distance (m)", ylabel="P(anything in the region is closer)")
right.legend()
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "closer.png")
