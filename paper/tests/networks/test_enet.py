# SPDX-License-Identifier: Apache-2.0
"""ENet's two branches, with its own output layer and with a fit in its place."""

import pytest
import torch

from deepbasis import BasisFit, fit, latent
from deepbasis.points import Points
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import ConvBranches, Given, PaperArchitecture, new_network
from deepbasis_paper.networks.enet import positions
from models import set_prior

METHODS = ["enet", "enet-bdbf"]


def make(method, width=4):
    torch.manual_seed(0)
    net = new_network(architecture(method, width))
    net.set_start(1.5)
    return net


def architecture(method, width=4):
    return PaperArchitecture(method=method, width=width, errors="independent")


def answer(net, image, sparse):
    return net.answer(Given(image, Points.from_maps(sparse)))


def test_parameters_at_full_width_are_the_published_131_7_million():
    with torch.device("meta"):
        net = ConvBranches(architecture("enet", 32))
    count = sum(p.numel() for p in net.parameters())
    assert count / 1e6 == pytest.approx(131.7, abs=0.1)


def test_positions_are_those_of_the_nearest_points_pixel_by_pixel():
    """Against loops; (x, y, z) = ((u - cu) z / f, (v - cv) z / f, z), f half the width."""
    torch.manual_seed(0)
    sparse = torch.where(torch.rand(1, 1, 13, 18) < 0.1, 1 + torch.rand(1, 1, 13, 18), 0)
    for step, got in enumerate(positions(sparse)):
        height, width = -(-13 // 2**step), -(-18 // 2**step)
        assert got.shape == (1, 3, height, width)
        for v in range(height):
            for u in range(width):
                rows = slice(v * 2**step, (v + 1) * 2**step)
                block = sparse[0, 0, rows, u * 2**step : (u + 1) * 2**step]
                near = float(block[block > 0].min()) if (block > 0).any() else 0.0
                x, y = ((u - (width - 1) / 2), (v - (height - 1) / 2))
                want = [x * near * 2 / width, y * near * 2 / width, near]
                assert got[0, :, v, u].tolist() == pytest.approx(want, abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_both_branches_see_positions(method, item):
    """Without the weights of positions, other depths are found."""
    net = make(method).eval()
    before = net.branches(item.image, item.sparse)
    for branch in (net.colour, net.depth):
        for step in branch.down:
            for conv in (step.first.conv1, step.first.conv2, step.second.conv1, step.second.conv2):
                assert conv.weight[:, -3:].abs().min() > 0
                conv.weight[:, -3:] = 0
        after = net.branches(item.image, item.sparse)
        assert (after.depth - before.depth).abs().max() > 1e-5
        before = after


@torch.no_grad()
@pytest.mark.parametrize("size", [(64, 96), (33, 45), (50, 31)])
@pytest.mark.parametrize("method", METHODS)
def test_any_size_goes_in_and_comes_out(method, size):
    net = make(method).eval()
    image = torch.zeros(1, 3, *size, dtype=torch.uint8)
    sparse = torch.zeros(1, 1, *size)
    sparse[..., ::3, ::3] = 3.0
    features = net.features(image, sparse)
    for stride, feature in zip((32, 16, 8, 4, 2, 1), features, strict=True):
        assert feature.shape == (1, 4 * stride, -(-size[0] // stride), -(-size[1] // stride))
    for part in answer(net, image, sparse).prediction:
        assert part.shape == (1, 1, *size)
        assert part.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_the_result_weighs_the_branches_by_the_softmax_of_their_confidences(method, item):
    net = make(method)
    out = []
    net.depth.register_forward_hook(lambda *parts: out.append(parts[2]))
    fused, colour, depth = net.branches(item.image, item.sparse)
    features = net.features(item.image, item.sparse)
    if method == "enet":
        head = net.head(features[-1])
        trust = head[:, 1:]
        relative = torch.nn.functional.softplus(head[:, :1]) / torch.tensor(2.0).log()
        torch.testing.assert_close(colour, net.unit * relative)
    else:
        fitted = net.fit.train()(features[-1], item.sparse)
        trust = torch.tanh(1 / (colour * fitted.var.sqrt()))
        assert 0 < trust.min() < trust.max() < 1
    share = torch.sigmoid(trust - out[0][:, 1:])  # the softmax of two
    torch.testing.assert_close(fused, share * colour + (1 - share) * depth)
    assert (colour - depth).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_the_fit_of_training_is_that_of_the_last_features_to_the_points(training, item):
    """By maximum likelihood also when batch norm is that of evaluation."""
    net = make("enet-bdbf").train(training)
    colour = net.branches(item.image, item.sparse).colour
    features = net.features(item.image, item.sparse)[-1].double()
    for i in range(2):
        known = item.sparse[i, 0] > 0
        phi = torch.cat([torch.ones_like(features[i, :1]), features[i]]).flatten(1).T
        z = item.sparse[i, 0][known].double().log()
        weights = torch.linalg.lstsq(phi[known.flatten()], z).solution
        want = (phi @ weights).view(37, 51).exp()
        torch.testing.assert_close(colour[i, 0].double(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_the_weighted_sum_and_reaches_every_weight_and_falls(method, item):
    net = make(method)
    net.set_epoch(0, 10)
    with torch.no_grad():
        depths = net.branches(item.image, item.sparse)
        parts = [(one - item.depth).square().flatten(1).mean(1) for one in depths]
        want = 0.6 * parts[0] + 0.2 * parts[1] + 0.2 * parts[2]
        torch.testing.assert_close(net.loss(item), want)
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    before = net.loss(item).mean()
    before.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    adam.step()
    assert float(net.loss(item).mean().detach()) < float(before.detach())


def test_branches_weigh_less_as_in_the_paper():
    """Two of ten epochs at 0.2, two at 0.05, then 0."""
    net, weights = make("enet"), []
    for epoch in range(10):
        net.set_epoch(epoch, 10)
        weights.append(net.branch_weight)
    assert weights == [0.2] * 2 + [0.05] * 2 + [0] * 6


def test_without_its_own_loss_the_colour_branch_learns_through_depth_confidence_and_features(item):
    """The derivative of the loss along one direction of its first layer, by finite differences."""
    net = make("enet-bdbf").double().eval()
    weight = net.colour.first[0].weight
    item = item._replace(depth=item.depth.double(), sparse=item.sparse.double())
    slope = torch.autograd.grad(net.loss(item).sum(), weight)[0]
    direction, step, found = torch.randn_like(weight), 1e-6, []
    with torch.no_grad():
        for sign in (1, -1):
            weight += sign * step * direction
            found.append(float(net.loss(item).sum()))
            weight -= sign * step * direction
    numeric = (found[0] - found[1]) / (2 * step)
    assert float((slope * direction).sum()) == pytest.approx(numeric, rel=1e-3)
    assert abs(numeric) > 1e-4


@pytest.mark.parametrize("method", [*METHODS, "ncnn"])
def test_saved_and_loaded_it_predicts_the_same_bits(method, item, tmp_path):
    model = Ensemble(architecture(method))
    model.network.set_start(1.5)
    if method != "ncnn":
        for number, buffer in enumerate(model.buffers()):
            buffer.copy_(buffer + 0.1 if buffer.dim() == 1 and number % 2 else buffer)
    model.save(tmp_path / "model.safetensors")
    again = Ensemble.load(tmp_path / "model.safetensors")
    for one, other in zip(
        model(item.image, item.sparse), again(item.image, item.sparse), strict=True
    ):
        assert torch.equal(one, other)


@torch.no_grad()
def test_complete_has_the_fit_and_the_fused_depth(item):
    model = Ensemble(architecture("enet-bdbf"))
    network = model.network
    network.set_start(1.5)
    set_prior(network.fit)
    image = item.image[0].permute(1, 2, 0).numpy()
    out = model.complete(image, item.sparse[0, 0].numpy())
    features = network.features(item.image[:1], item.sparse[:1])
    fitted = BasisFit(4).eval()
    fitted.load_state_dict(network.fit.state_dict())
    prediction = fitted(features[-1], item.sparse[:1])
    colour = prediction.mean.exp()
    trust = torch.tanh(1 / (colour * prediction.var.sqrt()))
    fused = network.fuse(features, item.sparse[:1], colour, trust).fused
    torch.testing.assert_close(torch.from_numpy(out.depth), fused[0, 0])
    torch.testing.assert_close(torch.from_numpy(out.latent_var), prediction.var[0, 0])
    assert isinstance(out.posterior, fit.Posterior)
    assert out.posterior.mean.shape == (1, 5)
    assert (out.std > 0).all()
    plain = Ensemble(architecture("enet")).complete(image, item.sparse[0, 0].numpy())
    assert plain.posterior is None
    assert float(plain.latent_var.std()) == 0
    assert latent.is_valid(torch.from_numpy(plain.depth)).all()


@torch.no_grad()
def test_correlated_errors_are_refused_and_the_papers_variance_has_no_noise(item):
    model = Ensemble(architecture("enet-bdbf"))
    with pytest.raises(ValueError, match="enet-bdbf has no model of correlated errors"):
        model(item.image, item.sparse, errors="correlated")
    assert not model(item.image, item.sparse, errors="paper").noise_var.any()
    assert (model(item.image, item.sparse, errors="independent").noise_var > 0).all()
