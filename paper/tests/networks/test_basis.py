# SPDX-License-Identifier: Apache-2.0
"""The basis network with interpolated points as an input, and with dropout."""

import pytest
import torch

from deepbasis.nets.cost import cost
from deepbasis_paper.networks.basis import PaperBasisNet


def picture(height=50, width=70, batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, 3, height, width), generator=g, dtype=torch.uint8)


@torch.no_grad()
def test_depth_input_leaves_the_encoder_alone_until_trained():
    """At first it reaches the bases of full size only, through the skip connection."""
    torch.manual_seed(0)
    net = PaperBasisNet(depth_input=True).eval()
    image, depth = picture(), 1 + torch.rand(2, 1, 50, 70)
    valid = depth > 1.5
    without, given = net(image), net(image, torch.where(valid, depth, 0), valid)
    assert all(torch.equal(a, b) for a, b in zip(without[:4], given[:4], strict=True))
    assert (without[4] - given[4]).abs().max() > 1e-4
    torch.nn.init.ones_(net.depth_stem.norm.weight)
    moved = net(image, torch.where(valid, depth, 0), valid)
    assert all((a - b).abs().max() > 1e-6 for a, b in zip(net(image), moved, strict=True))


@torch.no_grad()
def test_no_depth_is_the_same_as_an_empty_scaffold():
    net = PaperBasisNet(depth_input=True).eval()
    torch.nn.init.ones_(net.depth_stem.norm.weight)
    zeros = torch.zeros(2, 1, 50, 70)
    for a, b in zip(net(picture()), net(picture(), zeros, zeros.bool()), strict=True):
        assert torch.equal(a, b)


def test_depth_for_an_rgb_network_is_refused():
    with pytest.raises(ValueError, match="takes the image alone"):
        PaperBasisNet()(picture(), torch.ones(2, 1, 50, 70), torch.ones(2, 1, 50, 70).bool())


@torch.no_grad()
def test_dropout_changes_passes_of_training_alone():
    net = PaperBasisNet(dropout=0.5)
    net.eval()
    assert torch.equal(net(picture())[4], net(picture())[4])
    net.decoder.dropout.train()
    assert not torch.equal(net(picture())[4], net(picture())[4])


@torch.no_grad()
def test_cost_is_that_of_the_convolutions_added_up():
    """Counted a second time, from the shapes that pass through each convolution."""
    net, found = PaperBasisNet(depth_input=True).eval(), []

    def count_one(conv, inputs, out):
        per_output = conv.in_channels // conv.groups * conv.kernel_size[0] * conv.kernel_size[1]
        found.append(2 * out[0].numel() * per_output)

    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(count_one)
    net(picture(48, 64, batch=1))
    got = cost(PaperBasisNet(depth_input=True), (48, 64))
    assert got.flops == sum(found)
    assert got.parameters == sum(p.numel() for p in net.parameters())
