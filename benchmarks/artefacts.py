# SPDX-License-Identifier: Apache-2.0
"""Artefacts that RMSE hides: rough surfaces, imprints of the points, seams between blocks.

    python benchmarks/artefacts.py indoor --root nyu --frames 40
    python benchmarks/artefacts.py --figure docs/before-after.jpg

On regions that are flat in the ground truth, for each pattern of points:

- roughness: mean angle between the predicted normal and its mean over 7 x 7 pixels, in degrees;
- imprint in depth: curvature of log depth at the points, relative to pixels two or more away;
- imprint in std: log std two or more pixels away, less that at the points' eight neighbours,
  relative to the spread of log std;
- seams: curvature across the borders of blocks of pixels that share neighbours, relative to that
  between other pixels.

Without artefacts the three ratios are about 1, 0 and 1.

`--figure` draws a rendered room, completed by `indoor` of version 0.1, with the code of that
version in a temporary git worktree, and by that of today.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import deepbasis
from deepbasis.data.packaged import packaged
from deepbasis.data.sources import Source, subsample
from deepbasis.data.with_points import WithPoints
from deepbasis.fit.correlated import NEIGHBOURS
from deepbasis.fit.neighbours import choose_side
from deepbasis.latent import is_valid
from deepbasis.patterns import Camera, Image, Mask, Pattern, parse
from deepbasis.plots import DEPTH_COLOURS, ERROR_COLOURS, rows_of, save, show_map, show_points

# Largest curvature of inverse depth, relative to it and averaged over 5 x 5 pixels, of a plane.
FLAT = 0.0015
HERE = Path(__file__).resolve().parent.parent
# Version 0.1, and a program that any version runs: complete an image from several sets of points.
OLD = "3334108"
COMPLETE = """
import sys, numpy
from deepbasis.model import load
given, model = numpy.load(sys.argv[1]), load("indoor")
found = [model.complete(given["image"], given[name]) for name in given.files if name != "image"]
numpy.savez(sys.argv[2], *[[out.depth, out.std] for out in found])
"""


@dataclass(frozen=True)
class Crowded(Pattern):
    """Groups of points close to each other, with gaps between the groups."""

    name = "crowded"
    groups: int = 10
    points: int = 20
    width: float = 8.0
    """Standard deviation of the places in a group, in pixels."""

    def _choose(
        self, valid: Mask, image: Image, camera: Camera, generator: torch.Generator
    ) -> Mask:
        size = torch.tensor(valid.shape[1:])
        centres = size * torch.rand(self.groups, 1, 2, generator=generator)
        at = centres + self.width * torch.randn(self.groups, self.points, 2, generator=generator)
        at = at.round().long().clamp(torch.tensor(0), size - 1).view(-1, 2)
        chosen = torch.zeros_like(valid)
        chosen[0, at[:, 0], at[:, 1]] = True
        return chosen


def box(x: Tensor, size: int) -> Tensor:
    """Mean over a square window; images are [channels, height, width]."""
    return F.avg_pool2d(x[None], size, 1, size // 2, count_include_pad=False)[0]


def curvature(x: Tensor) -> Tensor:
    """Mean absolute second difference along rows and columns of [1, height, width]."""
    padded = F.pad(x[None], (1, 1, 1, 1), mode="replicate")[0]
    down = padded[:, 2:, 1:-1] - 2 * x + padded[:, :-2, 1:-1]
    across = padded[:, 1:-1, 2:] - 2 * x + padded[:, 1:-1, :-2]
    return (down.abs() + across.abs()) / 2


def normals(depth: Tensor, camera: Tensor) -> Tensor:
    """Unit normals [3, height, width] of a depth map."""
    row, column = torch.meshgrid(*map(torch.arange, depth.shape[1:]), indexing="ij")
    pixels = torch.stack([column, row, torch.ones_like(row)]).double()
    xyz = torch.einsum("ij,jhw->ihw", torch.linalg.inv(camera.double()), pixels) * depth.double()
    down, across = torch.gradient(xyz, dim=(1, 2))
    return F.normalize(torch.cross(across, down, dim=0), dim=0)


def is_flat(depth: Tensor) -> Tensor:
    """Pixels of planes, at least five pixels from any edge."""
    inverse = box(1 / depth, 5)
    bent = curvature(inverse) / inverse > FLAT
    return ~(F.max_pool2d(bent[None].float(), 9, 1, 4)[0] > 0)


def measure(model: deepbasis.Completer, sample: deepbasis.data.sample.Sample) -> list[float]:
    """The four measures of one frame."""
    out = model.complete(sample.image, sample.sparse[0].numpy())
    depth, std = (torch.as_tensor(x)[None].double() for x in (out.depth, out.std))
    flat = is_flat(sample.depth.double()) & is_valid(sample.depth)
    normal = normals(depth, sample.intrinsics)
    mean = F.normalize(box(normal, 7), dim=0)
    angle = (normal * mean).sum(0, keepdim=True).clamp(-1, 1).acos().rad2deg()
    point = is_valid(sample.sparse)
    near = F.max_pool2d(point[None].float(), 3, 1, 1)[0] > 0
    bent, log_std = curvature(depth.log()), std.log()
    side = choose_side(point[0].nonzero().double(), (depth.shape[1], depth.shape[2]), NEIGHBOURS)
    seam = torch.zeros_like(point)
    for last_or_first in (side - 1, 0):
        seam[:, last_or_first::side] = True
        seam[:, :, last_or_first::side] = True
    if side <= 2:  # every pixel is at a border
        seam[:] = False
    at, away, beside = flat & point, flat & ~near, flat & near & ~point
    if not (at.any() and away.any() and beside.any()):
        return [torch.nan] * 4
    spread = log_std[flat].std()
    return [
        float(angle[flat].mean()),
        float(bent[at].mean() / bent[away].mean()),
        float((log_std[away].mean() - log_std[beside].mean()) / spread),
        float(bent[away & seam].mean() / bent[away & ~seam].mean()),
    ]


def run_version(root: Path, given: Path) -> list[Tensor]:
    """Depth and std of each set of points, by the code and the model of a folder."""
    path = os.pathsep.join(str(root / folder) for folder in ("src", "models/src"))
    out = given.with_name("out.npz")
    command = [sys.executable, "-c", COMPLETE, str(given), str(out)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=True)
    return [torch.from_numpy(maps) for maps in np.load(out).values()]


def draw(path: Path) -> None:
    """Points of three patterns, and depth and std of version 0.1 and of today."""
    from matplotlib.figure import Figure

    patterns = (Crowded(), parse("lidar16"), parse("lidar64"))
    samples = [WithPoints(packaged("rooms"), pattern)[0] for pattern in patterns]
    image, true = samples[0].image, samples[0].depth[samples[0].mask]
    near, far = true.quantile(torch.tensor([0.01, 0.99])).tolist()
    with tempfile.TemporaryDirectory() as folder:
        given, tree = Path(folder) / "in.npz", Path(folder) / "tree"
        rows = [rows_of(sample.sparse[0]).numpy() for sample in samples]
        np.savez(given, *rows, image=image.permute(1, 2, 0).numpy())
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), OLD], check=True)
        try:
            versions = {"0.1": run_version(tree, given), "today": run_version(HERE, given)}
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    figure = Figure(figsize=(11.5, 13.5), layout="constrained")
    for index, axes in enumerate(figure.subplots(5, len(patterns)).T):
        show_points(axes[0], image, torch.from_numpy(rows[index]), (near, far))
        axes[0].set_title(f"{patterns[index]}: {len(rows[index])} points")
        top = max(float(maps[index][1].quantile(0.98)) for maps in versions.values())
        for line, (name, maps) in enumerate(versions.items()):
            depth, std = maps[index]
            title = f"{name}: {{}} (m)".format
            show_map(axes[1 + line], depth, title("depth"), DEPTH_COLOURS, (near, far))
            show_map(axes[3 + line], std, title("std"), ERROR_COLOURS, (0, top))
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="indoor")
    parser.add_argument("--root", type=Path, default=Path("nyu"))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--points", nargs="+", default=["5%", "500", "200", "lidar16", "lidar64"])
    given = parser.parse_args()
    if given.figure:
        draw(given.figure)
        return
    model = deepbasis.load(given.model)
    frames = subsample(Source("nyu", given.root).open("test"), given.frames)
    print("points     roughness (deg)  imprint in depth  imprint in std  seams")
    for points in given.points:
        drawn = WithPoints(frames, parse(points))
        rows = torch.tensor([measure(model, drawn[i]) for i in range(len(drawn))])
        angle, depth, std, seam = rows.nanmean(0).tolist()
        print(f"{points:<10} {angle:15.2f} {depth:17.2f} {std:15.2f} {seam:6.2f}", flush=True)


if __name__ == "__main__":
    main()
