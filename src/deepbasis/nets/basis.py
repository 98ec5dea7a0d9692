# SPDX-License-Identifier: Apache-2.0
"""The basis network: an image to bases at five scales, and to the kernel of the errors."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis.fit import Kernel
from deepbasis.nets.decoder import BASES, DECODERS
from deepbasis.nets.encoders import ENCODERS
from deepbasis.shapes import Float, UInt8

# How 8-bit RGB enters an encoder: (value - mean) / std, as its weights were trained.
NORMALISATIONS = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "symmetric": ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
    "efficientnet_lite": ((127.0, 127.0, 127.0), (128.0, 128.0, 128.0)),
}


# Kernel that a training begins with: length in image widths, nugget relative to an amplitude of 1,
# and share of the rough part.
START_LENGTH, START_NUGGET, START_ROUGH = 0.15, 0.01, 0.03
# Embedding and log amplitude begin this much smaller than a usual initialisation makes them.
START_SCALE = 0.3
# Largest log amplitude: a factor of 400 between the most and the least certain pixels.
MOST_LOG_AMPLITUDE = 3.0


class Features(NamedTuple):
    """Output of a network for a batch of images."""

    bases: list[Float[Tensor, "b _ _ _"]]
    """Coarse to fine."""
    embedding: Float[Tensor, "b e h w"] | None = None
    """Errors of pixels are correlated where this is similar."""
    amplitude: Float[Tensor, "b 1 h w"] | None = None
    """Size of the errors at each pixel, relative to the others."""
    summary: Float[Tensor, "b f"] | None = None
    """What the encoder sees, without where it is; see `summarise`."""

    def contiguous(self) -> "Features":
        """The same, channels last in memory: maps are read pixel by pixel afterwards."""
        form = torch.channels_last
        embedding, amplitude = (
            None if x is None else x.contiguous(memory_format=form) for x in self[1:3]
        )
        bases = [basis.contiguous(memory_format=form) for basis in self.bases]
        return Features(bases, embedding, amplitude, self.summary)

    def at_size(self, size: tuple[int, int]) -> "Features":
        """The same with the kernel's maps of this size; bases are stretched where they are read."""
        embedding, amplitude = (
            x if x is None or x.shape[2:] == size else F.interpolate(x, size, mode="bilinear")
            for x in self[1:3]
        )
        return self._replace(embedding=embedding, amplitude=amplitude)

    def to(self, dtype: torch.dtype) -> "Features":
        """The same in another type."""
        maps = [None if x is None else x.to(dtype) for x in self[1:]]
        return Features([basis.to(dtype) for basis in self.bases], *maps)


def summarise(maps: list[Float[Tensor, "b _ _ _"]]) -> Float[Tensor, "b f"]:
    """Mean of each channel over the image, for all stages but the first, which sees little more
    than the colours.
    """
    return torch.cat([x.detach().mean((2, 3)) for x in maps[1:]], 1)


class KernelHead(nn.Module):
    """Embedding and amplitude of every pixel, and the three numbers of their kernel.

    The kernel is s(p) s(q) k(|x(p) - x(q)|), where x is the position in units of the length and the
    embedding: positive definite for any output of the network.

    Args:
        into: channels of the features.
        embedding: channels of the embedding.
        width: channels of two convolutions at half size, which see the surroundings of a pixel;
            what they add starts at 0. 0 for none.
    """

    def __init__(self, into: int, embedding: int, width: int = 0) -> None:
        super().__init__()
        last = nn.Conv2d(into, embedding + 1, 1)
        nn.init.normal_(last.weight, std=START_SCALE / math.sqrt(into))
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        self.mix = nn.Sequential(nn.Conv2d(into, into, 1), nn.ELU(inplace=True), last)
        self.surroundings = _surroundings(into, width, embedding + 1) if width else None
        self.log_length = nn.Parameter(torch.tensor(math.log(START_LENGTH)))
        self.log_nugget = nn.Parameter(torch.tensor(math.log(START_NUGGET)))
        self.rough_logit = nn.Parameter(torch.tensor(math.log(START_ROUGH / (1 - START_ROUGH))))

    def forward(self, x: Float[Tensor, "b c h w"]) -> tuple[Tensor, Tensor]:
        """Embedding, and amplitude."""
        found = self.mix(x)
        if self.surroundings is not None:
            more = self.surroundings(F.avg_pool2d(x, 2, ceil_mode=True))
            size = (x.shape[2], x.shape[3])
            found = found + F.interpolate(more, size, mode="bilinear", align_corners=False)
        bound = MOST_LOG_AMPLITUDE
        return found[:, :-1], (bound * (found[:, -1:] / bound).tanh()).exp()

    @property
    def kernel(self) -> Kernel:
        """Differentiable in its numbers; one unit of the embedding is one length."""
        length = self.log_length.exp()
        return Kernel(length, length, self.log_nugget.exp(), 1.5, self.rough_logit.sigmoid())

    @property
    def learned(self) -> Kernel:
        """The same as numbers."""
        found = self.kernel
        length, nugget, rough = (float(x) for x in (found.length, found.nugget, found.rough))
        return Kernel(length, length, nugget, 1.5, rough)


