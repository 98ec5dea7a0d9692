# SPDX-License-Identifier: Apache-2.0
"""Feature maps to bases at five scales, coarse to fine: the paper's decoder and a light one."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis.shapes import Float

BASES = (2, 4, 8, 16, 32)
WIDTHS = (256, 192, 128, 64, 32)
# Never fewer channels than bases: a 1x1 convolution would make these linearly dependent.
LIGHT_WIDTHS = (128, 96, 64, 32, 32)


class Decoded(NamedTuple):
    """Output of a decoder for the features of an image."""

    bases: list[Float[Tensor, "b _ _ _"]]
    """Coarse to fine."""
    last: Float[Tensor, "b _ h w"]
    """Features of full size, which the finest bases are made from."""


class JoinedConv(nn.Conv2d):
    """A convolution of two concatenated maps, without concatenating them. It is faster: nothing is
    copied, and each convolution has a favourable number of channels.
    """

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:  # type: ignore[override]
        """Convolve `x` and, as further channels, `skip`."""
        own, joined = self.weight.tensor_split([x.shape[1]], 1)
        mixed = self._conv_forward(x, own, self.bias)
        return mixed if skip is None else mixed.add_(self._conv_forward(skip, joined, None))


class Up(nn.Module):
    """Upsampling, skip connection, and two convolutions with ELU.

    The paper uses ELU because smooth activations give better uncertainty.
    """

    def __init__(self, into: int, skip: int, out: int) -> None:
        super().__init__()
        self.mix = nn.Sequential(
            JoinedConv(into + skip, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ELU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ELU(inplace=True),
        )

    def forward(self, x: Tensor, size: tuple[int, int], skip: Tensor | None) -> Tensor:
        """Features at `size`."""
        x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        return self.mix[1:](self.mix[0](x, skip))


class LightUp(Up):
    """Upsampling, skip connection, and one convolution with ELU."""

    def __init__(self, into: int, skip: int, out: int) -> None:
        super().__init__(into, skip, out)
        del self.mix[3:]


class Decoder(nn.Module):
    """Five upsampling steps, each with its own bases: the paper's supplement."""

    widths = WIDTHS
    step: type[Up] = Up
    basis_size = 3
    """Side of the convolutions that make the bases."""

    def __init__(self, channels: tuple[int, ...], skip: int = 0) -> None:
        super().__init__()
        widths, side = self.widths, self.basis_size
        skips = (*channels[-2::-1], skip)  # from the second deepest up
        inputs = (channels[-1], *widths[:-1])
        self.up = nn.ModuleList(
            self.step(*sizes) for sizes in zip(inputs, skips, widths, strict=True)
        )
        self.bases = nn.ModuleList(
            nn.Conv2d(width, count, side, padding=side // 2)
            for width, count in zip(widths, BASES, strict=True)
        )

    def forward(
        self, features: list[Tensor], size: tuple[int, int], skip: Tensor | None = None
    ) -> Decoded:
        """Bases at strides 16, 8, 4, 2 and 1 from features at strides 2, 4, 8, 16 and 32.

        `skip` joins at full size.
        """
        x, found = features[-1], []
        for up, basis, side in zip(self.up, self.bases, [*features[-2::-1], skip], strict=True):
            target = size if side is None else (side.shape[2], side.shape[3])
            x = self.after_step(up(x, target, side))
            found.append(basis(x))
        return Decoded(found, x)

    def after_step(self, x: Tensor) -> Tensor:
        """Hook for subclasses: changes the features of a step before they are used."""
        return x


class LightDecoder(Decoder):
    """A third of the cost: half the channels, one convolution in each step, bases by 1x1."""

    widths = LIGHT_WIDTHS
    step = LightUp
    basis_size = 1


DECODERS: dict[str, type[Decoder]] = {"paper": Decoder, "light": LightDecoder}
