# SPDX-License-Identifier: Apache-2.0
"""The size of image that a network was trained on, and reducing larger images to about that size.

An encoder recognises things by their size in pixels. In an image much larger than those of the
training everything seems to be near, and depth between few points is less accurate.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.nets.known import Known
from deepbasis.shapes import UInt8

# Images with more than the usual number of pixels times the square of this are reduced to that. In
# trials depth was best at 1 with few points, and at 1.3 with thousands of them.
LARGEST = 1.2
# Sides become multiples of the encoder's largest stride, so that no map extends beyond the image.
STRIDE = 32


class UsualSize(Known):
    """Size of the training frames; unknown until it is stored or loaded."""

    size: Tensor | None
    """Height and width."""

    def __init__(self) -> None:
        super().__init__("size")

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Height and width at which the network sees images of this height and width."""
        if self.size is None:
            return height, width
        factor = LARGEST * math.sqrt(float(self.size.prod()) / (height * width))
        if factor >= 1:
            return height, width
        strides = (max(round(factor * side / STRIDE), 1) for side in (height, width))
        rows, columns = (STRIDE * count for count in strides)
        return min(rows, height), min(columns, width)

    def reduce(self, image: UInt8[Tensor, "b 3 h w"]) -> UInt8[Tensor, "b 3 _ _"]:
        """Images as the network sees them."""
        size = self.size_of(image.shape[2], image.shape[3])
        if size == image.shape[2:]:
            return image
        small = F.interpolate(image.float(), size, mode="bilinear", antialias=True)
        return small.round().to(torch.uint8)