def _surroundings(into: int, width: int, out: int) -> nn.Sequential:
    last = nn.Conv2d(width, out, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)  # type: ignore[arg-type]
    return nn.Sequential(
        nn.Conv2d(into, width, 3, padding=1), nn.ELU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1), nn.ELU(inplace=True), last,
    )  # fmt: skip


class BasisNet(nn.Module):
    """62 bases of an image at strides 16, 8, 4, 2 and 1; any image size.

    Args:
        encoder: "mobilenet_v2" (the paper's), "efficientnet_lite0" or "resnet34".
        decoder: "paper" or "light".
        embedding: channels of the embedding for the kernel; 0 for no kernel.
        head_width: of the kernel's head; see `KernelHead`.
        normalisation: what the encoder's weights expect; it is kept with the weights.
    """

    channels = sum(BASES)
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: str = "mobilenet_v2",
        decoder: str = "paper",
        embedding: int = 0,
        head_width: int = 0,
        *,
        normalisation: str = "imagenet",
    ) -> None:
        super().__init__()
        for option, value, known in (
            ("encoder", encoder, ENCODERS), ("decoder", decoder, DECODERS),
            ("normalisation", normalisation, NORMALISATIONS),
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"`{option}` is {value!r}; choose one of {', '.join(known)}")
        self.encoder = ENCODERS[encoder]()
        self.decoder = DECODERS[decoder](self.encoder.channels, 3)
        width = self.decoder.widths[-1]
        self.head = KernelHead(width, embedding, head_width) if embedding else None
        self.frozen = False
        for name, values in zip(("mean", "std"), NORMALISATIONS[normalisation], strict=True):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1))

    def freeze(self) -> None:
        """Stop training the bases; only the head is trained from now on."""
        self.frozen = True
        for part in (self.encoder, self.decoder):
            part.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "BasisNet":
        """Set the mode; norms of frozen bases keep their statistics."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
            self.decoder.eval()
        return self

    def normalise(self, image: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        """Colours as the encoder expects them."""
        return (image.to(self.mean.dtype) - self.mean) / self.std

    @property
    def summary_channels(self) -> tuple[int, ...]:
        """Of each stage in a summary."""
        return self.encoder.channels[1:]

    def summary(self, image: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b f"]:
        """`summarise` of the encoder's stages, without the bases."""
        x = self.encoder.stem(self.normalise(image))
        return summarise([x, *self.encoder.rest(x)])

    def forward(self, image: UInt8[Tensor, "b 3 h w"]) -> Features:
        """Bases and, if there is a head, the kernel's maps."""
        colours = self.normalise(image)
        x = self.encoder.stem(colours)
        size = (image.shape[2], image.shape[3])
        maps = [x, *self.encoder.rest(x)]
        bases, last = self.decoder(maps, size, colours)
        embedding, amplitude = (None, None) if self.head is None else self.head(last)
        return Features(bases, embedding, amplitude, None if self.training else summarise(maps))
