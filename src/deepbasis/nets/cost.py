# SPDX-License-Identifier: Apache-2.0
"""Parameters and operations of a network, counted without running it."""

from copy import deepcopy
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from deepbasis.nets.basis import BasisNet
from deepbasis.nets.encoders import ENCODERS


class Cost(NamedTuple):
    """Size of a network."""

    parameters: int
    flops: int
    """Operations for one image, where a multiply-add counts as two."""


def cost(net: nn.Module, size: tuple[int, int]) -> Cost:
    """Cost of a network for an 8-bit image of this height and width.

    The network is copied to torch's "meta" device, where tensors have shapes but no values.
    """
    on_meta = deepcopy(net).to("meta").eval()
    image = torch.empty(1, 3, *size, dtype=torch.uint8, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        on_meta(image)
    return Cost(sum(p.numel() for p in net.parameters()), counter.get_total_flops())


def table(size: tuple[int, int]) -> str:
    """Cost of the network with each encoder, otherwise as it is trained by default, as text."""
    lines = [f"encoder              parameters  operations ({size[0]} x {size[1]} pixels)"]
    for encoder in ENCODERS:
        parameters, flops = cost(BasisNet(encoder, "light", 8, 32), size)
        lines.append(f"{encoder:<20} {parameters / 1e6:8.2f} M {flops / 1e9:9.2f} G")
    return "\n".join(lines)
