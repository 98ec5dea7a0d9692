# SPDX-License-Identifier: Apache-2.0
"""ENet, the two-branch backbone of PENet (Hu et al., ICRA 2021), without its output layers.

Each branch is an encoder of five steps down, two residual blocks each, and a decoder of five
transposed convolutions up with summed skips. The first looks at colours and sparse depth; the
second at the depth that the first found and the sparse depth, and its encoder takes in the first
one's decoder. The paper writes the position of the pixel in space to the input of each block;
here that is left out, since our networks are not told the camera. It was 0.4 M of 131.7 M
parameters.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from deepbasis.nets.encoders import BasicBlock
from deepbasis.shapes import Float, UInt8

# Steps of each encoder and decoder.
STEPS = 5


def widths(width: int) -> list[int]:
    """Channels at strides 1, 2, 4, 8, 16 and 32."""
    return [width * 2**step for step in range(STEPS + 1)]


def first(into: int, out: int) -> nn.Sequential:
    """The first layer of a branch, at full size."""
    conv = nn.Conv2d(into, out, 5, padding=2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def down(into: int, out: int) -> nn.Sequential:
    """One step of an encoder, to half the size."""
    return nn.Sequential(BasicBlock(into, out, 2), BasicBlock(out, out, 1))


class UpBlock(nn.Module):
    """One step of a decoder, to twice the size and half the channels."""

    def __init__(self, into: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(into, into // 2, 5, 2, 2, bias=False)
        self.norm = nn.BatchNorm2d(into // 2)

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        """Features at the size of `like`, which may be odd."""
        return self.norm(self.conv(x, list(like.shape[2:]))).relu()


class ColourBranch(nn.Module):
    """Image and sparse depth to features at strides 32, 16, 8, 4, 2 and 1.

    Args:
        width: channels at full size; each step down doubles them. The paper has 32.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = widths(width)
        self.first = first(4, width)
        self.down = nn.ModuleList(down(into, out) for into, out in pairwise(sizes))
        self.up = nn.ModuleList(UpBlock(size) for size in sizes[:0:-1])

    def forward(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> list[Float[Tensor, "b _ _ _"]]:
        """Features of the decoder, coarse to fine; depth that is not known is 0."""
        seen = image.to(sparse.dtype) / 127.5 - 1
        skips = [self.first(torch.cat([seen, sparse], 1))]
        for step in self.down:
            skips.append(step(skips[-1]))
        found = [skips.pop()]
        for up, skip in zip(self.up, reversed(skips), strict=True):
            found.append(up(found[-1], skip) + skip)
        return found


class DepthBranch(nn.Module):
    """A first depth, sparse depth and the colour branch's features to depth and confidence."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = widths(width)
        self.first = first(2, width)
        # All steps but the first take the other branch's features as well as their own.
        joined = [width, *(2 * size for size in sizes[1:-1])]
        self.down = nn.ModuleList(
            down(into, out) for into, out in zip(joined, sizes[1:], strict=True)
        )
        self.up = nn.ModuleList(UpBlock(size) for size in sizes[:0:-1])
        self.head = nn.Conv2d(width, 2, 3, padding=1)

    def forward(
        self,
        depth: Float[Tensor, "b 1 h w"],
        sparse: Float[Tensor, "b 1 h w"],
        features: list[Float[Tensor, "b _ _ _"]],
    ) -> Float[Tensor, "b 2 h w"]:
        """What stands for depth and confidence, not yet in any unit."""
        deepest, *others = features
        x = self.first(torch.cat([sparse, depth], 1))
        skips = [x]  # only for its size: the paper joins nothing at the last step
        x = self.down[0](x)
        for step, other in zip(self.down[1:], others[-2::-1], strict=True):
            skips.append(x)
            x = step(torch.cat([other, x], 1))
        x = x + deepest
        for up, skip in zip(self.up, reversed(skips), strict=True):
            x = up(x, skip)
            if skip is not skips[0]:
                x = x + skip
        return self.head(x)
