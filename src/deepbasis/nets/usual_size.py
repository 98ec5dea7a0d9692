# SPDX-License-Identifier: Apache-2.0
"""The size of image that a network was trained on, and reducing larger images to about that size.

An encoder recognises things by their size in pixels. In an image twice as large as those of the
training everything seems to be near, and depth between few points is half as accurate.
"""

import math

import torch.nn.functional as F
from torch import Tensor

from deepbasis.nets.known import Known
from deepbasis.shapes import Float

# Images that are this many times as large as usual, or larger, are reduced to this. At 1 depth is
# best with few points, at 1.3 with thousands of them; `benchmarks/unfamiliar.py --sizes`.
LARGEST = 1.2


class UsualSize(Known):
    """Size of the training frames; unknown until it is stored or loaded."""

    size: Tensor | None
    """Height and width."""

    def __init__(self) -> None:
        super().__init__("size")

    def reduce(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        """Images as the network sees them, with the height and width in proportion."""
        if self.size is None:
            return image
        height, width = image.shape[2:]
        factor = LARGEST * math.sqrt(float(self.size.prod()) / (height * width))
        if factor >= 1:
            return image
        size = (max(round(factor * height), 1), max(round(factor * width), 1))
        return F.interpolate(image.float(), size, mode="bilinear", antialias=True)
