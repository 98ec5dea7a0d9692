# SPDX-License-Identifier: Apache-2.0
"""Probabilistic normalised convolutions.

Eldesokey, Felsberg, Holmquist and Persson, "Uncertainty-Aware CNNs for Depth Completion:
Uncertainty from Beginning to End", 2020. A normalised convolution is a weighted least-squares fit
of a constant, so its result has the variance s = sigma^2 / <a|c>: the noise variance over the
confidence that the kernel gathered. Three things are learned together: the confidence of each
measurement, the kernels, and the noise variance of each pixel. The loss is the Gaussian likelihood,
(y - t)^2 / s + ln s.

Written from these equations. They leave open the two small networks for confidence and noise; ours
are U-Nets of three scales.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.layer import Errors, Prediction
from deepbasis.nets.network import per_image, to_target
from deepbasis.shapes import Float
from deepbasis_paper.data.training import PaperItem
from deepbasis_paper.networks.architecture import PaperArchitecture
from deepbasis_paper.networks.heads import LOG_VARIANCE
from deepbasis_paper.networks.inputs import Direct, Given, PaperNetwork
from deepbasis_paper.networks.ncnn import NCNN

# Channels of the two small networks at full, half and quarter size.
WIDTHS = (16, 32, 64)
# Confidence of a pixel that no measurement reaches, when its variance is computed.
LEAST_CONFIDENCE = 1e-6
# Smallest variance of a pixel, relative to the square of the usual depth.
LEAST_VARIANCE = 1e-8


def two_convs(into: int, out: int) -> nn.Sequential:
    """Two 3x3 convolutions with ReLU."""
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1), nn.ReLU(inplace=True),
    )  # fmt: skip


class SmallUNet(nn.Module):
    """One channel to one channel, through three scales with skip connections; any size."""

    def __init__(self) -> None:
        super().__init__()
        full, half, quarter = WIDTHS
        self.down = nn.ModuleList([two_convs(1, full), two_convs(full, half)])
        self.deepest = two_convs(half, quarter)
        self.up = nn.ModuleList([two_convs(quarter + half, half), two_convs(half + full, full)])
        self.last = nn.Conv2d(full, 1, 1)

    def forward(self, x: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 1 h w"]:
        """A number for each pixel, of either sign."""
        skips = []
        for step in self.down:
            skips.append(step(x))
            x = F.max_pool2d(skips[-1], 2, ceil_mode=True)
        x = self.deepest(x)
        for step, skip in zip(self.up, reversed(skips), strict=True):
            x = F.interpolate(x, skip.shape[2:], mode="nearest")
            x = step(torch.cat([x, skip], 1))
        return self.last(x)


class Probabilistic(PaperNetwork):
    """pNCNN: depth and its variance in metres, of sparse depth alone.

    The noise variance is a softplus of a small network's output or, in pNCNN-Exp, its exponential.
    Where no measurement reaches, the depth is the usual one of the training frames.
    """

    start: Tensor

    def __init__(self, architecture: PaperArchitecture) -> None:
        super().__init__()
        self.exponential = architecture.method == "pncnn-exp"
        self.trust, self.net, self.noise = SmallUNet(), NCNN(), SmallUNet()
        self.register_buffer("start", torch.zeros(()))

    def set_start(self, log_depth: float) -> None:
        """Set the usual log depth: the unit, and what pixels that nothing reaches get."""
        self.start.fill_(log_depth)

    def run(
        self, sparse: Float[Tensor, "b 1 h w"]
    ) -> tuple[Float[Tensor, "b 1 h w"], Float[Tensor, "b 1 h w"]]:
        """Depth in metres and its variance."""
        unit = latent.to_depth(self.start)
        valid = latent.is_valid(sparse)
        known = torch.where(valid, sparse, 0)
        # Confidence is 0 where nothing was measured, whatever the network makes of it.
        trust = torch.where(valid, F.softplus(self.trust(known / unit)), 0)
        depth, confidence = self.net(known, trust)
        depth = torch.where(confidence > 0, depth, unit)
        confidence = confidence.clamp(min=LEAST_CONFIDENCE)
        raw = self.noise(confidence)
        noise = raw.clamp(*LOG_VARIANCE).exp() if self.exponential else F.softplus(raw)
        return depth, unit.square() * (noise / confidence).clamp(min=LEAST_VARIANCE)

    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Direct:
        """Log depth and its variance, that in metres over the squared depth."""
        depth, var = self.run(given.sparse)
        noise_var = var / depth.square()
        prediction = Prediction(latent.to_latent(depth), torch.zeros_like(var), noise_var)
        return Direct(prediction, given.points.count)

    def loss(self, item: PaperItem, *, mixed_precision: bool = False) -> Float[Tensor, "b"]:
        """Gaussian likelihood, without its constant."""
        _, known = to_target(item)
        with torch.autocast(item.image.device.type, torch.bfloat16, enabled=mixed_precision):
            depth, var = self.run(item.sparse)
        depth, var = depth.float(), var.float()
        error = depth - torch.where(known, item.depth, 0)
        return per_image(error.square() / var + var.log(), known)

    def predict_in_training(self, item: PaperItem) -> Float[Tensor, "b 1 h w"]:
        """Log depth of a batch."""
        return latent.to_latent(self.run(item.sparse)[0])
