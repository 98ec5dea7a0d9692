# SPDX-License-Identifier: Apache-2.0
"""Artefacts that RMSE hides: rough surfaces, imprints of the points, seams between blocks.

    python benchmarks/artefacts.py indoor --root nyu --frames 40

On regions that are flat in the ground truth, for each pattern of points:

- roughness: mean angle between the predicted normal and its mean over 7 x 7 pixels, in degrees;
- imprint in depth: curvature of log depth at the points, relative to pixels two or more away;
- imprint in std: log std two or more pixels away, less that at the points' eight neighbours,
  relative to the spread of log std;
- seams: curvature across the borders of blocks of pixels that share neighbours, relative to that
  between other pixels.

Without artefacts the three ratios are about 1, 0 and 1.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import deepbasis
from deepbasis.data.sources import Source, subsample
from deepbasis.data.with_points import WithPoints
from deepbasis.fit.correlated import NEIGHBOURS
from deepbasis.fit.neighbours import choose_side
from deepbasis.latent import is_valid
from deepbasis.patterns import parse

# Largest curvature of inverse depth, relative to it and averaged over 5 x 5 pixels, of a plane.
FLAT = 0.0015


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--points", nargs="+", default=["5%", "500", "200", "lidar16", "lidar64"])
    given = parser.parse_args()
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
