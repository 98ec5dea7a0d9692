# SPDX-License-Identifier: Apache-2.0
"""Encoders that take published weights, a decoder for any size, and the basis network."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from deepbasis import BasisFit
from deepbasis.nets import BasisNet, MobileNetV2, ResNet34, load_encoder_weights
from deepbasis.nets.cost import cost
from deepbasis.nets.decoder import BASES, JoinedConv

WEIGHTS = Path(__file__).parents[3] / "shared" / "weights" / "mobilenet_v2_imagenet.safetensors"


def picture(height=50, width=70, batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, 3, height, width), generator=g, dtype=torch.uint8)


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_the_published_ones():
    """3,504,872 and 21,797,672 with classifiers of 1000 classes (torchvision's documentation)."""
    last = 320 * 1280 + 2 * 1280
    assert count(MobileNetV2()) == 3_504_872 - last - (1280 * 1000 + 1000)
    assert count(ResNet34()) == 21_797_672 - (512 * 1000 + 1000)


@pytest.mark.parametrize("make", [MobileNetV2, ResNet34])
@pytest.mark.parametrize("size", [(64, 96), (50, 70), (33, 31)])
def test_features_have_the_strides_and_widths_they_say(make, size):
    encoder = make().eval()
    x = encoder.stem(torch.rand(1, 3, *size))
    for stride, width, feature in zip(
        (2, 4, 8, 16, 32), encoder.channels, [x, *encoder.rest(x)], strict=True
    ):
        assert feature.shape == (1, width, -(-size[0] // stride), -(-size[1] // stride))


@pytest.mark.parametrize("make", [MobileNetV2, ResNet34])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_published_files_load_with_what_a_classifier_needs_passed_over(make, suffix, tmp_path):
    torch.manual_seed(0)
    source, target = make(), make()
    state = dict(source.state_dict()) | {f"{name}0.weight": torch.ones(2) for name in make.unused}
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    load_encoder_weights(target, path)
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value)


def test_names_torchvision_uses():
    mobile, res = MobileNetV2().state_dict(), ResNet34().state_dict()
    for name in (
        "features.0.0.weight",
        "features.1.conv.1.weight",
        "features.17.conv.3.running_var",
    ):
        assert name in mobile
    for name in ("conv1.weight", "layer2.0.downsample.1.bias", "layer4.2.bn2.running_mean"):
        assert name in res


def test_weights_of_another_network_are_refused_by_name(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(ResNet34().state_dict(), path)
    with pytest.raises(ValueError, match=r"not a MobileNetV2: it lacks features.* it brings bn1"):
        load_encoder_weights(MobileNetV2(), path)
    state = MobileNetV2().state_dict()
    state["features.0.0.weight"] = torch.ones(8, 3, 3, 3)
    save_file(state, path)
    with pytest.raises(ValueError, match=r"features.0.0.weight is \[8, 3, 3, 3\], but"):
        load_encoder_weights(MobileNetV2(), path)
    with pytest.raises(FileNotFoundError, match="check --encoder-weights"):
        load_encoder_weights(MobileNetV2(), tmp_path / "none.pth")


def test_a_file_with_code_in_it_is_not_run(tmp_path):
    path = tmp_path / "evil.pth"
    torch.save({"features.0.0.weight": Path("x")}, path)
    with pytest.raises(ValueError, match="holds more than tensors, so it was not loaded"):
        load_encoder_weights(MobileNetV2(), path)


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the ImageNet weights are not here")
def test_imagenet_weights_load_and_tell_pictures_apart():
    encoder = MobileNetV2()
    load_encoder_weights(encoder, WEIGHTS)
    x = encoder.eval().stem((picture(64, 64).float() - 127.5) / 127.5)
    deepest = encoder.rest(x)[-1]
    assert deepest.isfinite().all()
    assert 0.05 < deepest.std() < 20


@pytest.mark.parametrize("encoder", ["mobilenet_v2", "resnet34"])
@pytest.mark.parametrize("size", [(64, 96), (50, 70), (33, 31)])
def test_bases_are_five_scales_of_62_channels_at_any_size(encoder, size):
    net = BasisNet(encoder).eval()
    bases = net(picture(*size))
    assert [b.shape[1] for b in bases] == list(BASES)
    assert sum(BASES) == net.channels == 62
    for stride, basis in zip((16, 8, 4, 2, 1), bases, strict=True):
        assert basis.shape[2:] == (-(-size[0] // stride), -(-size[1] // stride))
        assert basis.std() > 0


def test_depth_input_leaves_the_encoder_alone_until_trained():
    """At first it reaches the bases of full size only, through the skip connection."""
    torch.manual_seed(0)
    net = BasisNet(depth_input=True).eval()
    image, depth = picture(), 1 + torch.rand(2, 1, 50, 70)
    valid = depth > 1.5
    without, given = net(image), net(image, torch.where(valid, depth, 0), valid)
    assert all(torch.equal(a, b) for a, b in zip(without[:4], given[:4], strict=True))
    assert (without[4] - given[4]).abs().max() > 1e-4
    torch.nn.init.ones_(net.depth_stem.norm.weight)
    moved = net(image, torch.where(valid, depth, 0), valid)
    assert all((a - b).abs().max() > 1e-6 for a, b in zip(net(image), moved, strict=True))


def test_no_depth_is_the_same_as_an_empty_scaffold():
    net = BasisNet(depth_input=True).eval()
    torch.nn.init.ones_(net.depth_stem.norm.weight)
    zeros = torch.zeros(2, 1, 50, 70)
    for a, b in zip(net(picture()), net(picture(), zeros, zeros.bool()), strict=True):
        assert torch.equal(a, b)


def test_depth_for_an_rgb_network_and_unknown_choices_are_refused():
    for option in ("encoder", "normalisation"):
        with pytest.raises(ValueError, match=f"`{option}` is 'best'; choose one of"):
            BasisNet(**{option: "best"})
    with pytest.raises(ValueError, match="takes the image alone"):
        BasisNet()(picture(), torch.ones(2, 1, 50, 70), torch.ones(2, 1, 50, 70).bool())


def test_a_joined_convolution_is_that_of_both_maps_joined():
    torch.manual_seed(0)
    conv = JoinedConv(10, 6, 3, padding=1, bias=False).double()
    x, skip = (torch.randn(2, n, 7, 9, dtype=torch.float64, requires_grad=True) for n in (7, 3))
    plain = torch.nn.functional.conv2d(torch.cat([x, skip], 1), conv.weight, padding=1)
    torch.testing.assert_close(conv(x, skip), plain)
    inputs = (x, skip, conv.weight)
    for ours, theirs in zip(
        torch.autograd.grad(conv(x, skip).square().sum(), inputs),
        torch.autograd.grad(plain.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_cost_is_that_of_the_convolutions_added_up():
    """Counted a second time, from the shapes that pass through each convolution."""
    net, found = BasisNet(depth_input=True).eval(), []

    def count_one(conv, inputs, out):
        per_output = conv.in_channels // conv.groups * conv.kernel_size[0] * conv.kernel_size[1]
        found.append(2 * out[0].numel() * per_output)

    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(count_one)
    with torch.no_grad():
        net(picture(48, 64, batch=1))
    got = cost(BasisNet(depth_input=True), (48, 64))
    assert got.flops == sum(found)
    assert got.parameters == count(net)


def test_gradients_pass_through_fit_and_network_as_finite_differences_say():
    """One small case of the whole: network, ML fit, L1 loss; the derivative along one direction."""
    torch.manual_seed(0)
    net, layer = BasisNet().double().eval(), BasisFit(62).double().train()
    image = picture(32, 32, batch=1)
    truth = (1 + 3 * torch.rand(1, 1, 32, 32)).double()
    sparse = truth * (torch.rand(1, 1, 32, 32) < 0.5)
    weight = net.decoder.bases[2].weight

    def loss():
        return (layer(net(image), sparse).mean - truth.log()).square().mean()

    slope = torch.autograd.grad(loss(), weight)[0]
    direction = torch.randn_like(weight)
    step = 1e-5
    with torch.no_grad():
        weight += step * direction
        above = loss()
        weight -= 2 * step * direction
        below = loss()
    numeric = (above - below) / (2 * step)
    torch.testing.assert_close((slope * direction).sum(), numeric, rtol=1e-4, atol=1e-9)
    assert numeric.abs() > 1e-6
