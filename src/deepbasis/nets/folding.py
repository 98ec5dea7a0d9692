# SPDX-License-Identifier: Apache-2.0
"""A basis network for inference: the same numbers in less time."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from deepbasis.nets.basis import BasisNet


def fold(net: BasisNet) -> BasisNet:
    """A copy in which each batch norm is a part of the convolution before it, channels last.

    Normalisation with fixed statistics is linear, so that it costs a pass over the features for
    nothing; with channels last, convolutions do not reorder their input.
    """
    folded = deepcopy(net).eval()
    for module in folded.modules():
        for conv, norm in pairwise(module.named_children()):
            if isinstance(conv[1], nn.Conv2d) and isinstance(norm[1], nn.BatchNorm2d):
                setattr(module, conv[0], fuse_conv_bn_eval(conv[1], norm[1]))
                setattr(module, norm[0], nn.Identity())
    return folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class FoldedNetwork:
    """`fold` of a network, made when it is first needed and again after its weights changed."""

    def __init__(self) -> None:
        self.folded: BasisNet | None = None
        self.made_from: list[tuple[int, int]] = []

    def of(self, net: Any) -> Any:
        """The folded network; a third-party network is used as it is."""
        if not isinstance(net, BasisNet):
            return net
        state = [(tensor.data_ptr(), tensor._version) for tensor in net.state_dict().values()]
        if self.folded is None or state != self.made_from:
            self.folded, self.made_from = fold(net), state
        return self.folded
