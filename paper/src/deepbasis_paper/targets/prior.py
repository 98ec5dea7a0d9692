# SPDX-License-Identifier: Apache-2.0
"""How the fitted weights spread over training frames, and the Gaussian that is their prior."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepbasis.data.sources import Source, split_validation, subsample
from deepbasis.data.training import collate
from deepbasis.layer import BasisFit, PriorCollector
from deepbasis.shapes import Float
from deepbasis_paper.data.training import PaperTrainingSet
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks.fits import FittingNetwork
from deepbasis_paper.targets.cells import find_model
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.figures import TITLES, grid
from deepbasis_paper.targets.pages import write_figure, write_page
from deepbasis_paper.targets.plan import ROWS, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Training frames that are fitted, evenly spread.
FRAMES = 200
# The first basis of some scales, after the constant: 2 + 4 + 8 + 16 + 32 of them, coarse to fine.
SHOWN = {"constant": 0, "a coarse basis": 1, "a middle basis": 7, "a fine basis": 31}
# Quantiles of the weights between which they are drawn.
DRAWN = (0.005, 0.995)
TEXT = (
    "Least-squares weights of the training frames, and the Gaussian of the prior (black). Last "
    "column: all weights, minus their prior mean and divided by their prior std, against a unit "
    "Gaussian. As in the paper, the prior is the scatter of the weights in the last epoch of "
    "training; the histograms are of the trained network."
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
            samples[label] = fitted_weights(training, fitting(Ensemble.load(model)))
    lines = ["No model has been trained yet."]
    if samples:
        figure, axes = grid(len(samples), len(SHOWN) + 1, (2.2, 2))
        for line, (label, (weights, layer)) in zip(axes, samples.items(), strict=True):
            draw(line, weights, layer)
            line[0].set_ylabel(label, fontsize=8)
        told = f"{len(weights)} frames are used."
        lines = [f"{TEXT} {told}", "", write_figure(plan, "prior", figure)]
    write_page(plan, "prior", command, lines, {}, absent)


def fitting(model: Ensemble) -> FittingNetwork:
    """The network of a model that fits."""
    network = model.network
    assert isinstance(network, FittingNetwork)
    return network


@torch.no_grad()
def fitted_weights(
    training: Training, network: FittingNetwork
) -> tuple[Float[Tensor, "n m"], BasisFit]:
    """The weights of some training frames, as training fits them, and the layer with the prior.

    The layer's collector, if it has one, collects them too.
    """
    config, layer = training.config, network.fit
    source = Source(
        config.data, config.root, config.frames, config.size, config.downscale, config.seed,
        centred=config.centred,
    )  # fmt: skip
    frames, _ = split_validation(source.open("train"), config.val_frames)
    items = PaperTrainingSet(
        subsample(frames, FRAMES), config.input_points, config.fit_points,
        depth_input=config.depth_input, seed=config.seed,
    )  # fmt: skip
    before, layer.collector = layer.collector, layer.collector or PriorCollector()
    for index in range(len(items)):
        network.predict_in_training(collate([items[index]]))
    weights = layer.collector.sample.weights.float()
    layer.collector = before
    return weights, layer


def draw(axes: list["Axes"], weights: Float[Tensor, "n m"], layer: BasisFit) -> None:
    """Histograms of a few weights, and of all of them normalised."""
    prior = layer.prior
    std = prior.cov.diagonal().sqrt()
    for ax, (name, index) in zip(axes, SHOWN.items(), strict=False):
        draw_histogram(ax, weights[:, index], float(prior.mean[index]), float(std[index]))
        ax.set_title(name, fontsize=8)
    draw_histogram(axes[-1], ((weights - prior.mean) / std).flatten(), 0, 1)
    axes[-1].set_title("all, normalised", fontsize=8)


def draw_histogram(ax: "Axes", values: Float[Tensor, "n"], mean: float, std: float) -> "Axes":
    """Values, and their Gaussian."""
    low, high = values.quantile(torch.tensor(DRAWN)).tolist()
    low, high = min(low, mean - 3 * std), max(high, mean + 3 * std)
    ax.hist(values.numpy(), bins=40, range=(low, high), density=True, color="tab:red", alpha=0.5)
    x = torch.linspace(low, high, 300)
    density = (-((x - mean) / std).square() / 2).exp() / (std * math.sqrt(2 * math.pi))
    ax.plot(x.numpy(), density.numpy(), color="black", lw=1)
    ax.set(yticks=[])
    ax.tick_params(labelsize=7)
    return ax
