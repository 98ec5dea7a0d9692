# SPDX-License-Identifier: Apache-2.0
"""The whole network: its loss, against plain formulas, and its parts."""

import math

import pytest
import torch

from deepbasis import fit
from deepbasis.data.training import Item
from deepbasis.fit import correlated
from deepbasis.nets import Architecture, Network, kriging
from deepbasis.nets import network as network_module
from deepbasis.nets.network import l1, thin
from deepbasis.points import Points


def make_network():
    torch.manual_seed(0)
    network = Network(Architecture()).double()  # bases of chance are nearly dependent
    network.bases.eval()
    return network


def make_item(share=0.5):
    """Two frames; in the second, depth is known in the upper rows only."""
    depth = torch.rand(2, 1, 32, 48).double() + 1
    depth[1, :, 8:] = 0
    sparse = torch.where(torch.rand(2, 1, 32, 48) < share, depth, 0)
    image = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    return Item(["a", "b"], image, depth, sparse, sparse)


def test_l1_is_the_mean_of_each_image_and_nothing_leaks_from_unknown_pixels():
    g = torch.Generator().manual_seed(0)
    mean, z = torch.randn(2, 3, 1, 4, 5, generator=g)
    known = torch.rand(3, 1, 4, 5, generator=g) < 0.6
    expected = [float((z - mean)[i][known[i]].abs().mean()) for i in range(3)]
    spoiled = torch.where(known, z, torch.inf)
    assert l1(mean, spoiled, known).tolist() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_images_weigh_the_same_so_batches_add_up():
    network, item = make_network(), make_item()
    both = network.loss(item)
    for i in range(2):
        parts = (part[i : i + 1] for part in item[1:])
        alone = network.loss(Item(["x"], *parts))
        assert float(alone) == pytest.approx(float(both[i]), rel=1e-4)


@torch.no_grad()
def test_the_loss_is_that_of_the_prediction_in_training():
    network, item = make_network(), make_item()
    mean = network.predict_in_training(item)
    known = item.depth > 0
    error = (mean - item.depth.log()).abs()
    want = [float(error[i][known[i]].mean()) for i in range(2)]
    assert network.loss(item).tolist() == pytest.approx(want, rel=1e-9)
    torch.testing.assert_close(
        network.fit.train()(network.bases(item.image).bases, item.sparse).mean, mean
    )


@torch.no_grad()
def test_few_points_add_the_losses_of_their_fit_and_of_the_prior_alone(monkeypatch):
    network = make_network()
    layer = network.fit
    depth = torch.rand(2, 1, 32, 48).double() + 1
    image = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    item = Item(["a", "b"], image, depth, depth, depth)
    monkeypatch.setattr(network_module, "thin", lambda weight: weight)  # as few as there are
    before = network.loss(item)
    assert not layer.prior.mean.any()
    got = network.loss(item, few_points_weight=0.5)
    assert layer.prior.mean.any()
    observed = network.observe(image, Points.from_maps(depth), network.bases(image))
    phi, z = observed.phi, observed.z
    beta = 1 / layer.error_model("independent").noise.usual_variance
    few = fit.posterior(phi, z, layer.prior.value, beta=beta).mean
    for weights in (few, layer.prior.mean.expand_as(few)):
        before += 0.5 * (z - (phi @ weights[..., None])[..., 0]).abs().mean(1)
    torch.testing.assert_close(got, before, rtol=1e-6, atol=0)


def test_the_loss_reaches_every_weight_of_the_network():
    """Also through the fit to few points and through the prior that follows the batch."""
    network, item = make_network(), make_item()
    network.loss(item, few_points_weight=0.3).sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())
    assert all(weight.grad.isfinite().all() for weight in network.parameters())
    decoder = [weight for weight in network.bases.decoder.parameters() if weight.ndim == 4]
    assert all(weight.grad.any() for weight in decoder)


