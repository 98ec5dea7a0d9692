# SPDX-License-Identifier: Apache-2.0
"""The basis network: an image to bases at five scales."""

import torch
from torch import Tensor, nn

from deepbasis.nets.decoder import BASES, Decoder
from deepbasis.nets.encoders import ENCODERS
from deepbasis.shapes import Float, UInt8

# How 8-bit RGB enters an encoder: (value - mean) / std, as its weights were trained.
NORMALISATIONS = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "symmetric": ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
}


class BasisNet(nn.Module):
    """62 bases of an image at strides 16, 8, 4, 2 and 1; any image size.

    Args:
        encoder: "mobilenet_v2" (the paper's) or "resnet34".
        normalisation: what the encoder's weights expect; it is kept with the weights.
    """

    channels = sum(BASES)
    mean: Tensor
    std: Tensor

    def __init__(self, encoder: str = "mobilenet_v2", *, normalisation: str = "imagenet") -> None:
        super().__init__()
        for option, value, known in (
            ("encoder", encoder, ENCODERS), ("normalisation", normalisation, NORMALISATIONS),
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"`{option}` is {value!r}; choose one of {', '.join(known)}")
        self.encoder = ENCODERS[encoder]()
        self.decoder = Decoder(self.encoder.channels, 3)
        for name, values in zip(("mean", "std"), NORMALISATIONS[normalisation], strict=True):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1))

    def normalise(self, image: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        """Colours as the encoder expects them."""
        return (image.to(self.mean.dtype) - self.mean) / self.std

    def forward(self, image: UInt8[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """Bases, coarse to fine."""
        colours = self.normalise(image)
        x = self.encoder.stem(colours)
        size = (image.shape[2], image.shape[3])
        return self.decoder([x, *self.encoder.rest(x)], size, colours)
