# SPDX-License-Identifier: Apache-2.0
"""NCNN as a whole network, with a variance from its confidence."""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis import latent
from deepbasis.calibrate.learn import Draw
from deepbasis.data.sample import Frames
from deepbasis.layer import Errors, Prediction
from deepbasis.nets.network import per_image, to_target
from deepbasis.shapes import Float
from deepbasis_paper.data.training import PaperItem
from deepbasis_paper.networks.architecture import PaperArchitecture
from deepbasis_paper.networks.inputs import Direct, Given, PaperNetwork
from deepbasis_paper.networks.ncnn import NCNN
from deepbasis_paper.networks.spread import Spread, learn_spread

# Confidence of a pixel that no measurement reaches, when its variance is computed.
LEAST_CONFIDENCE = 1e-6


class Unguided(PaperNetwork):
    """NCNN (see `ncnn`), whose std is a power of its confidence, learned after training.

    Where no measurement reaches, the depth is the usual one of the training frames. Its loss is
    Huber's error in metres and a reward for confidence where that error is small, whose weight is
    1 / epoch (Eldesokey et al., 2018); that of ncnn-l2 is the squared error alone.
    """

    start: Tensor

    def __init__(self, architecture: PaperArchitecture) -> None:
        super().__init__()
        self.squared = architecture.method == "ncnn-l2"
        self.net = NCNN()
        self.spread = Spread(doubts=True)
        self.register_buffer("start", torch.zeros(()))
        self.confidence_weight = 0.0

    def set_start(self, log_depth: float) -> None:
        """Set the log depth of pixels that no measurement reaches."""
        self.start.fill_(log_depth)

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Set the weight of confidence in the loss."""
        self.confidence_weight = 1 / (1 + epoch)

    def run(
        self, sparse: Float[Tensor, "b 1 h w"]
    ) -> tuple[Float[Tensor, "b 1 h w"], Float[Tensor, "b 1 h w"]]:
        """Depth in metres and confidence."""
        depth, confidence = self.net(sparse)
        return torch.where(confidence > 0, depth, latent.to_depth(self.start)), confidence

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Direct:
        """Log depth and its variance."""
        depth, confidence = self.run(given.sparse)
        var = self.spread(1 / confidence.clamp(min=LEAST_CONFIDENCE))
        prediction = Prediction(latent.to_latent(depth), torch.zeros_like(var), var)
        return Direct(prediction, given.points.count)

    def loss(self, item: PaperItem, *, mixed_precision: bool = False) -> Float[Tensor, "b"]:
        """Huber's error less the reward for confidence, or the squared error."""
        _, known = to_target(item)
        with torch.autocast(item.image.device.type, torch.bfloat16, enabled=mixed_precision):
            depth, confidence = self.run(item.sparse)
        true = torch.where(known, item.depth, 0)
        if self.squared:
            return per_image((depth - true).square(), known)
        error = F.smooth_l1_loss(depth, true, reduction="none")
        return per_image(error - self.confidence_weight * confidence * (1 - error), known)

    def calibrate(self, draw: Draw, frames: Frames) -> dict[str, object]:
        """Learn the variance from the confidence, at all numbers of points."""
        return learn_spread(self, self.spread, draw, frames)

    def predict_in_training(self, item: PaperItem) -> Float[Tensor, "b 1 h w"]:
        """Log depth of a batch."""
        return latent.to_latent(self.run(item.sparse)[0])
