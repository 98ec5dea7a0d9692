# SPDX-License-Identifier: Apache-2.0
"""Figures. What draws into axes takes them and gives them back."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.data.files import whole
from deepbasis.data.sample import Sample
from deepbasis.prediction import Prediction
from deepbasis.shapes import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# So many points are drawn smaller, so that something of the image is left to see.
MANY = 1500


def save(figure: "Figure", path: Path) -> None:
    """Write a figure whole or not at all."""
    with whole(path) as file:
        figure.savefig(file, dpi=110, format=path.suffix[1:])


def show_map(
    ax: "Axes", values: Float[Tensor, "h w"], title: str, colours: str, bounds: tuple[float, float]
) -> "Axes":
    """Draw a map with its colour bar; NaN stays white."""
    shown = ax.imshow(values.cpu().numpy(), cmap=colours, vmin=bounds[0], vmax=bounds[1])
    ax.figure.colorbar(shown, ax=ax, shrink=0.8)
    ax.set(title=title, xticks=[], yticks=[])
    return ax


def show_points(ax: "Axes", sample: Sample, bounds: tuple[float, float]) -> "Axes":
    """Draw the image with its points, coloured by depth."""
    ax.imshow(sample.image.permute(1, 2, 0).cpu().numpy())
    row, column = latent.measured(sample.sparse[0]).nonzero(as_tuple=True)
    ax.scatter(
        column.cpu(), row.cpu(), c=sample.sparse[0, row, column].cpu(), cmap="turbo",
        s=6 if len(row) < MANY else 1, vmin=bounds[0], vmax=bounds[1],
    )  # fmt: skip
    ax.set(title=f"{len(row)} points", xticks=[], yticks=[])
    return ax


def panel(sample: Sample, prediction: Prediction) -> "Figure":
    """Image with points, depth, std and true error side by side; std and error share a scale."""
    from matplotlib.figure import Figure

    mean, model_var, noise_var = (part[0].cpu() for part in prediction)
    true = torch.where(sample.mask, sample.depth, torch.nan)
    depth, std = latent.to_depth(mean), latent.std(mean, model_var + noise_var)
    error = (depth - true).abs()
    near, far = true.nanquantile(torch.tensor([0.01, 0.99])).tolist()
    largest = (0.0, float(error.nanquantile(0.98)))
    figure = Figure(figsize=(16, 3), layout="constrained")
    axes = figure.subplots(1, 5)
    show_points(axes[0], sample, (near, far))
    show_map(axes[1], true[0], "true depth (m)", "turbo", (near, far))
    show_map(axes[2], depth[0], "depth (m)", "turbo", (near, far))
    show_map(axes[3], std[0], "std (m)", "magma", largest)
    show_map(axes[4], error[0], "true error (m)", "magma", largest)
    return figure


def loss_curve(losses: Sequence[float]) -> "Figure":
    """Mean loss of each epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    ax = figure.subplots()
    ax.plot(range(1, len(losses) + 1), losses, marker="o")
    ax.set(xlabel="epoch", ylabel="training loss (log depth)")
    ax.grid(alpha=0.3)
    return figure
