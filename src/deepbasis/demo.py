# SPDX-License-Identifier: Apache-2.0
"""The built-in example: a slanted wall with a step in it, from 40 noisy points.

No network yet: the bases are made by hand, smooth powers and an edge, as a network would find them
in an image. Everything after them is the real thing.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbasis import fit, latent, metrics
from deepbasis.layer import BasisFit
from deepbasis.plots import save
from deepbasis.shapes import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (120, 160)
POINTS = 40
NOISE = 0.02
LEVEL = 0.9


@dataclass(frozen=True)
class Scene:
    """True depth, measured depth (0 where there is none), and bases to fit."""

    depth_m: Float[Tensor, "1 1 h w"]
    sparse_m: Float[Tensor, "1 1 h w"]
    bases: Float[Tensor, "1 c h w"]


def make_scene(seed: int = 0) -> Scene:
    """A wall from 2 to 5 m whose right part stands 30 % nearer, measured with 2 % noise."""
    generator = torch.Generator().manual_seed(seed)
    height, width = SIZE
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    edge = x + 0.15 * y - 0.2
    depth = (3.5 + y + 0.5 * x) * torch.where(edge > 0, 0.7, 1.0)
    z = depth.log() + NOISE * torch.randn(SIZE, generator=generator)
    sparse = torch.zeros(height * width)
    chosen = torch.randperm(height * width, generator=generator)[:POINTS]
    sparse[chosen] = latent.to_depth(z).flatten()[chosen]
    step = torch.sigmoid(edge / 0.02)
    powers = [y**i * x**j for i in range(4) for j in range(4 - i) if i + j > 0]
    bases = torch.stack([step, step * x, step * y, *powers])
    return Scene(depth[None, None], sparse.view(1, 1, height, width), bases[None])


def make_layer(channels: int) -> BasisFit:
    """An untrained layer with a prior made by hand: depths around 3 m."""
    layer = BasisFit(channels).eval()
    mean = torch.zeros(channels + 1)
    mean[0] = math.log(3)
    layer.set_prior(fit.Prior(mean, torch.diag(torch.full((channels + 1,), 0.3).square())))
    return layer


def run(out: Path, seed: int = 0) -> None:
    """Fit, print error and coverage, and write the picture."""
    scene = make_scene(seed)
    layer = make_layer(scene.bases.shape[1])
    mean, model_var, noise_var = layer(scene.bases, scene.sparse_m)
    var = model_var + noise_var
    depth = latent.to_depth(mean)
    low, high = latent.interval(mean, var, LEVEL)
    covered = metrics.coverage(low, high, scene.depth_m)
    print(f"{POINTS} points, {layer.channels + 1} bases, {SIZE[0]} x {SIZE[1]} pixels")
    print(f"depth error      MAE {metrics.mae(depth, scene.depth_m):.3f} m, "
          f"RMSE {metrics.rmse(depth, scene.depth_m):.3f} m")  # fmt: skip
    print(
        f"noise            {100 * noise_var.mean().sqrt():.1f} % of depth (true: {100 * NOISE} %)"
    )
    print(f"{LEVEL:.0%} interval     holds the true depth at {covered:.1%} of the pixels")
    figure = draw(scene, mean, var)
    save(figure, out)
    print(f"picture          {out}")


def draw(scene: Scene, mean: Tensor, var: Tensor) -> "Figure":
    """Points, depth, error bar and error as maps, and one row of pixels with its 90 % band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    grid = figure.subplot_mosaic([["points", "depth", "std", "error"], ["row"] * 4])
    depth, std = latent.to_depth(mean)[0, 0], latent.std(mean, var)[0, 0]
    true = scene.depth_m[0, 0]
    bounds = {"vmin": float(true.min()), "vmax": float(true.max())}
    error = (depth - true).abs()
    largest = {"vmin": 0.0, "vmax": float(error.quantile(0.99))}
    _map(grid["points"], true, f"truth and {POINTS} points (m)", "viridis", bounds)
    row, column = latent.measured(scene.sparse_m[0, 0]).nonzero().mT.numpy()
    grid["points"].scatter(column, row, c="white", s=14, edgecolors="black", linewidths=0.6)
    _map(grid["depth"], depth, "depth (m)", "viridis", bounds)
    _map(grid["std"], std, "std (m)", "magma", largest)
    _map(grid["error"], error, "true error (m)", "magma", largest)
    _slice(grid["row"], scene, mean[0, 0], var[0, 0], SIZE[0] // 2)
    return figure


def _map(ax: "Axes", values: Tensor, title: str, colours: str, bounds: dict[str, float]) -> "Axes":
    shown = ax.imshow(values.numpy(), cmap=colours, vmin=bounds["vmin"], vmax=bounds["vmax"])
    ax.figure.colorbar(shown, ax=ax, shrink=0.8)
    ax.set(title=title, xticks=[], yticks=[])
    return ax


def _slice(ax: "Axes", scene: Scene, mean: Tensor, var: Tensor, row: int) -> "Axes":
    low, high = (bound.numpy() for bound in latent.interval(mean[row], var[row], LEVEL))
    column = range(SIZE[1])
    ax.fill_between(column, low, high, color="tab:blue", alpha=0.25, label=f"{LEVEL:.0%} interval")
    ax.plot(column, latent.to_depth(mean[row]).numpy(), color="tab:blue", label="depth (median)")
    ax.plot(column, scene.depth_m[0, 0, row].numpy(), color="black", lw=1, label="truth")
    ax.set(xlabel="column", ylabel="depth (m)", title=f"row {row}", xlim=(0, SIZE[1] - 1))
    ax.legend(loc="upper right")
    return ax