@torch.no_grad()
def test_the_kriging_loss_is_that_of_dense_kriging(monkeypatch):
    """At the precisions of the evidence, with fewer points than a place has neighbours, and without
    bounds of the corrections.
    """
    monkeypatch.setattr(correlated, "bound", lambda correction, *_: correction)
    torch.manual_seed(0)
    network = Network(Architecture(decoder="light", embedding=3)).double().eval()
    layer, m = network.fit, 63
    root = 0.1 * torch.randn(m, m).double()
    layer.prior.set(fit.Prior(0.1 * torch.randn(m).double(), root @ root.mT + 0.01 * torch.eye(m)))
    image = torch.randint(0, 255, (1, 3, 16, 24), dtype=torch.uint8)
    depth = torch.rand(1, 1, 16, 24).double() + 1
    chosen = torch.rand(16 * 24).argsort().view_as(depth)
    sparse, asked = (
        torch.where(c, depth, 0) for c in (chosen < 10, (chosen >= 10) & (chosen < 40))
    )
    points, pixels = (network.observe(image, Points.from_maps(d)) for d in (sparse, asked))
    kernel, prior = network.bases.head.kernel, layer.prior.value
    got = float(kriging.kriging_loss(points, pixels, kernel, prior))

    def cov(one, other):
        a, b = (torch.cat([o.x[0, :, :2] / kernel.length, o.x[0, :, 2:]], 1) for o in (one, other))
        distance = torch.cdist(a, b)
        smooth = (1 + 3**0.5 * distance) * (-(3**0.5) * distance).exp()
        both = (1 - kernel.rough) * smooth + kernel.rough * (-4 * distance).exp()
        return torch.outer(one.s[0], other.s[0]) * both

    noise = cov(points, points) + kernel.nugget * torch.eye(10)
    white = torch.linalg.inv(torch.linalg.cholesky(noise))
    phi, z = points.phi[0], points.z[0]
    post = fit.evidence(
        white @ phi, white @ z, prior, hyperprior=fit.Hyperprior(alpha=kriging.ALPHA)
    )
    total = phi @ prior.cov @ phi.mT / post.alpha + noise / post.beta
    cross = pixels.phi[0] @ prior.cov @ phi.mT / post.alpha + cov(pixels, points) / post.beta
    gain = torch.linalg.solve(total, cross.mT).mT
    error = (pixels.z[0] - pixels.phi[0] @ prior.mean - gain @ (z - phi @ prior.mean)).abs()
    own = (pixels.phi[0] @ prior.cov * pixels.phi[0]).sum(1) / post.alpha
    own = own + (pixels.s[0].square() + kernel.nugget) / post.beta
    std = (own - (gain * cross).sum(1)).sqrt()
    nats = (error / std).mean().log() + std.log().mean()
    assert got == pytest.approx(float(error.mean() + kriging.LIKELIHOOD * nats), rel=1e-6)


def test_the_kriging_loss_teaches_embedding_amplitude_and_kernel():
    torch.manual_seed(0)
    architecture = Architecture(decoder="light", embedding=3, head_width=4)
    network, item = Network(architecture).double(), make_item()
    torch.nn.init.normal_(network.bases.head.surroundings[-1].weight)
    network.loss(item, kernel_weight=1.0).sum().backward()
    for name, weight in network.bases.head.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any(), name
    with pytest.raises(ValueError, match="has no embedding, so its kernel cannot be learned"):
        make_network().loss(item, kernel_weight=1.0)


def test_pixels_of_the_kriging_loss_are_known_and_not_measured():
    torch.manual_seed(0)
    depth = torch.rand(2, 1, 40, 50) + 1
    depth[:, :, :5] = 0
    sparse = torch.where(torch.rand_like(depth) < 0.1, depth, 0)
    asked = kriging.unmeasured(depth, sparse)
    chosen = asked > 0
    assert (chosen.flatten(1).sum(1) == kriging.PIXELS).all()
    assert (asked[chosen] == depth[chosen]).all()
    assert not (chosen & (sparse > 0)).any()
    few = torch.zeros_like(depth)
    few[:, :, 20, 20] = 2.0
    assert (kriging.unmeasured(few, torch.zeros_like(few)) == few).all()


def test_points_are_thinned_to_every_order_of_magnitude():
    torch.manual_seed(0)
    weight = torch.ones(2000, 1000)
    weight[:, 500:] = 0  # padding
    thinned = thin(weight)
    assert not thinned[:, 500:].any()
    count = thinned.sum(1)
    # The logarithm is uniform from 0 to ln 200, so the mean is (200 - 1) / ln 200.
    assert float(count.mean()) == pytest.approx(199 / math.log(200), rel=0.1)
    below = float((count < 200**0.5).float().mean())
    assert below == pytest.approx(0.5, abs=0.05)


def test_a_frame_without_depth_is_named():
    empty = torch.zeros(1, 1, 32, 48)
    image = torch.zeros(1, 3, 32, 48, dtype=torch.uint8)
    with pytest.raises(ValueError, match="one of the frames lost has no depth to learn from"):
        Network(Architecture()).loss(Item(["lost"], image, empty, empty, empty))


@torch.no_grad()
def test_bases_are_computed_once_and_fitted_to_any_points(monkeypatch):
    network = make_network().float().eval()
    item = make_item()
    predict = network.predictor(item.image)
    wanted = [
        network(item.image, sparse) for sparse in (item.sparse.float(), 0 * item.sparse.float())
    ]
    monkeypatch.setattr(network.bases, "forward", None)
    for sparse, want in zip((item.sparse.float(), 0 * item.sparse.float()), wanted, strict=True):
        assert all(map(torch.equal, predict(Points.from_maps(sparse)).prediction, want))
