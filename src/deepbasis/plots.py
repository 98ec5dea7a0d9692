# SPDX-License-Identifier: Apache-2.0
"""Figures. Functions that draw into axes take and return them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.data.files import atomic_write
from deepbasis.shapes import Float, UInt8

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# This many points are drawn smaller, so that the image remains visible.
MANY = 1500
# Perceptually uniform colour maps: they show no edge where there is none.
DEPTH_COLOURS, ERROR_COLOURS = "viridis", "magma"


def save(figure: "Figure", path: Path) -> None:
    """Write a figure atomically."""
    with atomic_write(path) as file:
        figure.savefig(file, dpi=110, format=path.suffix[1:])


def show_map(
    ax: "Axes", values: Float[Tensor, "h w"], title: str, colours: str, bounds: tuple[float, float]
) -> "Axes":
    """Draw a map with its colour bar; NaN is white."""
    known = values[values.isfinite()]
    low, high = (bool((known < bounds[0]).any()), bool((known > bounds[1]).any()))
    clipped = {(False, False): "neither", (True, False): "min", (False, True): "max"}
    shown = ax.imshow(values.cpu().numpy(), cmap=colours, vmin=bounds[0], vmax=bounds[1])
    ax.figure.colorbar(shown, ax=ax, shrink=0.8, extend=clipped.get((low, high), "both"))
    ax.set(title=title, xticks=[], yticks=[])
    return ax


def show_points(
    ax: "Axes",
    image: UInt8[Tensor, "3 h w"],
    rows: Float[Tensor, "n _"],
    bounds: tuple[float, float],
    wrong: Float[Tensor, "k 2"] | None = None,
) -> "Axes":
    """Draw the image with its points, rows of u, v, metres, coloured by depth.

    Points at the places `wrong`, rows of u, v, are circled.
    """
    ax.imshow(image.permute(1, 2, 0).cpu().numpy())
    u, v, depth = rows[:, :3].cpu().unbind(1)
    ax.scatter(
        u, v, c=depth, cmap=DEPTH_COLOURS, s=6 if len(rows) < MANY else 1,
        vmin=bounds[0], vmax=bounds[1],
    )  # fmt: skip
    title = f"{len(rows)} points"
    if wrong is not None and len(wrong):
        u, v = wrong.cpu().unbind(1)
        size, line = (40, 1.0) if len(rows) < MANY else (8, 0.5)
        ax.scatter(u, v, s=size, facecolors="none", edgecolors="red", linewidths=line)
        title += f", {len(wrong)} flagged as wrong (red)"
    ax.set(title=title, xticks=[], yticks=[])
    return ax


def rows_of(sparse: Float[Tensor, "h w"]) -> Float[Tensor, "n 3"]:
    """The measurements of a sparse depth map as rows of u, v, metres."""
    row, column = latent.is_valid(sparse).nonzero(as_tuple=True)
    return torch.stack([column, row, sparse[row, column]], 1)


def panel(
    image: UInt8[Tensor, "3 h w"],
    sparse: Float[Tensor, "h w"],
    true: Float[Tensor, "h w"],
    mean: Float[Tensor, "h w"],
) -> "Figure":
    """Image with points, ground truth, depth and error side by side."""
    from matplotlib.figure import Figure

    true = torch.where(latent.is_valid(true), true, torch.nan).cpu()
    depth = latent.to_depth(mean).cpu()
    error = (depth - true).abs()
    near, far = true.nanquantile(torch.tensor([0.01, 0.99])).tolist()
    figure = Figure(figsize=(13, 3), layout="constrained")
    axes = figure.subplots(1, 4)
    show_points(axes[0], image, rows_of(sparse), (near, far))
    show_map(axes[1], true, "ground truth (m)", DEPTH_COLOURS, (near, far))
    show_map(axes[2], depth, "depth (m)", DEPTH_COLOURS, (near, far))
    show_map(axes[3], error, "error (m)", ERROR_COLOURS, (0.0, float(error.nanquantile(0.98))))
    return figure


def loss_curve(losses: Sequence[float], val_losses: Sequence[float] = ()) -> "Figure":
    """Mean loss of each epoch, on training and validation frames."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    ax = figure.subplots()
    for values, label in ((losses, "training"), (val_losses, "validation")):
        if len(values):
            ax.plot(range(1, len(values) + 1), values, marker="o", label=label)
    ax.set(xlabel="epoch", ylabel="loss (log depth)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend()
    ax.grid(alpha=0.3)
    return figure
