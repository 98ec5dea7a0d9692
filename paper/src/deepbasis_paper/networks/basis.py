# SPDX-License-Identifier: Apache-2.0
"""The paper's basis network: it may see interpolated points, and may drop channels."""

import torch
from torch import Tensor, nn

from deepbasis.latent import to_latent
from deepbasis.nets import BasisNet, Features
from deepbasis.nets.decoder import Decoder, JoinedConv
from deepbasis.shapes import Bool, Float, UInt8

# Features of interpolated depth that are merged with the image's first stage.
DEPTH_FEATURES = 32
# Standard deviation of their weights in the merged features at the start: what depth adds is then
# about two thirds as large as the features of an encoder trained on ImageNet.
START_STD = 0.35


class DepthStem(nn.Module):
    """Merges interpolated depth with the image's first stage.

    One stride-2 block with normalisation and activation makes features of the depth; these and the
    image's are concatenated, and mixed by a 1x1 convolution. That starts as the image's features
    plus a random mixture of the depth's: the network sees its depth input from the first step.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, DEPTH_FEATURES, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(DEPTH_FEATURES)
        self.merge = JoinedConv(channels + DEPTH_FEATURES, channels, 1, bias=False)
        with torch.no_grad():
            own, depth = self.merge.weight.tensor_split([channels], 1)
            own.copy_(torch.eye(channels, device=own.device)[..., None, None])
            depth.normal_(std=START_STD)

    def forward(
        self, stage: Float[Tensor, "b c h2 w2"], pair: Float[Tensor, "b 2 h w"]
    ) -> Float[Tensor, "b c h2 w2"]:
        """The image's first stage, merged with the two channels of `depth_channels`."""
        return self.merge(stage, nn.functional.elu(self.norm(self.conv(pair))))


def depth_channels(
    depth: Float[Tensor, "b 1 h w"], measured: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, "b 2 h w"]:
    """Log of interpolated depth, 0 where there is none, and where it was measured."""
    log_depth = to_latent(torch.where(depth > 0, depth, 1))
    return torch.cat([log_depth, measured.to(depth.dtype)], 1)


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
        # Of the input, colours alone join the last step. With interpolated depth there, a basis
        # could be that depth: it fits its points perfectly, and least squares would return it.
        self.decoder = DropoutDecoder(channels, 3, dropout)

    def forward(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        depth: Float[Tensor, "b 1 h w"] | None = None,
        measured: Bool[Tensor, "b 1 h w"] | None = None,
    ) -> Features:
        """Bases. `depth` is a scaffold, and `measured` says where its points are."""
        colours = self.normalise(image)
        x = self.encoder.stem(colours)
        if self.depth_stem is not None:
            if depth is None or measured is None:
                depth = torch.zeros_like(image[:, :1], dtype=x.dtype)
                measured = torch.zeros_like(depth, dtype=torch.bool)
            x = self.depth_stem(x, depth_channels(depth, measured))
        elif depth is not None:
            raise ValueError("this network takes the image alone; create it with depth_input=True")
        size = (image.shape[2], image.shape[3])
        return Features(self.decoder([x, *self.encoder.rest(x)], size, colours).bases)
