# SPDX-License-Identifier: Apache-2.0
"""ENet's two branches, with its own output layer and with a fit in its place."""

import pytest
import torch

from deepbasis import BasisFit, fit, latent
from deepbasis.data.training import Item
from deepbasis.model import Completer
from deepbasis.networks import Architecture, TwoBranch
from deepbasis.train.loss import Loss
from models import set_prior

METHODS = ["enet", "enet-bdbf"]


@pytest.fixture
def item():
    g = torch.Generator().manual_seed(0)
    image = torch.randint(0, 255, (2, 3, 37, 51), generator=g, dtype=torch.uint8)
    depth = 2 + 6 * torch.rand(2, 1, 37, 51, generator=g)
    sparse = torch.where(torch.rand(2, 1, 37, 51, generator=g) < 0.2, depth, 0)
    empty = torch.zeros_like(depth)
    return Item(["a", "b"], image, depth, sparse, empty, empty > 0)


def make(method, width=4):
    torch.manual_seed(0)
    net = TwoBranch(Architecture(method, width=width))
    net.set_start(1.5)
    return net


def test_parameters_at_full_width_are_the_published_131_7_million_without_the_positions():
    """Each block's two convolutions and shortcuts see three more channels in the paper."""
    with torch.device("meta"):
        net = TwoBranch(Architecture("enet"))
    outputs = sum(64 * 2**step for step in range(5))
    positions = 2 * (2 * 2 * 9 * 3 * outputs + 3 * outputs)
    count = sum(p.numel() for p in net.parameters())
    assert (count + positions) / 1e6 == pytest.approx(131.7, abs=0.1)


@torch.no_grad()
@pytest.mark.parametrize("size", [(64, 96), (33, 45), (50, 31)])
@pytest.mark.parametrize("method", METHODS)
def test_any_size_goes_in_and_comes_out(method, size):
    net = make(method).eval()
    image = torch.zeros(1, 3, *size, dtype=torch.uint8)
    sparse = torch.zeros(1, 1, *size)
    sparse[..., ::3, ::3] = 3.0
    features = net.bases(image, sparse)
    for stride, feature in zip((32, 16, 8, 4, 2, 1), features, strict=True):
        assert feature.shape == (1, 4 * stride, -(-size[0] // stride), -(-size[1] // stride))
    for part in net(image, sparse):
        assert part.shape == (1, 1, *size)
        assert part.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_the_answer_weighs_the_branches_by_the_softmax_of_their_confidences(method, item):
    net = make(method)
    out = []
    net.second.register_forward_hook(lambda *parts: out.append(parts[2]))
    (fused, colour, depth), found = net.run(item.image, item.sparse)
    if found is None:
        head = net.head(net.bases(item.image, item.sparse / net.unit)[-1])
        trust = head[:, 1:]
        relative = torch.nn.functional.softplus(head[:, :1]) / torch.tensor(2.0).log()
        torch.testing.assert_close(colour, net.unit * relative)
    else:
        trust = torch.tanh(1 / (colour * found.prediction.var.sqrt()))
        assert 0 < trust.min() < trust.max() < 1
    share = torch.sigmoid(trust - out[0][:, 1:])  # the softmax of two
    torch.testing.assert_close(fused, share * colour + (1 - share) * depth)
    assert (colour - depth).abs().max() > 0.1


@torch.no_grad()
def test_the_fit_is_that_of_the_last_features_to_the_points(item):
    net = make("enet-bdbf").train()
    (_, colour, _), found = net.run(item.image, item.sparse)
    features = net.bases(item.image, item.sparse / net.unit)[-1].double()
    for i in range(2):
        known = item.sparse[i, 0] > 0
        phi = torch.cat([torch.ones_like(features[i, :1]), features[i]]).flatten(1).T
        z = item.sparse[i, 0][known].double().log()
        weights = torch.linalg.lstsq(phi[known.flatten()], z).solution
        want = (phi @ weights).view(37, 51).exp()
        torch.testing.assert_close(colour[i, 0].double(), want, rtol=1e-3, atol=1e-3)
    layer = BasisFit(4).train()
    assert torch.equal(layer(features.float(), item.sparse).var, found.prediction.var)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_the_weighted_sum_and_reaches_every_weight_and_falls(method, item):
    net = make(method)
    loss = Loss(net)
    loss.side = 0.2
    with torch.no_grad():
        parts = [(one - item.depth).square().flatten(1).mean(1) for one in net.run(*item[1:4:2])[0]]
        want = 0.6 * parts[0] + 0.2 * parts[1] + 0.2 * parts[2]
        torch.testing.assert_close(loss(item), want)
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    before = loss(item).mean()
    before.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    adam.step()
    assert float(loss(item).mean().detach()) < float(before.detach())


def test_without_its_own_loss_the_colour_branch_learns_through_depth_confidence_and_features(item):
    """The derivative of the loss along one direction of its first layer, by finite differences."""
    net = make("enet-bdbf").double().eval()
    net.last.train()
    loss, weight = Loss(net), net.bases.first[0].weight
    item = item._replace(depth=item.depth.double(), sparse=item.sparse.double())
    slope = torch.autograd.grad(loss(item).sum(), weight)[0]
    direction, step, found = torch.randn_like(weight), 1e-6, []
    with torch.no_grad():
        for sign in (1, -1):
            weight += sign * step * direction
            found.append(float(loss(item).sum()))
            weight -= sign * step * direction
    numeric = (found[0] - found[1]) / (2 * step)
    assert float((slope * direction).sum()) == pytest.approx(numeric, rel=1e-3)
    assert abs(numeric) > 1e-4


@pytest.mark.parametrize("method", [*METHODS, "ncnn"])
def test_saved_and_loaded_it_predicts_the_same_bits(method, item, tmp_path):
    model = Completer(Architecture(method, width=4))
    model.networks[0].set_start(1.5)
    if method != "ncnn":
        for number, buffer in enumerate(model.buffers()):
            buffer.copy_(buffer + 0.1 if buffer.dim() == 1 and number % 2 else buffer)
    model.save(tmp_path / "model.safetensors")
    again = Completer.load(tmp_path / "model.safetensors")
    for one, other in zip(
        model(item.image, item.sparse), again(item.image, item.sparse), strict=True
    ):
        assert torch.equal(one, other)


def test_complete_tells_of_the_fit_and_gives_the_fused_depth(item):
    model = Completer(Architecture("enet-bdbf", width=4))
    network = model.networks[0]
    network.set_start(1.5)
    set_prior(network.last)
    image = item.image[0].permute(1, 2, 0).numpy()
    out = model.complete(image, item.sparse[0, 0].numpy())
    fused = network.run(item.image[:1], item.sparse[:1])[0].fused
    torch.testing.assert_close(torch.from_numpy(out.depth), fused[0, 0].detach())
    assert isinstance(out.posterior, fit.Posterior)
    assert out.posterior.mean.shape == (1, 5)
    assert (out.std > 0).all()
    plain = Completer(Architecture("enet", width=4)).complete(image, item.sparse[0, 0].numpy())
    assert plain.posterior is None
    assert float(plain.latent_var.std()) == 0
    assert latent.measured(torch.from_numpy(plain.depth)).all()


def test_local_errors_are_refused():
    model = Completer(Architecture("enet-bdbf", width=4))
    with pytest.raises(ValueError, match="enet-bdbf takes errors for independent"):
        model.assume("local")
    assert model.assume("independent", "paper").networks[0].last.variance == "paper"
