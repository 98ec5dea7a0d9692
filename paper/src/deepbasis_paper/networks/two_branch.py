# SPDX-License-Identifier: Apache-2.0
"""ENet as a whole network, with its own output layer or with a fit in its place.

Each branch gives depth and confidence; the result weighs the depths by the softmax of the
confidences. A fit, of log depth to the features before the convolution that it replaces, has the
confidence tanh(1 / std), its std in metres (in log depth, the tanh would be 1 everywhere).

In the paper depths are the output of a ReLU in metres; here of a softplus in units of the usual
depth of the training frames, so that a short training need not learn the scale.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.calibrate.learn import Draw
from deepbasis.data.sample import Frames
from deepbasis.fit.memory import Memory
from deepbasis.layer import BasisFit, Errors, Fitted, Observed, Prediction
from deepbasis.nets.network import per_image, to_target
from deepbasis.points import Points
from deepbasis.shapes import Float, Int, UInt8
from deepbasis_paper.data.training import PaperItem
from deepbasis_paper.networks.architecture import PaperArchitecture
from deepbasis_paper.networks.enet import ColourBranch, DepthBranch
from deepbasis_paper.networks.fits import FittingNetwork
from deepbasis_paper.networks.inputs import Direct, Given, PaperNetwork
from deepbasis_paper.networks.spread import Spread, learn_spread

# Weight of each branch's loss in the first, second, ... fifth of a training. ENet's authors give 2
# epochs to 0.2, 2 to 0.05 and the others to 0; the comparison with a fit had 10 epochs.
BRANCH_WEIGHTS = (0.2, 0.05, 0.0, 0.0, 0.0)
# Log depths of a fit are cut here, 0.05 m to 400 m: metres far beyond would dominate the loss.
FIT_RANGE = (-3.0, 6.0)
# Depth in metres whose logarithm is taken is at least this.
LEAST_DEPTH = 1e-3


class Branches(NamedTuple):
    """Depth in metres: of the two branches together, and of each."""

    fused: Float[Tensor, "b 1 h w"]
    colour: Float[Tensor, "b 1 h w"]
    depth: Float[Tensor, "b 1 h w"]

    @property
    def latent(self) -> Float[Tensor, "b 1 h w"]:
        """Log of the fused depth."""
        return latent.to_latent(self.fused.clamp(min=LEAST_DEPTH))


class TwoBranch(PaperNetwork):
    """ENet: the mean squared error of the fused depth and, with decreasing weights, of each branch
    is its loss (Hu et al., 2021).
    """

    unit: Tensor

    def __init__(self, architecture: PaperArchitecture) -> None:
        super().__init__()
        self.colour = ColourBranch(architecture.width)
        self.depth = DepthBranch(architecture.width)
        self.register_buffer("unit", torch.ones(()))
        self.branch_weight = 0.0

    def set_start(self, log_depth: float) -> None:
        """Set the unit of depth to a usual depth."""
        self.unit.fill_(float(latent.to_depth(torch.tensor(log_depth))))

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Set the weight of each branch's loss."""
        self.branch_weight = BRANCH_WEIGHTS[len(BRANCH_WEIGHTS) * epoch // epochs]

    @abstractmethod
    def branches(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> Branches:
        """Depth of both branches and of each, as training computes it."""

    def loss(self, item: PaperItem, *, mixed_precision: bool = False) -> Float[Tensor, "b"]:
        """Mean squared error in metres."""
        _, known = to_target(item)
        with torch.autocast(item.image.device.type, torch.bfloat16, enabled=mixed_precision):
            depths = self.branches(item.image, item.sparse)
        true = torch.where(known, item.depth, 0)
        fused, colour, depth = (per_image((one - true).square(), known) for one in depths)
        return (1 - 2 * self.branch_weight) * fused + self.branch_weight * (colour + depth)

    def predict_in_training(self, item: PaperItem) -> Float[Tensor, "b 1 h w"]:
        """Log depth of a batch."""
        return self.branches(item.image, item.sparse).latent

    def features(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> list[Float[Tensor, "b _ _ _"]]:
        """Features of the colour branch, coarse to fine."""
        return self.colour(image, self.scale(sparse))

    def fuse(
        self, features: list[Tensor], sparse: Tensor, first: Tensor, trust: Tensor
    ) -> Branches:
        """Run the depth branch, and weigh its depth and that of the colour branch."""
        other, other_trust = self.read(self.depth(first / self.unit, self.scale(sparse), features))
        share = torch.cat([trust, other_trust], 1).softmax(1)
        fused = (share * torch.cat([first, other], 1)).sum(1, keepdim=True)
        return Branches(fused, first, other)

    def scale(self, sparse: Tensor) -> Tensor:
        """Sparse depth as the branches see it: 0 means none, and 1 a usual depth."""
        return torch.where(latent.is_valid(sparse), sparse, 0) / self.unit

    def read(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Depth in metres and confidence from two channels; a 0 in the first is the unit."""
        out = out.to(torch.promote_types(out.dtype, torch.float32))  # leaves mixed precision
        # softplus(0) is ln 2
        return self.unit * F.softplus(out[:, :1]) / F.softplus(out.new_zeros(())), out[:, 1:]


class ConvBranches(TwoBranch):
    """ENet with its own output layer; its variance is one number for all pixels, learned after
    training.
    """

    def __init__(self, architecture: PaperArchitecture) -> None:
        super().__init__(architecture)
        self.head = nn.Conv2d(architecture.width, 2, 3, padding=1)
        self.spread = Spread(doubts=False)

    def branches(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> Branches:
        """Depth of both branches and of each."""
        features = self.features(image, sparse)
        return self.fuse(features, sparse, *self.read(self.head(features[-1])))

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Direct:
        """Log of the fused depth."""
        mean = self.branches(given.image, given.sparse).latent
        var = self.spread(torch.ones_like(mean))
        return Direct(Prediction(mean, torch.zeros_like(mean), var), given.points.count)

    def calibrate(self, draw: Draw, frames: Frames) -> dict[str, object]:
        """Learn the variance at the points of training."""
        return learn_spread(self, self.spread, draw._replace(patterns=draw.patterns[:1]), frames)


@dataclass(frozen=True)
class FusedFit(Fitted):
    """The fit of the colour branch, with the mean of both branches.

    Its variance is calibrated to the errors of the fused depth.
    """

    colour: Fitted
    mean: Float[Tensor, "b 1 h w"]

    @property
    def noise_var(self) -> Float[Tensor, "b"]:
        """Variance of log depth that nothing explains at a point of weight 1."""
        return self.colour.noise_var

    def predict(self, memory: Memory | None = None) -> Prediction:
        """Prediction of every pixel before calibration."""
        return self.colour.predict()._replace(mean=self.mean)

    def predict_left_out(
        self, which: Int[Tensor, "_"] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Residual, model variance and noise variance of points, by the fit."""
        return self.colour.predict_left_out(which)


class FitBranches(TwoBranch, FittingNetwork):
    """ENet whose colour branch ends in a fit."""

    def __init__(self, architecture: PaperArchitecture) -> None:
        super().__init__(architecture)
        self.fit = BasisFit(architecture.width)

    def branches(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> Branches:
        """Depth of both branches and of each, by the maximum-likelihood fit."""
        features = self.features(image, sparse)
        with torch.autocast(image.device.type, enabled=False):
            observed = self.observe(features, Points.from_maps(sparse), sparse)
            first = to_first(self.fit.predict_ml(observed))
        return self.fuse(features, sparse, *first)

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> FusedFit:
        """The fit of the colour branch, but the prediction of both."""
        features = self.features(given.image, given.sparse)
        observed = self.observe(features, given.points, given.sparse)
        fitted = self.fit.fit_details(observed, errors=check_errors(errors), huber=huber)
        mean = self.fuse(features, given.sparse, *to_first(fitted.prediction)).latent
        parts = fitted.observed, fitted.posterior, fitted.prior, fitted.calibrated
        return FusedFit(*parts, fitted, mean)

    def observe(self, features: list[Tensor], points: Points, sparse: Tensor) -> Observed:
        """What the fit needs: the last features of the colour branch."""
        return self.fit.observe(features[-1:], points, (sparse.shape[2], sparse.shape[3]))


def check_errors(errors: Errors | None) -> Errors | None:
    """The error model, if ENet's fit has it."""
    if errors == "correlated":
        raise ValueError(
            "enet-bdbf has no model of correlated errors: its second branch has learned from a fit "
            "with independent ones; choose --errors independent or paper"
        )
    return errors


def to_first(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Depth in metres and confidence of a fit."""
    depth = latent.to_depth(prediction.mean.clamp(*FIT_RANGE))
    return depth, (1 / (depth * prediction.var.sqrt())).tanh()
