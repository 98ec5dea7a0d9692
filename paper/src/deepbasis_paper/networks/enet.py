# SPDX-License-Identifier: Apache-2.0
"""ENet, the two-branch backbone of PENet (Hu et al., ICRA 2021), without its output layers.

Each branch is an encoder of five steps down, two residual blocks each, and a decoder of five
transposed convolutions up with summed skips. The first looks at colours and sparse depth; the
second at the depth that the first found and the sparse depth, and its encoder takes in the first
one's decoder. Every convolution of an encoder also sees the position in space of each pixel with a
measurement, at its own scale: of several measurements the nearest, as the authors do.

Our networks are not told the camera, so positions are those of one with its centre in the middle of
the image and a focal length of half the width. That is no restriction for frames of one camera: its
positions are linear combinations of ours, (x, y, z) = (a x' + b z', c y' + d z', z'), and the
convolutions that see them are linear.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis.nets.decoder import JoinedConv
from deepbasis.shapes import Float, UInt8

# Steps of each encoder and decoder.
STEPS = 5
# Channels of a position.
POSITION = 3


def widths(width: int) -> list[int]:
    """Channels at strides 1, 2, 4, 8, 16 and 32."""
    return [width * 2**step for step in range(STEPS + 1)]


def first(into: int, out: int) -> nn.Sequential:
    """The first layer of a branch, at full size."""
    conv = nn.Conv2d(into, out, 5, padding=2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def positions(sparse: Float[Tensor, "b 1 h w"]) -> list[Float[Tensor, "b 3 _ _"]]:
    """Positions at strides 1, 2, 4, ..., 32, in the unit of depth; 0 where nothing is measured."""
    near = torch.where(sparse > 0, -sparse, -torch.inf)  # its maximum is the nearest
    found = []
    for step in range(STEPS + 1):
        near = F.max_pool2d(near, 2, ceil_mode=True) if step else near
        z = torch.where(near.isfinite(), -near, 0)
        height, width = z.shape[2:]
        x = torch.arange(width, device=z.device, dtype=z.dtype) - (width - 1) / 2
        y = torch.arange(height, device=z.device, dtype=z.dtype)[:, None] - (height - 1) / 2
        found.append(torch.cat([x * z, y * z, z * width / 2], 1) * (2 / width))
    return found


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut, all of which see positions too."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = JoinedConv(into + POSITION, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = JoinedConv(out + POSITION, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        shortcut = stride != 1 or into != out
        self.stride = stride
        self.shortcut = JoinedConv(into + POSITION, out, 1, bias=False) if shortcut else None
        self.shortcut_norm = nn.BatchNorm2d(out) if shortcut else None

    def forward(self, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Features to features; positions at the sizes before and after the block."""
        kept = x
        if self.shortcut is not None and self.shortcut_norm is not None:
            # Not a 1x1 convolution with a stride: with few channels in channels-last layout,
            # oneDNN's gradient of it writes outside its memory (PyTorch 2.13).
            step = (..., slice(None, None, self.stride), slice(None, None, self.stride))
            kept = self.shortcut_norm(self.shortcut(x[step], before[step]))
        x = self.bn1(self.conv1(x, before)).relu()
        return (kept + self.bn2(self.conv2(x, after))).relu()


class Down(nn.Module):
    """One step of an encoder, to half the size."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.first, self.second = Block(into, out, 2), Block(out, out, 1)

    def forward(self, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Features to features; positions at both sizes."""
        return self.second(self.first(x, before, after), after, after)


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
        self.down = nn.ModuleList(Down(into, out) for into, out in pairwise(sizes))
        self.up = nn.ModuleList(UpBlock(size) for size in sizes[:0:-1])

    def forward(
        self, image: UInt8[Tensor, "b 3 h w"], sparse: Float[Tensor, "b 1 h w"]
    ) -> list[Float[Tensor, "b _ _ _"]]:
        """Features of the decoder, coarse to fine; depth that is not known is 0."""
        seen = image.to(sparse.dtype) / 127.5 - 1
        skips = [self.first(torch.cat([seen, sparse], 1))]
        for step, places in zip(self.down, pairwise(positions(sparse)), strict=True):
            skips.append(step(skips[-1], *places))
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
            Down(into, out) for into, out in zip(joined, sizes[1:], strict=True)
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
        first, *places = pairwise(positions(sparse))
        x = self.down[0](x, *first)
        for step, other, pair in zip(self.down[1:], others[-2::-1], places, strict=True):
            skips.append(x)
            x = step(torch.cat([other, x], 1), *pair)
        x = x + deepest
        for up, skip in zip(self.up, reversed(skips), strict=True):
            x = up(x, skip)
            if skip is not skips[0]:
                x = x + skip
        return self.head(x)
