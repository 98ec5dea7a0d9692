# SPDX-License-Identifier: Apache-2.0
"""Networks on the basis network: their losses, and what they do with their points."""

import pytest
import torch
from torch.distributions import Laplace

from deepbasis.points import Points
from deepbasis_paper.data.training import PaperItem
from deepbasis_paper.networks import Given, PaperArchitecture, new_network
from deepbasis_paper.networks.heads import laplace_nll
from deepbasis_paper.scaffold import scaffold


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


def test_the_best_variance_of_the_likelihood_is_twice_the_squared_mean_error():
    error = torch.full((1, 1, 4, 4), 0.3)
    known = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    var = torch.full((1, 1, 4, 4), 0.5, requires_grad=True)
    best = torch.full((1, 1, 4, 4), 2 * 0.3**2, requires_grad=True)
    for value, slope in ((var, True), (best, False)):
        (gradient,) = torch.autograd.grad(laplace_nll(error * 0, value, error, known).sum(), value)
        assert (gradient.abs().max() > 1e-3) == slope


def rgbd_item(depth):
    sparse = torch.where(torch.rand(depth.shape) < 0.5, depth, 0)
    image = torch.randint(0, 255, (len(depth), 3, *depth.shape[2:]), dtype=torch.uint8)
    filled = torch.stack([scaffold(one) for one in sparse])
    return PaperItem([str(i) for i in range(len(depth))], image, depth, sparse, filled, sparse > 0)


@torch.no_grad()
@pytest.mark.parametrize("method", ["bdbf", "log", "snap"])
def test_images_weigh_the_same_so_batches_add_up(method):
    torch.manual_seed(0)
    architecture = PaperArchitecture(method=method, input="rgbd")
    network = new_network(architecture).double().eval()  # random bases are nearly dependent
    depth = torch.rand(2, 1, 32, 48).double() + 1
    depth[1, :, 8:] = 0
    item = rgbd_item(depth)
    both = network.loss(item)
    for i in range(2):
        one = PaperItem(["x"], *(part[i : i + 1] for part in item[1:]))
        assert float(network.loss(one)) == pytest.approx(float(both[i]), rel=1e-4)


@pytest.mark.parametrize("method", ["bdbf", "log"])
def test_at_the_start_the_loss_reaches_the_depth_block_as_it_reaches_the_image(method):
    """Gradients of the first convolution of depth and of that of the image, of the same size."""
    torch.manual_seed(0)
    network = new_network(PaperArchitecture(method=method, input="rgbd")).train()
    network.loss(rgbd_item(1 + 4 * torch.rand(4, 1, 64, 96))).mean().backward()
    bases = network.bases
    depth, image = bases.depth_stem.conv.weight, bases.encoder.features[0][0].weight
    sizes = [float(weight.grad.square().mean().sqrt()) for weight in (depth, image)]
    assert 0.3 < sizes[0] / sizes[1] < 3


def test_a_frame_without_depth_is_named():
    network = new_network(PaperArchitecture(method="log"))
    with pytest.raises(ValueError, match="one of the frames 0 has no depth to learn from"):
        network.loss(rgbd_item(torch.zeros(1, 1, 32, 48)))


@torch.no_grad()
@pytest.mark.parametrize("method", ["bdbf", "log"])
def test_a_network_that_sees_points_gets_their_scaffold_in_training_and_in_use(method):
    torch.manual_seed(0)
    network = new_network(PaperArchitecture(method=method, input="rgbd", errors="independent"))
    network.eval()
    item = rgbd_item(1 + torch.rand(1, 1, 32, 48))
    points = Points.from_maps(item.sparse)
    given = Given(item.image, points)
    torch.testing.assert_close(given.sparse, item.sparse)
    torch.testing.assert_close(given.depth_input[0], item.scaffold)
    assert torch.equal(given.depth_input[1], item.sparse > 0)
    mean = network.answer(given).prediction.mean
    torch.testing.assert_close(network.predictor(item.image)(points).prediction.mean, mean)
    less = torch.where(torch.rand(item.sparse.shape) < 0.5, item.sparse, 0)
    fewer = network.answer(Given(item.image, Points.from_maps(less))).prediction.mean
    assert (fewer - mean).abs().max() > 1e-4
    if method == "log":
        torch.testing.assert_close(network.predict_in_training(item), mean)
    else:
        bases = network.bases(item.image, item.scaffold, item.seen).bases
        want = network.fit(bases, item.sparse).mean
        torch.testing.assert_close(mean, want, rtol=1e-4, atol=1e-4)
        observed = network.observe(item.image, points)  # makes the scaffold from the points
        want = network.fit.observe(bases, points, (32, 48)).phi
        torch.testing.assert_close(observed.phi, want, rtol=1e-3, atol=1e-4)
