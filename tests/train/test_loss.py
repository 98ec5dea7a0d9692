# SPDX-License-Identifier: Apache-2.0
"""Losses against torch's own distributions."""

import math

import pytest
import torch
from torch.distributions import Laplace

from deepbasis import fit
from deepbasis.data.training import Item
from deepbasis.measurements import Measurements
from deepbasis.model import Architecture, Network
from deepbasis.train import loss as train_loss
from deepbasis.train.loss import Loss, l1, laplace_nll, thin


@pytest.fixture
def maps():
    g = torch.Generator().manual_seed(0)
    mean, z = torch.randn(2, 3, 1, 4, 5, generator=g)
    var = torch.rand(3, 1, 4, 5, generator=g) + 0.1
    known = torch.rand(3, 1, 4, 5, generator=g) < 0.6
    return mean, var, z, known


def test_the_likelihood_is_that_of_torch(maps):
    mean, var, z, known = maps
    theirs = -Laplace(mean, (var / 2).sqrt()).log_prob(z)
    expected = [float(theirs[i][known[i]].mean()) for i in range(3)]
    assert laplace_nll(mean, var, z, known).tolist() == pytest.approx(expected, rel=1e-5)


def test_l1_is_the_mean_of_each_image_and_nothing_leaks_from_unknown_pixels(maps):
    mean, _, z, known = maps
    expected = [float((z - mean)[i][known[i]].abs().mean()) for i in range(3)]
    spoiled = torch.where(known, z, torch.inf)
    assert l1(mean, spoiled, known).tolist() == pytest.approx(expected, rel=1e-5)


def test_the_best_variance_of_the_likelihood_is_twice_the_squared_mean_error():
    error = torch.full((1, 1, 4, 4), 0.3)
    known = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    var = torch.full((1, 1, 4, 4), 0.5, requires_grad=True)
    best = torch.full((1, 1, 4, 4), 2 * 0.3**2, requires_grad=True)
    for value, slope in ((var, True), (best, False)):
        (gradient,) = torch.autograd.grad(laplace_nll(error * 0, value, error, known).sum(), value)
        assert (gradient.abs().max() > 1e-3) == slope


@torch.no_grad()
@pytest.mark.parametrize("method", ["bdbf", "log", "snap"])
def test_images_weigh_the_same_so_batches_add_up(method):
    torch.manual_seed(0)
    network = Network(Architecture(method)).double()  # bases of chance are nearly dependent
    network.bases.eval()
    depth = torch.rand(2, 1, 32, 48).double() + 1
    depth[1, :, 8:] = 0
    sparse = torch.where(torch.rand(2, 1, 32, 48) < 0.5, depth, 0)
    image = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    empty = torch.zeros_like(depth)
    both = Loss(network)(Item(["a", "b"], image, depth, sparse, empty, empty > 0))
    for i in range(2):
        parts = (part[i : i + 1] for part in (image, depth, sparse, empty, empty > 0))
        assert float(Loss(network)(Item(["x"], *parts))) == pytest.approx(float(both[i]), rel=1e-4)


@torch.no_grad()
def test_few_points_add_the_losses_of_their_fit_and_of_the_prior_alone(monkeypatch):
    torch.manual_seed(0)
    network = Network(Architecture()).double()
    network.bases.eval()
    layer = network.last
    depth = torch.rand(2, 1, 32, 48).double() + 1
    image = torch.randint(0, 255, (2, 3, 32, 48), dtype=torch.uint8)
    empty = torch.zeros_like(depth)
    item = Item(["a", "b"], image, depth, depth, empty, empty > 0)
    monkeypatch.setattr(train_loss, "thin", lambda points: points)  # as few as there are
    before = Loss(network)(item)
    got = Loss(network, few=0.5)(item)
    pyramid, points = layer.read(network.bases(image), depth)
    phi = pyramid.at(points.row, points.column)
    prior, (shape, rate) = fit.Prior(layer.prior_mean, layer.prior_cov), layer.hyperprior[1]
    few = fit.posterior(phi, points.z, prior, beta=shape / rate).mean
    for weights in (few, layer.prior_mean.expand_as(few)):
        before += 0.5 * (points.z - (phi @ weights[..., None])[..., 0]).abs().mean(1)
    torch.testing.assert_close(got, before, rtol=1e-6, atol=0)


def test_points_are_thinned_to_every_order_of_magnitude():
    torch.manual_seed(0)
    place = torch.zeros(2000, 1000, dtype=torch.int64)
    weight = torch.ones(2000, 1000)
    weight[:, 500:] = 0  # padding
    thinned = thin(Measurements(place, place, weight, weight)).weight
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
        Loss(Network(Architecture()))(Item(["lost"], image, empty, empty, empty, empty > 0))
