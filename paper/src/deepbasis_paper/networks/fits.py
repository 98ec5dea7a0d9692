# SPDX-License-Identifier: Apache-2.0
"""What all networks with a fit learn after their training."""

from typing import Any

import torch
from lightning_fabric import Fabric

from deepbasis.calibrate import learn
from deepbasis.calibrate.measure import share
from deepbasis.data.sample import Frames
from deepbasis.data.training import collate
from deepbasis.layer import BasisFit, Errors
from deepbasis_paper.laplace import laplace_factor, two_term
from deepbasis_paper.networks.inputs import PaperNetwork


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
