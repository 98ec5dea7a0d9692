# SPDX-License-Identifier: Apache-2.0
"""Maps of depth, std and error of every method, side by side."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.calibrate.measure import pattern_of
from deepbasis.data.sample import Sample
from deepbasis.data.sources import subsample
from deepbasis.data.with_points import WithPoints
from deepbasis.evaluation import Estimate
from deepbasis.plots import rows_of, show_points
from deepbasis.shapes import Float
from deepbasis_paper.targets.bounds import choose, predict
from deepbasis_paper.targets.cells import source_of
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import TITLES, drawn, grid
from deepbasis_paper.targets.pages import write_figure, write_page
from deepbasis_paper.targets.plan import REGIMES, Training, trained_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Halves of the paper and the points that they are shown with: those of training, and few.
SHOWN = (("mid", REGIMES["mid"]), ("low", REGIMES["low"]), ("low", "50"))
# Frames that are shown without points, evenly spread.
ZERO_FRAMES = 3
ZERO_TEXT = (
    "Depth without any point. `log` was trained for monocular depth, by its likelihood; `bdbf` "
    "with 500 points, of which only its prior is left here. Maps in a row share a colour scale."
)
RENDERED = ("rooms", "roads")
# Inches of one map.
WIDTH = 1.7


def write(plan: Plan, command: str) -> None:
    """Predict one test frame by every method of each half, and draw."""
    lines: list[str] = []
    gone: list[Training] = []
    for regime, shown in SHOWN:
        points = trained_points(plan, regime) if shown == REGIMES[regime] else shown
        sample = choose(plan, points)
        # The depth of `predictive` is that of bdbf.
        rows = [row for row in drawn(regime) if row.reading != "predictive"]
        found, absent = predict(plan, rows, sample)
        gone += absent
        if not found:
            continue
        lines += [f"Frame {sample.name}, {TITLES[regime]}, shown with {points}:", ""]
        lines += [draw(plan, f"qualitative-{points.removesuffix('%')}", sample, found), ""]
    lines.append("Maps in a row share a colour scale.")
    write_page(plan, "qualitative", command, lines, {}, gone)


def write_zero_points(plan: Plan, command: str) -> None:
    """Predict some test frames without points, by the two methods of the image alone, and draw."""
    rows = [row for row in drawn("low") if row.rgb and not row.reading]
    frames = subsample(source_of(plan).open("test"), ZERO_FRAMES)
    lines: list[str] = [ZERO_TEXT, ""]
    absent: list[Training] = []
    for index in range(len(frames)):
        sample = WithPoints(frames, pattern_of("0"))[index]
        found, absent = predict(plan, rows, sample)
        if found:
            shown = draw(plan, f"zero-points-{index + 1}", sample, found)
            lines += [f"Frame {sample.name}:", "", shown, ""]
    write_page(plan, "zero-points", command, lines, {}, absent)


def draw(plan: Plan, name: str, sample: Sample, found: dict[str, Estimate]) -> str:
    """Write a figure, of real data without the photograph unless asked for; returns its line."""
    with_image = plan.data in RENDERED
    shown = write_figure(plan, name, panels(sample, found, with_image=with_image))
    if plan.with_images and not with_image:
        write_figure(plan, f"{name}-full", panels(sample, found, with_image=True))
    return shown


def panels(sample: Sample, found: dict[str, Estimate], *, with_image: bool) -> "Figure":
    """A column for each method; above them, if asked for, image, points and ground truth."""
    true = torch.where(sample.mask, sample.depth, torch.nan)[0]
    depths = [latent.to_depth(answer.mean) for answer in found.values()]
    stds = [latent.std(answer.mean, answer.var, answer.distribution) for answer in found.values()]
    errors = [(depth - true).abs() for depth in depths]
    near, far = torch.stack(depths).quantile(torch.tensor([0.01, 0.99])).tolist()
    widest, largest = (float(torch.stack(maps).nanquantile(0.95)) for maps in (stds, errors))
    shape = sample.depth.shape[1] / sample.depth.shape[2]
    columns = max(3, len(found)) if with_image else len(found)
    figure, axes = grid(3 + with_image, columns, (WIDTH, WIDTH * shape + 0.25))
    if with_image:
        draw_input(axes.pop(0), sample, true, (near, far))
    draw_line(axes[0], depths, "depth (m)", "turbo", (near, far))
    draw_line(axes[1], stds, "std (m)", "magma", (0, widest))
    draw_line(axes[2], errors, "error (m)", "magma", (0, largest))
    for ax, name in zip(axes[0], found, strict=False):
        ax.set_title(name, fontsize=9)
    return figure


def draw_line(
    axes: list["Axes"],
    maps: list[Float[Tensor, "h w"]],
    title: str,
    colours: str,
    bounds: tuple[float, float],
) -> None:
    """Maps with one scale, which is shown at the end of the line."""
    for ax, values in zip(axes, maps, strict=False):
        shown = ax.imshow(values.numpy(), cmap=colours, vmin=bounds[0], vmax=bounds[1])
    for ax in axes:
        ax.set(xticks=[], yticks=[])
    for ax in axes[len(maps) :]:
        ax.set_axis_off()
    axes[0].set_ylabel(title, fontsize=9)
    bar = axes[0].figure.colorbar(shown, ax=axes, shrink=0.9, pad=0.01)
    bar.ax.tick_params(labelsize=8)


def draw_input(
    axes: list["Axes"], sample: Sample, true: Float[Tensor, "h w"], bounds: tuple[float, float]
) -> None:
    """The image, the points on it, and the ground truth."""
    axes[0].imshow(sample.image.permute(1, 2, 0).numpy())
    show_points(axes[1], sample.image, rows_of(sample.sparse[0]), bounds)
    axes[2].imshow(true.numpy(), cmap="turbo", vmin=bounds[0], vmax=bounds[1])
    axes[0].set_title("image", fontsize=9)
    axes[1].title.set_fontsize(9)
    axes[2].set_title("ground truth", fontsize=9)
    for ax in axes[:3]:
        ax.set(xticks=[], yticks=[])
    for ax in axes[3:]:
        ax.set_axis_off()
