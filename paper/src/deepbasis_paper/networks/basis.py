# SPDX-License-Identifier: Apache-2.0
"""The paper's basis network: it may see interpolated points, and may drop channels."""

import torch
from torch import Tensor, nn

from deepbasis.latent import to_latent
from deepbasis.nets import BasisNet, Features
from deepbasis.nets.decoder import Decoder
from deepbasis.shapes import Bool, Float, UInt8


class DepthStem(nn.Module):
    """One stride-2 block for log depth and its validity, to be added to the image's first stage.

    Its scale starts at 0, so that a pretrained encoder first sees what it is used to.
    """

    def __init__(self, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, out, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        nn.init.zeros_(self.norm.weight)

    def forward(self, pair: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Features of the two channels of `depth_channels` at half the size."""
        return nn.functional.elu(self.norm(self.conv(pair)))


def depth_channels(
    depth: Float[Tensor, "b 1 h w"], valid: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, "b 2 h w"]:
    """Log depth, 0 where not valid, and validity."""
    return torch.cat([to_latent(torch.where(valid, depth, 1)), valid.to(depth.dtype)], 1)


class DropoutDecoder(Decoder):
    """The decoder with dropout of channels after each step."""

    def __init__(self, channels: tuple[int, ...], skip: int, dropout: float) -> None:
        super().__init__(channels, skip)
        self.dropout = nn.Dropout2d(dropout)

    def after_step(self, x: Tensor) -> Tensor:
        """Drop channels."""
        return self.dropout(x)


class PaperBasisNet(BasisNet):
    """The basis network with the options of the paper's experiments.

    Args:
        encoder: "mobilenet_v2" (the paper's) or "resnet34".
        normalisation: what the encoder's weights expect.
        depth_input: whether interpolated points enter the network too ("rgbd").
        dropout: share of the decoder's channels that training drops.
    """

    def __init__(
        self,
        encoder: str = "mobilenet_v2",
        *,
        normalisation: str = "imagenet",
        depth_input: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(encoder, normalisation=normalisation)
        channels = self.encoder.channels
        self.depth_stem = DepthStem(channels[0]) if depth_input else None
        # The input joins the last step, so that the scaffold reaches the bases in full detail.
        self.decoder = DropoutDecoder(channels, 5 if depth_input else 3, dropout)

    def forward(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        depth: Float[Tensor, "b 1 h w"] | None = None,
        valid: Bool[Tensor, "b 1 h w"] | None = None,
    ) -> Features:
        """Bases. `depth` and `valid` are a scaffold; without one, none is known."""
        seen = self.normalise(image)
        x = self.encoder.stem(seen)
        if self.depth_stem is not None:
            if depth is None or valid is None:
                depth = torch.zeros_like(image[:, :1], dtype=x.dtype)
                valid = torch.zeros_like(depth, dtype=torch.bool)
            pair = depth_channels(depth, valid)
            x = x + self.depth_stem(pair)
            seen = torch.cat([seen, pair], 1)
        elif depth is not None:
            raise ValueError("this network takes the image alone; create it with depth_input=True")
        size = (image.shape[2], image.shape[3])
        return Features(self.decoder([x, *self.encoder.rest(x)], size, seen).bases)
