# SPDX-License-Identifier: Apache-2.0
"""One row of pixels, fitted with independent and with correlated errors."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from deepbasis import latent
from deepbasis.data.packaged import packaged
from deepbasis.data.sample import Sample
from deepbasis.data.sources import Downscaled
from deepbasis.data.with_points import WithPoints
from deepbasis.layer import Errors
from deepbasis.model import Completer
from deepbasis.patterns import parse
from deepbasis_paper.model import Ensemble
from deepbasis_paper.targets.cells import find_model
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import grid
from deepbasis_paper.targets.pages import write_figure, write_page
from deepbasis_paper.targets.plan import Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS, LEVEL = "3%", 0.9
COLOURS: dict[Errors, str] = {"independent": "tab:orange", "correlated": "tab:blue"}
TEXT = (
    "One row of a rendered room, with points at 3 % of the pixels: ground truth (black), the "
    "points in this row (red), and depth with its 90 % interval. With independent errors (left) "
    "the fit does not pass through its points; with correlated errors (right) it does, and the "
    "interval is narrow near points and wide between them."
)


def write(plan: Plan, command: str) -> None:
    """Draw the row with the most points of a packaged room, by the rgb network of `low`."""
    training = Training(plan, "low", "bdbf", "rgb", recipe="corrected")
    if (path := find_model(training)) is None:
        lines = ["No model has been trained yet."]
        return write_page(plan, "neighbours", command, lines, {}, [training])
    sample = WithPoints(Downscaled(packaged(), 2), parse(POINTS), seed=plan.seed)[0]
    row = int(latent.is_valid(sample.sparse[0]).sum(1).argmax())
    figure, axes = grid(1, 2, (5.5, 3.6))
    for ax, errors in zip(axes[0], COLOURS, strict=True):
        draw_row(ax, Ensemble.load(path), sample, row, errors)
    axes[0][1].sharey(axes[0][0])
    lines = [TEXT, "", write_figure(plan, "neighbours", figure)]
    return write_page(plan, "neighbours", command, lines, {})


def draw_row(
    ax: "Axes", model: Ensemble | Completer, sample: Sample, row: int, errors: Errors
) -> "Axes":
    """Ground truth, points, prediction and interval of one row of pixels."""
    image, points = sample.image.permute(1, 2, 0).numpy(), sample.sparse[0].numpy()
    out = model.complete(image, points, errors=errors)
    low, high = out.interval(LEVEL)
    true, sparse = sample.depth[0, row], sample.sparse[0, row]
    column = np.arange(len(true))
    colour, known = COLOURS[errors], latent.is_valid(sparse)
    ax.fill_between(column, low[row], high[row], color=colour, alpha=0.25, lw=0, label="90 %")
    ax.plot(column, out.depth[row], color=colour, lw=1.5, label="depth")
    shown = torch.where(latent.is_valid(true), true, torch.nan)
    ax.plot(column, shown, "k", lw=1, label="ground truth")
    ax.plot(column[known], sparse[known], "o", color="tab:red", ms=4, label="points")
    ax.set(title=f"{errors} errors", xlabel="column (pixels)", ylabel="depth (m)")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    return ax
