# SPDX-License-Identifier: Apache-2.0
"""Encoders that take published weights, a decoder for any size, and the basis network."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from deepbasis import BasisFit
from deepbasis.nets import (
    BasisNet,
    EfficientNetLite0,
    MobileNetV2,
    ResNet34,
    load_encoder_weights,
)
from deepbasis.nets.basis import KernelHead
from deepbasis.nets.cost import cost
from deepbasis.nets.decoder import BASES, JoinedConv
from deepbasis.nets.folding import FoldedNetwork, fold
from deepbasis.points import Points


def picture(height=50, width=70, batch=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, 3, height, width), generator=g, dtype=torch.uint8)


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_the_published_ones():
    """3,504,872 and 21,797,672 with classifiers of 1000 classes (torchvision's documentation), and
    4,652,008 of EfficientNet-Lite0 (its published file).
    """
    last = 320 * 1280 + 2 * 1280
    assert count(MobileNetV2()) == 3_504_872 - last - (1280 * 1000 + 1000)
    assert count(EfficientNetLite0()) == 4_652_008 - last - (1280 * 1000 + 1000)
    assert count(ResNet34()) == 21_797_672 - (512 * 1000 + 1000)


@pytest.mark.parametrize("make", [MobileNetV2, EfficientNetLite0, ResNet34])
@pytest.mark.parametrize("size", [(64, 96), (50, 70), (33, 31)])
def test_features_have_the_strides_and_widths_they_say(make, size):
    encoder = make().eval()
    x = encoder.stem(torch.rand(1, 3, *size))
    for stride, width, feature in zip(
        (2, 4, 8, 16, 32), encoder.channels, [x, *encoder.rest(x)], strict=True
    ):
        assert feature.shape == (1, width, -(-size[0] // stride), -(-size[1] // stride))


@pytest.mark.parametrize("make", [MobileNetV2, EfficientNetLite0, ResNet34])
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


def test_names_that_published_files_use():
    mobile, res = MobileNetV2().state_dict(), ResNet34().state_dict()
    for name in (
        "_conv_stem.weight",
        "_blocks.15._bn2.running_var",
        "_blocks.1._expand_conv.weight",
    ):
        assert name in EfficientNetLite0().state_dict()
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
    with pytest.raises(ValueError, match=r"not a MobileNetV2: it lacks features.* it also has bn1"):
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


@pytest.mark.parametrize("encoder", ["mobilenet_v2", "efficientnet_lite0", "resnet34"])
@pytest.mark.parametrize("decoder", ["paper", "light"])
@pytest.mark.parametrize("size", [(64, 96), (50, 70), (33, 31)])
def test_bases_are_five_scales_of_62_channels_at_any_size(encoder, decoder, size):
    net = BasisNet(encoder, decoder, 8).eval()
    bases, embedding, amplitude, _ = net(picture(*size))
    assert embedding.shape == (2, 8, *size)
    assert amplitude.shape == (2, 1, *size)
    assert (amplitude > 0).all()
    assert [b.shape[1] for b in bases] == list(BASES)
    assert sum(BASES) == net.channels == 62
    for stride, basis in zip((16, 8, 4, 2, 1), bases, strict=True):
        assert basis.shape[2:] == (-(-size[0] // stride), -(-size[1] // stride))
        assert basis.std() > 0


def test_unknown_choices_are_refused():
    for option in ("encoder", "decoder", "normalisation"):
        with pytest.raises(ValueError, match=f"`{option}` is 'best'; choose one of"):
            BasisNet(**{option: "best"})


@pytest.mark.parametrize("size", [(9, 12), (8, 13)])
@torch.no_grad()
def test_the_surroundings_of_a_pixel_add_to_its_embedding(size):
    torch.manual_seed(0)
    plain, wide = KernelHead(6, 2).double(), KernelHead(6, 2, 4).double()
    wide.load_state_dict(wide.state_dict() | plain.state_dict())
    x = torch.randn(2, 6, *size).double()
    for one, other in zip(wide(x), plain(x), strict=True):
        assert torch.equal(one, other)  # at first they add nothing
    first, _, second, _, last = wide.surroundings
    for weights in (last.weight, last.bias):
        weights.normal_()

    # Means of 2 x 2 pixels, and of those that exist at the border, one by one.
    height, width = size
    rows = [slice(v, v + 2) for v in range(0, height, 2)]
    columns = [slice(u, u + 2) for u in range(0, width, 2)]
    small = torch.stack(
        [torch.stack([x[:, :, v, u].mean((2, 3)) for u in columns], -1) for v in rows], 2
    )
    more = last(F.elu(second(F.elu(first(small)))))
    more = F.interpolate(more, size, mode="bilinear")
    want = plain.mix(x) + more
    embedding, amplitude = wide(x)
    torch.testing.assert_close(embedding, want[:, :-1])
    torch.testing.assert_close(amplitude.log(), 3 * (want[:, -1:] / 3).tanh())


@pytest.mark.parametrize(
    "encoder",
    ["mobilenet_v2", "efficientnet_lite0", pytest.param("resnet34", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("decoder", ["paper", "light"])
@torch.no_grad()
def test_a_folded_network_makes_the_same_of_an_image(encoder, decoder):
    torch.manual_seed(0)
    net = BasisNet(encoder, decoder, 8).double().train()
    for _ in range(3):
        net(picture())  # so that the norms know some statistics
    for norm in (m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    want = net.eval()(picture())
    have = fold(net)(picture())
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in fold(net).modules())
    for one, other in zip([*have.bases, *have[1:]], [*want.bases, *want[1:]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_folded_network_follows_its_weights():
    cache, net = FoldedNetwork(), BasisNet(decoder="light").eval()
    first = cache.of(net)
    assert cache.of(net) is first
    net.decoder.bases[0].bias.add_(1)
    bases, want = cache.of(net)(picture()).bases, net(picture()).bases
    torch.testing.assert_close(bases[0], want[0], rtol=1e-4, atol=1e-5)


def test_the_light_decoder_costs_less_than_the_papers():
    paper, light = (cost(BasisNet(decoder=d), (64, 96)) for d in ("paper", "light"))
    assert light.flops < 0.4 * paper.flops


def test_a_joined_convolution_is_that_of_both_maps_joined():
    torch.manual_seed(0)
    conv = JoinedConv(10, 6, 3, padding=1, bias=False).double()
    x, skip = (torch.randn(2, n, 7, 9, dtype=torch.float64, requires_grad=True) for n in (7, 3))
    plain = F.conv2d(torch.cat([x, skip], 1), conv.weight, padding=1)
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
    net, found = BasisNet().eval(), []

    def count_one(conv, inputs, out):
        per_output = conv.in_channels // conv.groups * conv.kernel_size[0] * conv.kernel_size[1]
        found.append(2 * out[0].numel() * per_output)

    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(count_one)
    with torch.no_grad():
        net(picture(48, 64, batch=1))
    got = cost(BasisNet(), (48, 64))
    assert got.flops == sum(found)
    assert got.parameters == count(net)


def test_gradients_pass_through_fit_and_network_as_finite_differences_say():
    """One small case of the whole: network, ML fit, squared loss; the derivative in one direction.

    Batch norm uses the batch's statistics, as in training. With the statistics of an untrained
    network the bases of the coarse scales are a thousand times smaller than the constant, and the
    fit is too badly conditioned for finite differences. The direction changes the decoder alone,
    whose ELU has a continuous derivative; ReLU6 in the encoder does not.
    """
    torch.manual_seed(0)
    net, layer = BasisNet().double().train(), BasisFit(62).double().train()
    image = picture(64, 64, batch=2)
    truth = (1 + 3 * torch.rand(2, 1, 64, 64)).double()
    sparse = truth * (torch.rand(2, 1, 64, 64) < 0.25)
    weights = [p for p in net.decoder.parameters() if p.ndim == 4]
    noise = [torch.randn_like(p) for p in weights]
    directions = [x * (p.detach().norm() / x.norm()) for p, x in zip(weights, noise, strict=True)]

    def loss():
        return (layer(net(image).bases, sparse).mean - truth.log()).square().mean()

    def loss_at(step):
        moved = [p + step * x for p, x in zip(weights, directions, strict=True)]
        with torch.no_grad():
            for p, new in zip(weights, moved, strict=True):
                p.copy_(new)
            return loss()

    with torch.no_grad():
        observed = layer.observe(net(image).bases, Points.from_maps(sparse), (64, 64))
        phi = observed.phi * observed.weight[..., None]
    cond = float(torch.linalg.cond(phi).max())
    assert cond < 100
    slopes = torch.autograd.grad(loss(), weights)
    exact = sum((s * x).sum() for s, x in zip(slopes, directions, strict=True))
    # The fit amplifies rounding by `cond`. Truncation is of order step^2 and rounding of order
    # eps cond / step; both are small where they are equal.
    step = (torch.finfo(torch.float64).eps * cond) ** (1 / 3)
    numeric = (loss_at(step) - loss_at(-2 * step)) / (2 * step)  # the second undoes the first
    torch.testing.assert_close(exact, numeric, rtol=1e-4, atol=0)
    assert numeric.abs() > 1e-3
