# SPDX-License-Identifier: Apache-2.0
"""Your camera: tell the model its field of view, then test and correct the error bars."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.packaged import packaged
from deepbasis.self_check import check

frame = packaged("roads")[0]  # stands in for a frame of your camera
image, truth = frame.image.permute(1, 2, 0).numpy(), frame.depth[0].numpy()
camera = frame.intrinsics.numpy()  # focal lengths and centre, in pixels
known = truth > 0
v, u = np.random.default_rng(0).permutation(np.argwhere(known))[:300].T
measured = np.stack([u, v, truth[v, u]], 1)


def coverage(out):
    """Share of pixels whose 90 % interval contains the ground truth, which you would not know."""
    low, high = out.interval(0.9)
    return ((low < truth) & (truth < high))[known].mean()


# The wrong model notices: this image does not resemble those it was trained on.
for warning in deepbasis.load("indoor").prepare(image, camera).complete().warnings:
    print(f"indoor, without points: {warning}")

scene = deepbasis.load("outdoor").prepare(image, camera)
out = scene.complete(measured)
found = check(scene, out)  # predicts held-out points of your own; needs no ground truth
corrected = out.with_conformal(found.table())  # widens intervals until they hold there
print(f"outdoor, 300 points: {found.verdict}")
print(f"coverage of the 90 % interval at held-out points {found.coverage[2].share:.0%}")
print(f"coverage at all pixels {coverage(out):.0%}, corrected {coverage(corrected):.0%}")

fig, axes = plt.subplots(1, 3, figsize=(13, 1.9), layout="constrained")
axes[0].imshow(image)
axes[0].plot(u, v, ".", color="tab:red", markersize=3)
axes[0].set_title("300 points")
fig.colorbar(axes[1].imshow(out.depth, cmap="viridis", vmax=60), ax=axes[1])
axes[1].set_title("depth (m), outdoor")
fig.colorbar(axes[2].imshow(corrected.std, cmap="magma", vmax=10), ax=axes[2])
axes[2].set_title("std (m), corrected")
for ax in axes:
    ax.set(xticks=[], yticks=[])
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "your_camera.png")
