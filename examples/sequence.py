# SPDX-License-Identifier: Apache-2.0
"""How far is this place, in every frame of a video, after a few measurements in the first one?"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import deepbasis
from deepbasis.data.worlds import render_walk

video = list(render_walk(seed=0, index=5, size=(192, 256), seconds=2.5, rate=10))
first = video[0]
fx, fy, cx, cy = first.intrinsics
camera = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
v, u = np.random.default_rng(0).permutation(np.argwhere(first.depth > 0))[:3].T
measured = np.stack([u, v, first.depth[v, u]], 1)
points = [measured] + [None] * (len(video) - 1)

model = deepbasis.load("indoor")
stream = list(model.stream(zip([frame.image for frame in video], points, strict=True)))
single = [model.complete(frame.image, some) for frame, some in zip(video, points, strict=True)]

# Where the middle of the first frame is in the others: the poses are known here.
place = first.pose @ [*(np.linalg.inv(camera) @ [cx, cy, 1]) * first.depth[96, 128], 1]
seen = [camera @ np.linalg.solve(frame.pose, place)[:3] for frame in video]
pixels = [tuple(np.round(p[1::-1] / p[2]).astype(int).clip(0, (191, 255))) for p in seen]
truth = np.array([frame.depth[pixel] for frame, pixel in zip(video, pixels, strict=True)])

fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
left.imshow(first.image)
left.plot(u, v, "o", color="tab:orange", label="measured in the first frame")
left.plot(cx, cy, "x", color="tab:red", markersize=10, label="the place in question")
left.set(xticks=[], yticks=[])
left.legend()
for outs, name, colour in ((single, "frame by frame", "gray"), (stream, "stream", "tab:blue")):
    depth = np.array([out.depth[pixel] for out, pixel in zip(outs, pixels, strict=True)])
    low, high = (
        np.array([out.interval(0.9)[side][pixel] for out, pixel in zip(outs, pixels, strict=True)])
        for side in (0, 1)
    )
    print(f"{name}: mean error {np.abs(depth - truth).mean():.2f} m, ", end="")
    print(f"mean change from frame to frame {np.abs(np.diff(depth - truth)).mean():.3f} m")
    right.fill_between(range(len(video)), low, high, color=colour, alpha=0.2)
    right.plot(depth, "o-", color=colour, label=name)
right.plot(truth, "--", color="black", label="truth")
right.set(xlabel="frame", ylabel="depth of the place (m), 90 % interval", ylim=(0, None))
right.legend()
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "sequence.png")
