# SPDX-License-Identifier: Apache-2.0
"""The fit as a part of another network: ENet with its own output layer, and with a fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from deepbasis.data.tensors import load_tensors
from deepbasis_paper.config import PaperConfig
from deepbasis_paper.targets.cells import find_model
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import add_legend, grid
from deepbasis_paper.targets.pages import markdown, write_figure, write_page
from deepbasis_paper.targets.plan import Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"enet": "tab:green", "enet-bdbf": "tab:red"}
PARTS = ("training", "test")
# Frames of each part that are measured after every epoch.
EVAL_FRAMES = 64
# Epochs of the paper's comparison.
EPOCHS = 10
Curves = list[list[tuple[float, float]]]
"""Of each seed and epoch: RMSE of training and of test frames, in metres."""
TEXT = (
    "RMSE in metres after every epoch, with the same frames, seeds, steps and learning rates. "
    "Thin lines are seeds, thick ones their means. Nothing was chosen by the test frames."
)


@dataclass(frozen=True)
class BranchTraining(Training):
    """One training of ENet, with the points of the data set's sensor if it has one."""

    regime: str = "mid"
    method: str = "enet"
    input: str = ""

    @property
    def name(self) -> str:
        """Folder below the plan's."""
        return f"{self.method}-w{self.plan.width}-s{self.seed}"

    @property
    def config(self) -> PaperConfig:
        """Its settings; the number of epochs is the same with a fit and without."""
        plan = self.plan
        shared = Training(plan, "mid", "bdbf", "rgbd", self.seed).config
        points = "sensor" if plan.data == "kitti" else shared.input_points
        return replace(
            shared, out=self.model.parent,
            method=self.method, width=plan.width,  # type: ignore[arg-type]
            encoder_weights=None, input_points=points, epochs=plan.epochs or EPOCHS,
            lr=1e-3, schedule="cosine", eval_frames=EVAL_FRAMES,
        )  # fmt: skip


def write(plan: Plan, command: str) -> None:
    """Train both with every seed, draw their curves, and write the numbers."""
    trainings = [
        BranchTraining(plan, method=method, seed=seed)
        for seed in range(plan.seeds)
        for method in COLOURS
    ]
    curves: dict[str, Curves] = {method: [] for method in COLOURS}
    missing = []
    for training in trainings:
        model = find_model(training)
        if model is None:
            missing.append(training)
        else:
            epochs = load_tensors(model)[1]["metrics"]["evaluated"]
            curves[training.method].append([(seen, unseen) for seen, unseen in epochs])
    lines = [f"{TEXT} ENet has {plan.width} channels at full size, the paper's 32.", ""]
    if any(curves.values()):
        lines += [_draw(plan, curves), "", *_table(curves)]
    write_page(plan, "enet", command, lines, {}, missing, curves=curves)


def _draw(plan: Plan, curves: dict[str, Curves]) -> str:
    figure, axes = grid(1, len(PARTS), (4.6, 3.6))
    for part, name in enumerate(PARTS):
        for method, seeds in curves.items():
            draw_part(axes[0][part], method, [[epoch[part] for epoch in one] for one in seeds])
        ax = axes[0][part]
        ax.set(title=f"{name} frames", xlabel="epoch", ylabel="RMSE (m)", yscale="log")
        for axis in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            axis("{x:g}")
    add_legend(figure)
    return write_figure(plan, "enet", figure)


def draw_part(ax: "Axes", method: str, seeds: Sequence[Sequence[float]]) -> "Axes":
    """The seeds of one method, and their mean."""
    for values in seeds:
        ax.plot(range(1, len(values) + 1), values, color=COLOURS[method], lw=0.7, alpha=0.5)
    if seeds:
        mean = [fmean(values) for values in zip(*seeds, strict=True)]
        ax.plot(range(1, len(mean) + 1), mean, color=COLOURS[method], lw=2, label=method)
    ax.grid(alpha=0.3)
    return ax


def _table(curves: dict[str, Curves]) -> list[str]:
    """A line for each epoch: mean over the seeds, and their standard deviation."""
    head = ["epoch", *(f"{method}, {part}" for part in PARTS for method in curves)]
    epochs = max(len(one) for seeds in curves.values() for one in seeds)
    lines = [
        [str(epoch + 1), *(
            _show([one[epoch][part] for one in seeds])
            for part in range(len(PARTS)) for seeds in curves.values()
        )]
        for epoch in range(epochs)
    ]  # fmt: skip
    return markdown(head, lines, 1)


def _show(values: Sequence[float]) -> str:
    if not values:
        return "missing"
    text = f"{fmean(values):.3f}"
    return f"{text} ± {stdev(values):.3f}" if len(values) > 1 else text
