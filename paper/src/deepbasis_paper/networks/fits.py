# SPDX-License-Identifier: Apache-2.0
"""What all networks with a fit learn after their training."""

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from deepbasis.calibrate import learn
from deepbasis.calibrate.measure import share
from deepbasis.data.sample import Frames
from deepbasis.data.training import collate
from deepbasis.fit import Prior
from deepbasis.layer import BasisFit, Errors
from deepbasis.shapes import Float
from deepbasis_paper.laplace import laplace_factor, two_term
from deepbasis_paper.networks.inputs import PaperNetwork


class LastEpoch(nn.Module):
    """Fits of the last epoch of training, from which the paper takes its prior and its factor.

    They are made while the network still changes, and while it normalises each batch by itself.
    Only sums are kept, as a part of the network's state, so that a training that is resumed in its
    last epoch ends with the same numbers.
    """

    frames: Tensor
    weights: Tensor
    products: Tensor
    nees: Tensor

    def __init__(self, m: int) -> None:
        super().__init__()
        sizes = {"frames": (), "weights": (m,), "products": (m, m), "nees": ()}
        for name, size in sizes.items():
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def add(self, weights: Float[Tensor, "b m"], nees: Float[Tensor, "b"]) -> None:
        """Add a batch: weights of maximum likelihood, and the NEES of each image. All processes
        add the batches of all.
        """
        w = weights.double()
        frames = torch.tensor(len(w), dtype=torch.float64, device=w.device)
        sums = (frames, w.sum(0), w.mT @ w, nees.double().sum())
        totals = (self.frames, self.weights, self.products, self.nees)
        for total, part in zip(totals, sums, strict=True):
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(part)
            total += part

    @property
    def prior(self) -> Prior:
        """Mean and covariance of the weights, without any correction."""
        if self.frames < 2:
            raise ValueError(
                f"a prior needs the weights of at least 2 images, but the last epoch has fitted "
                f"{int(self.frames)}; train with more frames, or with --recipe corrected"
            )
        mean = self.weights / self.frames
        scatter = self.products - self.frames * mean[:, None] * mean
        return Prior(mean, scatter / (self.frames - 1))

    @property
    def factor(self) -> float:
        """The paper's factor on the variance: the mean over images of error^2 / variance."""
        return float(self.nees / self.frames)


class FittingNetwork(PaperNetwork):
    """A network whose last layer, or that of one branch, is a fit."""

    fit: BasisFit

    def usual_noise(self, errors: Errors | None = None) -> float:
        """Variance that the fit leaves at a point, as training found."""
        return self.fit.error_model(errors).usual_noise

    def learn_prior(self, fabric: Fabric, items: Any) -> None:
        """Fit every item once more, with the final network; see `learn.learn_prior`."""
        self.eval()
        self.fit.collect_weights()
        assert self.fit.collector is not None
        for index in share(len(items), fabric):
            self.predict_in_training(fabric.to_device(collate([items[index]])))
        self.fit.collector.samples = [learn.gather_sample(fabric, self.fit.collector.sample)]
        self.fit.learn_prior()

    def calibrate(self, draw: learn.Draw, frames: Frames) -> dict[str, object]:
        """Calibrate independent errors: our factors and error distribution, the paper's factor, and
        the two factors of a Laplace likelihood.
        """
        learn.reset_calibration(self.fit)
        groups = learn.sample_pixels(draw, self, frames, "independent")
        error, noise_var, model_var = torch.cat([group.rows for group in groups]).unbind(1)
        found: dict[str, object] = {
            "two_term": two_term(error, noise_var, model_var),
            "laplace_factor": float(laplace_factor(error, noise_var + model_var)),
        }
        found |= learn.calibrate_paper(self.fit, groups[0])
        found["independent"] = learn.calibrate(self.fit.error_model("independent"), groups)
        return found
