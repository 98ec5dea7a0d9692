# SPDX-License-Identifier: Apache-2.0
"""How the fitted weights spread over training frames, and the Gaussian that is their prior."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbasis.data.sources import Picked, Source, hold_back
from deepbasis.data.training import TrainingSet
from deepbasis.layer import BasisFit
from deepbasis.model import Completer
from deepbasis.reproduce.cells import find_model
from deepbasis.reproduce.config import Plan
from deepbasis.reproduce.figures import TITLES, grid
from deepbasis.reproduce.pages import write_figure, write_page
from deepbasis.reproduce.plan import ROWS, Training
from deepbasis.shapes import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Training frames that are fitted, evenly spread.
FRAMES = 200
# The first basis of some scales, after the constant: 2 + 4 + 8 + 16 + 32 of them, coarse to fine.
SHOWN = {"constant": 0, "a coarse basis": 1, "a middle basis": 7, "a fine basis": 31}
# Quantiles of the weights between which they are drawn.
DRAWN = (0.005, 0.995)
TEXT = (
    "Weights that least squares gives each training frame, and the Gaussian of the prior (black). "
    "Last column: all weights, each less its prior mean and over its prior std, against a unit "
    "Gaussian. The prior is narrower than a histogram that estimation adds noise to."
)


def write(plan: Plan, command: str) -> None:
    """Fit the training frames by every bdbf, and draw."""
    pairs = [(regime, given) for regime in ROWS for name, given in ROWS[regime] if name == "bdbf"]
    absent: list[Training] = []
    samples: dict[str, tuple[Tensor, BasisFit]] = {}
    for regime, depth_input in pairs:
        training = Training(plan, regime, "bdbf", depth_input)
        if (model := find_model(training)) is None:
            absent.append(training)
        else:
            label = f"{depth_input}, {TITLES[regime]}"
            samples[label] = fitted_weights(training, Completer.load(model))
    lines = ["No model is there yet."]
    if samples:
        figure, axes = grid(len(samples), len(SHOWN) + 1, (2.2, 2))
        for line, (label, (weights, layer)) in zip(axes, samples.items(), strict=True):
            draw(line, weights, layer)
            line[0].set_ylabel(label, fontsize=8)
        told = f"{len(weights)} frames are fitted."
        lines = [f"{TEXT} {told}", "", write_figure(plan, "prior", figure)]
    write_page(plan, "prior", command, lines, {}, absent)


@torch.no_grad()
def fitted_weights(training: Training, model: Completer) -> tuple[Float[Tensor, "n m"], BasisFit]:
    """The weights of some training frames, as training fits them, and the layer with the prior."""
    config, network = training.config, model.networks[0]
    layer = network.last
    assert isinstance(layer, BasisFit)
    source = Source(
        config.data, config.root, config.frames, config.size, config.halvings, config.seed
    )
    frames, _ = hold_back(source.open("train"), config.held_back)
    count = min(FRAMES, len(frames))
    some = Picked(frames, [i * len(frames) // count for i in range(count)])
    rgbd = config.input == "rgbd"
    items = TrainingSet(some, config.input_points, config.fit_points, 0.0, rgbd, config.seed)
    layer.train()
    found = []
    for item in (items[index] for index in range(len(items))):
        filled = (item.scaffold[None], item.valid[None]) if rgbd else ()
        bases = network.features(item.image[None], item.sparse[None], *filled)
        found.append(layer.posterior(*layer.read(bases, item.sparse[None])).mean[0])
    layer.eval()
    return torch.stack(found), layer


def draw(axes: list["Axes"], weights: Float[Tensor, "n m"], layer: BasisFit) -> None:
    """Histograms of a few weights, and of all of them normalised."""
    std = layer.prior_cov.diagonal().sqrt()
    for ax, (name, index) in zip(axes, SHOWN.items(), strict=False):
        draw_histogram(ax, weights[:, index], float(layer.prior_mean[index]), float(std[index]))
        ax.set_title(name, fontsize=8)
    draw_histogram(axes[-1], ((weights - layer.prior_mean) / std).flatten(), 0, 1)
    axes[-1].set_title("all, normalised", fontsize=8)


def draw_histogram(ax: "Axes", values: Float[Tensor, "n"], mean: float, std: float) -> "Axes":
    """Values, and the Gaussian that stands for them."""
    low, high = values.quantile(torch.tensor(DRAWN)).tolist()
    low, high = min(low, mean - 3 * std), max(high, mean + 3 * std)
    ax.hist(values.numpy(), bins=40, range=(low, high), density=True, color="tab:red", alpha=0.5)
    x = torch.linspace(low, high, 300)
    density = (-((x - mean) / std).square() / 2).exp() / (std * math.sqrt(2 * math.pi))
    ax.plot(x.numpy(), density.numpy(), color="black", lw=1)
    ax.set(yticks=[])
    ax.tick_params(labelsize=7)
    return ax
