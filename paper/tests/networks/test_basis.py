# SPDX-License-Identifier: Apache-2.0
"""The basis network with interpolated points as an input, and with dropout."""

import pytest
import torch

from deepbasis.nets.cost import cost
from deepbasis_paper.networks.basis import PaperBasisNet


def picture(height=50, width=70, batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, 3, height, width), generator=g, dtype=torch.uint8)


def depth_input(seed=0):
    """A scaffold, and where its points are."""
    g = torch.Generator().manual_seed(seed)
    depth = 1 + 4 * torch.rand(2, 1, 50, 70, generator=g)
    return depth, torch.rand(2, 1, 50, 70, generator=g) < 0.05


@torch.no_grad()
def test_depth_changes_the_bases_of_every_scale_from_the_start():
    """As much as another image does, to an order of magnitude."""
    torch.manual_seed(0)
    net = PaperBasisNet(depth_input=True).train()
    given = net(picture(), *depth_input()).bases
    other_depth = net(picture(), *depth_input(1)).bases
    other_image = net(picture(seed=1), *depth_input()).bases
    for one, by_depth, by_image in zip(given, other_depth, other_image, strict=True):
        ratio = (by_depth - one).std() / (by_image - one).std()
        assert 0.1 < ratio < 10


@torch.no_grad()
def test_both_depth_and_the_places_of_its_points_matter():
    torch.manual_seed(0)
    net = PaperBasisNet(depth_input=True).train()
    depth, measured = depth_input()
    given = net(picture(), depth, measured).bases
    for changed in ((2 * depth, measured), (depth, ~measured)):
        moved = net(picture(), *changed).bases
        assert all((a - b).abs().max() > 1e-3 for a, b in zip(given, moved, strict=True))


@torch.no_grad()
def test_the_merge_starts_as_the_image_plus_a_mixture_of_depth():
    """Written out: concatenate, then a 1x1 convolution."""
    torch.manual_seed(0)
    stem = PaperBasisNet(depth_input=True).depth_stem
    image, pair = torch.randn(2, 16, 25, 35), torch.randn(2, 2, 50, 70)
    features = torch.nn.functional.elu(stem.norm(stem.conv(pair)))
    weight = stem.merge.weight[:, :, 0, 0]
    assert weight.shape == (16, 16 + 32)
    want = torch.einsum("oc,bchw->bohw", weight, torch.cat([image, features], 1))
    torch.testing.assert_close(stem(image, pair), want, rtol=1e-4, atol=1e-5)
    assert torch.equal(weight[:, :16], torch.eye(16))
    assert float(weight[:, 16:].std()) == pytest.approx(0.35, rel=0.15)


def test_no_interpolated_depth_reaches_the_last_step_but_through_the_first_stage():
    """Otherwise a basis could be that depth itself, and least squares would return it."""
    torch.manual_seed(0)
    net = PaperBasisNet(depth_input=True).eval()
    with torch.no_grad():
        net.depth_stem.merge.weight[:, 16:] = 0
        without, given = net(picture()).bases, net(picture(), *depth_input()).bases
    assert all(torch.equal(a, b) for a, b in zip(without, given, strict=True))


@torch.no_grad()
def test_no_depth_is_the_same_as_an_empty_scaffold():
    net = PaperBasisNet(depth_input=True).eval()
    zeros = torch.zeros(2, 1, 50, 70)
    with_zeros = net(picture(), zeros, zeros.bool()).bases
    for a, b in zip(net(picture()).bases, with_zeros, strict=True):
        assert torch.equal(a, b)


def test_depth_for_an_rgb_network_is_refused():
    with pytest.raises(ValueError, match="takes the image alone"):
        PaperBasisNet()(picture(), torch.ones(2, 1, 50, 70), torch.ones(2, 1, 50, 70).bool())


@torch.no_grad()
def test_dropout_changes_passes_of_training_alone():
    net = PaperBasisNet(dropout=0.5)
    net.eval()
    assert torch.equal(net(picture()).bases[4], net(picture()).bases[4])
    net.decoder.dropout.train()
    assert not torch.equal(net(picture()).bases[4], net(picture()).bases[4])


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
