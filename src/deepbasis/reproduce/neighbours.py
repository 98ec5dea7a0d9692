# SPDX-License-Identifier: Apache-2.0
"""One row of pixels, fitted with independent and with local errors."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.data.points import WithPoints
from deepbasis.data.sample import Sample
from deepbasis.data.samples import packaged
from deepbasis.data.sources import Halved
from deepbasis.layer import Errors
from deepbasis.model import Completer
from deepbasis.reproduce.cells import find_model
from deepbasis.reproduce.config import Plan
from deepbasis.reproduce.figures import grid
from deepbasis.reproduce.pages import write_figure, write_page
from deepbasis.reproduce.plan import Training
from deepbasis.sparse import parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS, LEVEL = "3%", 0.9
COLOURS: dict[Errors, str] = {"independent": "tab:orange", "local": "tab:blue"}
TEXT = (
    "One row of a rendered room, 3 % of whose pixels are measured: the truth (black), the points "
    "in this row (red), and depth with its 90 % interval. With independent errors (left) the fit "
    "passes by its own measurements; with local ones (right) it honours them, the interval narrows "
    "around them, and widens where there are none."
)


def write(plan: Plan, command: str) -> None:
    """Draw the row with the most points of a packaged room, by the rgb network of `low`."""
    training = Training(plan, "low", "bdbf", "rgb")
    if (path := find_model(training)) is None:
        return write_page(plan, "neighbours", command, ["No model is there yet."], {}, [training])
    sample = WithPoints(Halved(packaged(), 1), parse(POINTS), seed=plan.seed)[0]
    row = int(latent.measured(sample.sparse[0]).sum(1).argmax())
    figure, axes = grid(1, 2, (5.5, 3.6))
    for ax, errors in zip(axes[0], COLOURS, strict=True):
        draw_row(ax, Completer.load(path), sample, row, errors)
    axes[0][1].sharey(axes[0][0])
    lines = [TEXT, "", write_figure(plan, "neighbours", figure)]
    return write_page(plan, "neighbours", command, lines, {})


@torch.no_grad()
def draw_row(ax: "Axes", model: Completer, sample: Sample, row: int, errors: Errors) -> "Axes":
    """Truth, points, prediction and interval of one row of pixels."""
    prediction = model.assume(errors, "predictive")(sample.image[None], sample.sparse[None])
    shape = model.shape(prediction, sample.sparse[None])
    low, high = latent.interval(prediction.mean, prediction.var, LEVEL, shape)

    def line(map_m: Tensor) -> npt.NDArray[np.float32]:
        return np.asarray(map_m[0, 0, row])

    true, sparse = sample.depth[0, row], sample.sparse[0, row]
    column = np.arange(len(true))
    colour, held = COLOURS[errors], latent.measured(sparse)
    ax.fill_between(column, line(low), line(high), color=colour, alpha=0.25, lw=0, label="90 %")
    ax.plot(column, line(latent.to_depth(prediction.mean)), color=colour, lw=1.5, label="depth")
    ax.plot(column, torch.where(latent.measured(true), true, torch.nan), "k", lw=1, label="truth")
    ax.plot(column[held], sparse[held], "o", color="tab:red", ms=4, label="measured")
    ax.set(title=f"{errors} errors", xlabel="column (pixels)", ylabel="depth (m)")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    return ax
