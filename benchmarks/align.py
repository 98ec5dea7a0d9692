# SPDX-License-Identifier: Apache-2.0
"""Align the depth images of a folder with its colour images, which another camera took.

    python benchmarks/align.py --root realsense --out realsense_lab

The folder holds rgb/ and depth/, and scale.txt if depths are not in millimetres. One zoom about the
centre and one shift are sought for all frames, so that edges of depth lie on edges of colour, and
printed with a score: the larger it is, the better the edges match. The aligned frames are written,
without depths beyond 10 m. Parallax and a delay between the two cameras are not corrected.
"""

import argparse
import itertools
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter, uniform_filter

Array = npt.NDArray[Any]

# Depth edges: the relative change between neighbouring pixels is larger than this.
EDGE = 0.2
# Stronger edges of colour count no more than these, relative to the mean: a part of the image full
# of things would draw the depth edges to it.
STRONGEST = 2.0
# Share of the depth edges that must remain in the image.
KEPT = 1 / 3
# Smaller zooms are not tried.
LEAST_ZOOM = 0.5
# Zoom, and shift in pixels: around the best so far, this far and in these steps.
SEARCH = (((0.7, 0.05), (48, 4)), ((0.05, 0.01), (4, 1)), ((0.01, 0.005), (1, 0.5)))


class Move(NamedTuple):
    """Where a pixel of depth lies in the colour image."""

    zoom: float
    right: float
    down: float

    def of(self, pixels: Array, size: tuple[int, int], *, back: bool = False) -> Array:
        """Rows and columns moved, or moved back."""
        centre = (np.array(size) - 1) / 2
        shift = np.array([self.down, self.right])
        if back:
            return (pixels - centre - shift) / self.zoom + centre
        return (pixels - centre) * self.zoom + centre + shift


def colour_edges(image: Array) -> Array:
    """How much grey levels change at each pixel, relative to the mean of the image."""
    smooth = gaussian_filter(image.astype(float), 1)
    edges = gaussian_filter(np.hypot(*np.gradient(smooth)), 1.5)
    return np.asarray((edges / edges.mean()).clip(max=STRONGEST))


def depth_edges(depth: Array) -> Array:
    """Rows and columns where depth changes, away from missing values."""
    known = uniform_filter((depth > 0).astype(float), 3) > 0.99
    log = np.log(np.where(depth > 0, depth, 1.0))
    return np.argwhere(known & (np.abs(np.gradient(log)).max(0) > EDGE))


def score(move: Move, frames: list[tuple[Array, Array]]) -> float:
    """How much stronger colour edges are at the depth edges than elsewhere in the part of the image
    that the depth image covers; or -1 if few of the depth edges are in the image.
    """
    inside, every, total = 0, 0, 0.0
    for colour, edges in frames:
        corners = move.of(np.array([(0, 0), colour.shape]), colour.shape)
        (top, left), (bottom, right) = np.rint(corners.clip(0, colour.shape)).astype(int)
        at = np.rint(move.of(edges, colour.shape)).astype(int)
        at = at[((at >= 0) & (at < colour.shape)).all(1)]
        inside, every = inside + len(at), every + len(edges)
        if len(at):
            part = colour[top:bottom, left:right]
            total += float(colour[at[:, 0], at[:, 1]].sum() / part.mean()) - len(at)
    return total / inside if inside > KEPT * every else -1.0


def around(best: Move, zooms: tuple[float, float], shifts: tuple[float, float]) -> Iterable[Move]:
    """Moves near the best one."""
    z, x, y = (
        np.arange(middle - far, middle + far + step / 2, step)
        for middle, (far, step) in zip(best, (zooms, shifts, shifts), strict=True)
    )
    return itertools.starmap(Move, itertools.product(z[z > LEAST_ZOOM], x, y))


def at_limit(best: Move) -> bool:
    """Whether the move is as far as the first search, which starts from no move, goes."""
    (zoom, step), (shift, _) = SEARCH[0]
    inside = LEAST_ZOOM + 1.5 * step < best.zoom < 1 + zoom - step / 2
    return not inside or max(abs(best.right), abs(best.down)) >= shift


def write(image: Path, depth: Array, move: Move, out: Path) -> None:
    """An aligned frame; each pixel of colour takes the nearest pixel of depth."""
    rows, columns = np.indices(depth.shape).reshape(2, -1)
    at = np.rint(move.of(np.stack([rows, columns], 1), depth.shape, back=True)).astype(int)
    inside = ((at >= 0) & (at < depth.shape)).all(1)
    moved = np.zeros(depth.shape, np.uint16)
    moved[rows[inside], columns[inside]] = depth[at[inside, 0], at[inside, 1]]
    shutil.copy(image, out / "rgb" / image.name)
    Image.fromarray(moved).save(out / "depth" / f"{image.stem}.png")


def main() -> None:
    """Find the move, print it, write the frames."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=3, help="use every Nth frame to find the move")
    parser.add_argument("--most", type=float, default=10.0, help="metres, the largest depth")
    options = parser.parse_args()
    for folder in (options.root / "rgb", options.root / "depth"):
        if not folder.is_dir():
            parser.error(f"there is no folder {folder}; --root must hold rgb/ and depth/")
    images = sorted((options.root / "rgb").iterdir())
    depths, file = [], options.root / "scale.txt"
    scale = float(file.read_text()) if file.exists() else 1000.0  # values per metre
    for path in images:
        depth = np.array(Image.open(options.root / "depth" / f"{path.stem}.png"))
        depths.append(np.where(depth < scale * options.most, depth, 0))
    frames = [
        (colour_edges(np.array(Image.open(path).convert("L"))), depth_edges(depth))
        for path, depth in list(zip(images, depths, strict=True))[:: options.every]
    ]
    best = Move(1.0, 0.0, 0.0)
    print(f"as they are: score {score(best, frames):.2f}")
    for zooms, shifts in SEARCH:
        best = max(around(best, zooms, shifts), key=lambda move: score(move, frames))
    print(
        f"zoomed by {best.zoom:.3f}, moved by {best.right:.1f} pixels to the right and "
        f"{best.down:.1f} down: score {score(best, frames):.2f}"
    )
    if at_limit(best):
        print(
            "warning: the best move is at the limit of the search, so the true one may be outside",
            file=sys.stderr,
        )
    for name in ("rgb", "depth"):
        (options.out / name).mkdir(parents=True, exist_ok=True)
    for path, depth in zip(images, depths, strict=True):
        write(path, depth, best, options.out)
    (options.out / "scale.txt").write_text(f"{scale:g}\n")


if __name__ == "__main__":
    main()
