# SPDX-License-Identifier: Apache-2.0
"""Contact sheets of the procedural worlds and of the patterns of sparse points."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deepbasis import patterns
from deepbasis.data.sample import Sample
from deepbasis.data.worlds import Worlds, variants
from deepbasis.plots import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PATTERNS = ("500", "5%", "1%", "lidar16", "lidar64", "tof8x8", "features500", "1", "0")


def draw_image(ax: "Axes", sample: Sample, title: str = "") -> "Axes":
    """The photograph."""
    ax.imshow(sample.image.permute(1, 2, 0).numpy())
    ax.set_title(title, fontsize=8)
    ax.set_axis_off()
    return ax


def draw_depth(ax: "Axes", sample: Sample, title: str = "") -> "Axes":
    """Depth on a logarithmic scale; white where there is none."""
    depth = torch.where(sample.mask, sample.depth, torch.nan)[0].log()
    ax.imshow(depth.numpy(), cmap="turbo")
    known = sample.depth[sample.mask]
    ax.set_title(title or f"{known.min():.1f} to {known.max():.1f} m", fontsize=8)
    ax.set_axis_off()
    return ax


def draw_points(ax: "Axes", sample: Sample, pattern: patterns.Pattern) -> "Axes":
    """The photograph, darkened, and the points that a pattern takes from it."""
    generator = torch.Generator().manual_seed(0)
    found = pattern(sample.depth, sample.image, sample.intrinsics, generator)[0]
    row, column = found.nonzero().mT
    draw_image(ax, sample._replace(image=sample.image // 2), f"{pattern}: {len(row)} points")
    colours = found[row, column].log().numpy()
    ax.scatter(column.numpy(), row.numpy(), c=colours, cmap="turbo", s=3)
    return ax


def sheet(rows: int, columns: int, shape: float) -> tuple["Figure", Sequence["Axes"]]:
    """A page of small pictures, each `shape` times as high as wide."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * columns, (2.6 * shape + 0.2) * rows), layout="constrained")
    return figure, figure.subplots(rows, columns).ravel().tolist()


def fill(frames: Worlds, chosen: Sequence[int], columns: int, shape: float) -> "Figure":
    """A page of frames; below them the depth of those in the last row."""
    figure, axes = sheet(len(chosen) // columns + 1, columns, shape)
    for ax, index in zip(axes, chosen, strict=False):
        draw_image(ax, frames[index])
    for ax, index in zip(axes[len(chosen) :], chosen[-columns:], strict=True):
        draw_depth(ax, frames[index])
    return figure


def write_worlds(out: Path, seed: int = 0) -> None:
    """Render and write `rooms.jpg`, `roads.jpg`, `variants.jpg` and `patterns.jpg`."""
    rooms = Worlds("rooms", 20, seed)
    write(fill(rooms, range(20), 4, 0.75), out / "rooms.jpg")
    streets = Worlds("roads", 45, seed)
    write(fill(streets, range(0, 45, 3), 3, 0.32), out / "roads.jpg")
    figure, axes = sheet(5, 2, 0.32)
    for ax, variant in zip(axes, variants("roads"), strict=True):
        draw_image(ax, Worlds("roads", 1, seed + 1, variant)[0], variant)
    write(figure, out / "variants.jpg")
    figure, axes = sheet(3, 3, 0.75)
    for ax, word in zip(axes, PATTERNS, strict=True):
        draw_points(ax, rooms[1], patterns.parse(word))
    write(figure, out / "patterns.jpg")


def write(figure: "Figure", path: Path) -> None:
    """Save a page and say so."""
    save(figure, path)
    print(f"figure  {path}")
