# SPDX-License-Identifier: Apache-2.0
"""Probabilistic normalised convolutions: their variance is that of a weighted mean."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from deepbasis.points import Points
from deepbasis_paper.networks import Given, PaperArchitecture, Probabilistic, new_network
from deepbasis_paper.networks.ncnn import NormConv
from deepbasis_paper.networks.pncnn import SmallUNet

METHODS = ["pncnn", "pncnn-exp"]


def make(method):
    torch.manual_seed(0)
    net = new_network(PaperArchitecture(method=method))
    assert isinstance(net, Probabilistic)
    net.set_start(math.log(4))
    return net


@torch.no_grad()
def test_the_variance_of_a_normalised_convolution_is_the_noise_over_the_gathered_confidence():
    """The equation that all is built on, by simulation: measurements of variance sigma^2 / c and
    weights a c have a mean of variance sigma^2 <a^2 c> / <a c>^2, which is sigma^2 / <a|c> for a
    kernel of ones.
    """
    layer = NormConv(1, 1, 3).double()
    layer.raw.fill_(1.0)
    scale = float(layer.kernel[0, 0, 0, 0])
    g = torch.Generator().manual_seed(0)
    confidence = torch.rand(1, 1, 3, 3, generator=g, dtype=torch.float64) + 0.1
    noise = torch.randn(200_000, 1, 3, 3, generator=g, dtype=torch.float64)
    draws = 5 + 0.3 * noise / confidence.sqrt()
    found, gathered = layer(draws, confidence.expand_as(draws))
    var = float(found[:, 0, 1, 1].var())
    assert var == pytest.approx(0.3**2 / float(confidence.sum()), rel=0.02)
    share = float(gathered[0, 0, 1, 1])
    assert share == pytest.approx(scale * float(confidence.sum()) / (9 * scale))


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_depth_and_variance_are_those_of_the_equations(method, item):
    net = make(method)
    depth, var = net.run(item.sparse)
    valid = item.sparse > 0
    trust = (1 + net.trust(item.sparse / 4).exp()).log() * valid
    y, confidence = net.net(item.sparse, trust)
    torch.testing.assert_close(depth, y)  # at a fifth of the pixels points reach everywhere
    raw = net.noise(confidence)
    noise = raw.exp() if method == "pncnn-exp" else (1 + raw.exp()).log()
    torch.testing.assert_close(var, 4**2 * noise / confidence, rtol=1e-4, atol=1e-6)
    assert (var > 0).all()


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_twice_the_gaussian_likelihood_less_its_constant(method, item):
    net = make(method)
    depth, var = net.run(item.sparse)
    nll = -Normal(depth, var.sqrt()).log_prob(item.depth)
    want = (2 * nll - math.log(2 * math.pi)).flatten(1).mean(1)
    torch.testing.assert_close(net.loss(item), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_reaches_every_weight_and_falls(method, item):
    net = make(method)
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    before = net.loss(item).mean()
    before.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    for _ in range(5):
        adam.step()
        adam.zero_grad()
        net.loss(item).mean().backward()
    assert float(net.loss(item).mean().detach()) < float(before.detach())


@torch.no_grad()
def test_the_answer_is_log_depth_with_the_variance_carried_over(item):
    """To first order: the variance of ln y is that of y over y^2."""
    net = make("pncnn")
    depth, var = net.run(item.sparse)
    found = net.answer(Given(item.image, Points.from_maps(item.sparse))).prediction
    np.testing.assert_allclose(found.mean.exp(), depth, rtol=1e-4)
    np.testing.assert_allclose(found.var, var / depth**2, rtol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("points", [0, 1])
def test_where_nothing_was_measured_the_usual_depth_is_predicted(points):
    net = make("pncnn")
    sparse = torch.zeros(1, 1, 20, 300)
    sparse.view(-1)[:points] = 2.0
    depth, var = net.run(sparse)
    assert float(depth[0, 0, -1, -1]) == pytest.approx(4)
    assert var.isfinite().all()
    if points:
        assert float(depth[0, 0, 0, 0]) == pytest.approx(2, rel=1e-4)
        assert var[0, 0, 0, 0] < var[0, 0, -1, -1]


@pytest.mark.parametrize("size", [(8, 8), (7, 13), (1, 5)])
def test_the_small_network_takes_any_size(size):
    assert SmallUNet()(torch.zeros(2, 1, *size)).shape == (2, 1, *size)
