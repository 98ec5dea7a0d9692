# SPDX-License-Identifier: Apache-2.0
"""What a network costs, found out without running it."""

from copy import deepcopy
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from deepbasis.nets.basis import BasisNet
from deepbasis.nets.encoders import ENCODERS


class Cost(NamedTuple):
    """Numbers that tell how large a network is."""

    parameters: int
    flops: int
    """Operations for one image, a multiplication and an addition counted as two."""


def cost(net: nn.Module, size: tuple[int, int]) -> Cost:
    """Cost of a network for an 8-bit image of this height and width.

    The network is copied to torch's "meta" device, where tensors have shapes and no values.
    """
    on_paper = deepcopy(net).to("meta").eval()
    image = torch.empty(1, 3, *size, dtype=torch.uint8, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        on_paper(image)
    return Cost(sum(p.numel() for p in net.parameters()), counter.get_total_flops())


def table(size: tuple[int, int]) -> str:
    """Cost of every basis network, as text."""
    lines = [f"network              parameters  operations ({size[0]} x {size[1]} pixels)"]
    for encoder in ENCODERS:
        for depth_input in (False, True):
            parameters, flops = cost(BasisNet(encoder, depth_input=depth_input), size)
            name = f"{encoder} {'rgbd' if depth_input else 'rgb'}"
            lines.append(f"{name:<20} {parameters / 1e6:8.2f} M {flops / 1e9:9.2f} G")
    return "\n".join(lines)
