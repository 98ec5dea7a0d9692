# SPDX-License-Identifier: Apache-2.0
"""The basis network: image, and perhaps scaffolded depth, to bases at five scales."""

import torch
from torch import Tensor, nn

from deepbasis.latent import to_latent
from deepbasis.nets.decoder import BASES, Decoder
from deepbasis.nets.encoders import ENCODERS
from deepbasis.shapes import Bool, Float, UInt8

# How 8-bit RGB enters an encoder: (value - mean) / std, as its weights were trained.
NORMALISATIONS = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "symmetric": ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
}


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
        """Features of `see_depth`'s two channels at half the size."""
        return nn.functional.elu(self.norm(self.conv(pair)))


def see_depth(
    depth: Float[Tensor, "b 1 h w"], valid: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, "b 2 h w"]:
    """Log depth, 0 where not valid, and validity."""
    seen = to_latent(torch.where(valid, depth, 1))
    return torch.cat([seen, valid.to(depth.dtype)], 1)


class BasisNet(nn.Module):
    """62 bases of an image at strides 16, 8, 4, 2 and 1; any image size.

    Args:
        encoder: "mobilenet_v2" (the paper's) or "resnet34".
        depth_input: whether scaffolded depth enters the network too ("rgbd").
        normalisation: what the encoder's weights expect; it is kept with the weights.
        dropout: share of the decoder's channels that training drops.
    """

    channels = sum(BASES)
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: str = "mobilenet_v2",
        *,
        depth_input: bool = False,
        normalisation: str = "imagenet",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for option, value, known in (
            ("encoder", encoder, ENCODERS), ("normalisation", normalisation, NORMALISATIONS),
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"`{option}` is {value!r}; choose one of {', '.join(known)}")
        self.encoder = ENCODERS[encoder]()
        self.depth_stem = DepthStem(self.encoder.channels[0]) if depth_input else None
        # The input joins the last step: a scaffold then reaches the bases with all its detail.
        seen = 5 if depth_input else 3
        self.decoder = Decoder(self.encoder.channels, seen, dropout)
        for name, values in zip(("mean", "std"), NORMALISATIONS[normalisation], strict=True):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1))

    def forward(
        self,
        image: UInt8[Tensor, "b 3 h w"],
        depth: Float[Tensor, "b 1 h w"] | None = None,
        valid: Bool[Tensor, "b 1 h w"] | None = None,
    ) -> list[Float[Tensor, "b _ _ _"]]:
        """Bases, coarse to fine. `depth` and `valid` are a scaffold; without one, none is known."""
        seen = (image.to(self.mean.dtype) - self.mean) / self.std
        x = self.encoder.stem(seen)
        if self.depth_stem is not None:
            if depth is None or valid is None:
                depth = torch.zeros_like(image[:, :1], dtype=x.dtype)
                valid = torch.zeros_like(depth, dtype=torch.bool)
            pair = see_depth(depth, valid)
            x = x + self.depth_stem(pair)
            seen = torch.cat([seen, pair], 1)
        elif depth is not None:
            raise ValueError("this network takes the image alone; make it with `depth_input=True`")
        size = (image.shape[2], image.shape[3])
        return self.decoder([x, *self.encoder.rest(x)], size, seen)
