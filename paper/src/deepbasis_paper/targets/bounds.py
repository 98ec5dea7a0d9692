# SPDX-License-Identifier: Apache-2.0
"""One row of pixels with its error bounds, and how errors spread in units of them."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbasis.calibrate.measure import pattern_of
from deepbasis.data.sample import Sample
from deepbasis.data.with_points import WithPoints
from deepbasis.evaluation import Estimate
from deepbasis.latent import is_valid, to_latent
from deepbasis.shapes import Float
from deepbasis_paper.targets.cells import Row, find_model, read, source_of
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import COLOURS, drawn, grid
from deepbasis_paper.targets.pages import write_figure, write_page
from deepbasis_paper.targets.plan import Training, trained_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Probability of three times b, the paper's bound, under a Laplace distribution.
THREE_B = -math.expm1(-3)
# Where the density is drawn.
REACH = 6
TEXT = (
    "Left: error of log depth along one row of pixels, and the bounds of {level:.0%} (3 b of a "
    "Laplace distribution). Right: density of the errors of all pixels of the frame, in units of "
    "b, and the unit Laplace distribution (black) that they should have; errors beyond {reach} b "
    "are counted in the outermost bars. Where a method predicts another distribution than a "
    "Laplace, errors are mapped to the Laplace error of the same probability. Frame {name}, row "
    "{row}, points: {points}."
)


def write(plan: Plan, command: str) -> None:
    """Predict one test frame by every method of `mid`, and draw."""
    points = trained_points(plan, "mid")
    sample = choose(plan, points)
    found, absent = predict(plan, drawn("mid"), sample)
    lines = ["No model has been trained yet."]
    if found:
        figure, axes = grid(len(found), 2, (4.6, 1.5))
        row = sample.depth.shape[1] // 2
        true = sample.depth[0]
        for pair, (name, answer) in zip(axes, found.items(), strict=True):
            draw_row(pair[0], answer, true, row, COLOURS[name])
            draw_density(pair[1], unit_error(answer, true), COLOURS[name])
            pair[0].set_title(name, fontsize=9, loc="left")
        share_limits([pair[0] for pair in axes])
        axes[-1][0].set_xlabel("pixel of the row")
        axes[-1][1].set_xlabel("error in units of b")
        told = TEXT.format(level=THREE_B, reach=REACH, name=sample.name, row=row, points=points)
        lines = [told, "", write_figure(plan, "bounds", figure)]
    write_page(plan, "bounds", command, lines, {}, absent)


def choose(plan: Plan, points: str) -> Sample:
    """The test frame in the middle, with points."""
    frames = source_of(plan).open("test")
    return WithPoints(frames, pattern_of(points), seed=plan.seed)[len(frames) // 2]


def predict(
    plan: Plan, rows: list[Row], sample: Sample
) -> tuple[dict[str, Estimate], list[Training]]:
    """Prediction of a frame by each row, by its label; and what is missing. First seed only."""
    found, absent = {}, []
    for row in rows:
        training = row.trainings(plan)[0]
        if (model := find_model(training)) is None:
            absent.append(training)
        else:
            found[row.label] = read(row, model)(sample.image, sample.sparse)
    return found, absent


def unit_error(answer: Estimate, true_m: Float[Tensor, "h w"]) -> Float[Tensor, "n"]:
    """Errors that have a unit Laplace distribution if the predicted one is right."""
    known = is_valid(true_m)
    error = (answer.mean - to_latent(true_m))[known].double()
    level = answer.distribution.at(known).level(error, answer.var[known].double())
    return error.sign() * -torch.log1p(-level)


def draw_row(
    ax: "Axes", answer: Estimate, true_m: Float[Tensor, "h w"], row: int, colour: str
) -> "Axes":
    """Error of log depth along a row of pixels, and its bounds."""
    error = torch.where(is_valid(true_m), answer.mean - to_latent(true_m), torch.nan)[row]
    bound = answer.distribution.half_width(answer.var, THREE_B)[row]
    columns = range(len(error))
    ax.fill_between(columns, -bound, bound, color=colour, alpha=0.3, lw=0)
    ax.plot(columns, error, color=colour, lw=1)
    ax.axhline(0, color="black", lw=0.5)
    ax.set_ylabel("log depth", fontsize=8)
    return ax


def draw_density(ax: "Axes", unit: Float[Tensor, "n"], colour: str) -> "Axes":
    """Histogram of errors in units of b, and the density of a unit Laplace."""
    edges = torch.linspace(-REACH, REACH, 8 * REACH + 1, dtype=torch.float64)
    counts = torch.histogram(unit.clamp(-REACH, REACH), edges).hist
    width = float(edges[1] - edges[0])
    ax.stairs(counts / len(unit) / width, edges, fill=True, color=colour, alpha=0.5)
    ax.plot(edges, (-edges.abs()).exp() / 2, color="black", lw=1)
    ax.set(ylim=(0, 1))
    ax.set_ylabel("density", fontsize=8)
    return ax


def share_limits(axes: list["Axes"]) -> None:
    """The same errors for all, so that they can be compared; the widest bounds may be cut off."""
    tops = sorted(max(abs(limit) for limit in ax.get_ylim()) for ax in axes)
    for ax in axes:
        ax.set_ylim(-tops[len(tops) // 2], tops[len(tops) // 2])
