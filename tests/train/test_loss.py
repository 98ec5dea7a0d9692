# SPDX-License-Identifier: Apache-2.0
"""Losses against torch's own distributions."""

import pytest
import torch
from torch.distributions import Laplace

from deepbasis.data.training import Item
from deepbasis.model import Architecture, Network
from deepbasis.train.loss import Loss, l1, laplace_nll


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


def test_a_frame_without_depth_is_named():
    empty = torch.zeros(1, 1, 32, 48)
    image = torch.zeros(1, 3, 32, 48, dtype=torch.uint8)
    with pytest.raises(ValueError, match="one of the frames lost has no depth to learn from"):
        Loss(Network(Architecture()))(Item(["lost"], image, empty, empty, empty, empty > 0))
