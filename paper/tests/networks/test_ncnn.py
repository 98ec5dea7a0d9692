# SPDX-License-Identifier: Apache-2.0
"""Normalised convolution against a slow twin and by its theorems; the network made of it."""

import math

import pytest
import torch
from torch.distributions import Laplace

from deepbasis.points import Points
from deepbasis_paper.networks import Given, PaperArchitecture, Unguided
from deepbasis_paper.networks.ncnn import NCNN, NormConv, shrink
from deepbasis_paper.networks.spread import Spread


def slow(layer, x, confidence):
    """The definition, pixel by pixel: a weighted mean, and the share of the kernel that counted."""
    kernel = (1 + (10 * layer.raw.double()).exp()).log() / 10
    out, into, size, _ = kernel.shape
    _, _, height, width = x.shape
    value, trust = x.new_zeros(2, len(x), out, height, width).double()
    reach = size // 2
    for b in range(len(x)):
        for o in range(out):
            for row in range(height):
                for column in range(width):
                    total = weight = 0.0
                    for i in range(into):
                        for dr in range(-reach, reach + 1):
                            for dc in range(-reach, reach + 1):
                                r, c = row + dr, column + dc
                                if 0 <= r < height and 0 <= c < width:
                                    w = float(kernel[o, i, dr + reach, dc + reach])
                                    w *= float(confidence[b, i, r, c])
                                    total, weight = total + w * float(x[b, i, r, c]), weight + w
                    value[b, o, row, column] = total / weight if weight > 0 else 0
                    trust[b, o, row, column] = weight / float(kernel[o].sum())
    return value, trust


@pytest.fixture
def maps():
    g = torch.Generator().manual_seed(0)
    x = 5 * torch.rand(1, 2, 6, 7, generator=g, dtype=torch.float64)
    confidence = torch.rand(1, 2, 6, 7, generator=g, dtype=torch.float64)
    confidence[torch.rand(1, 2, 6, 7, generator=g) < 0.5] = 0
    confidence[:, :, :, :3] = 0  # some pixels see nothing
    return x, confidence


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return NormConv(2, 3, 3).double()


@torch.no_grad()
def test_it_is_the_slow_twin(layer, maps):
    for got, want in zip(layer(*maps), slow(layer, *maps), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    assert (layer(*maps)[1] == 0).any()


@torch.no_grad()
def test_a_constant_stays_and_confidence_stays_between_0_and_1(layer, maps):
    value, trust = layer(torch.full_like(maps[0], 3.7), maps[1])
    torch.testing.assert_close(value[trust > 0], torch.full_like(value[trust > 0], 3.7))
    assert 0 <= trust.min() < trust.max() <= 1
    inner = layer(maps[0], torch.ones_like(maps[1]))[1][:, :, 1:-1, 1:-1]
    torch.testing.assert_close(inner, torch.ones_like(inner))


@torch.no_grad()
def test_what_has_no_confidence_does_not_matter_and_units_do_not(layer, maps):
    x, confidence = maps
    spoiled = torch.where(confidence > 0, x, 1e6)
    assert torch.equal(layer(spoiled, confidence)[0], layer(x, confidence)[0])
    torch.testing.assert_close(layer(100 * x, confidence)[0], 100 * layer(x, confidence)[0])
    torch.testing.assert_close(layer(x, confidence / 4)[0], layer(x, confidence)[0])


def test_gradients_are_those_of_finite_differences(maps):
    torch.manual_seed(0)
    layer = NormConv(2, 1, 3).double()
    x, confidence = (part.requires_grad_() for part in maps)
    assert torch.autograd.gradcheck(
        lambda *a: layer(*a)[0].sum((2, 3)), (x, confidence.abs() + 0.1)
    )


def test_shrinking_keeps_the_value_that_is_most_certain():
    x = torch.arange(6.0).view(1, 1, 2, 3)
    confidence = torch.tensor([[0.1, 0.9, 0.2], [0.3, 0.2, 0.8]]).view(1, 1, 2, 3)
    value, trust = shrink(x, confidence)
    assert value.flatten().tolist() == [1, 5]
    assert trust.flatten().tolist() == pytest.approx([0.9 / 4, 0.8 / 4])


@torch.no_grad()
def test_the_network_averages_what_was_measured():
    torch.manual_seed(0)
    net = NCNN()
    assert sum(p.numel() for p in net.parameters()) == 481 - 13  # published, without biases
    depth = 2 + 3 * torch.rand(2, 1, 51, 37)
    sparse = torch.where(torch.rand_like(depth) < 0.1, depth, 0)
    value, trust = net(sparse)
    assert value.shape == trust.shape == depth.shape
    assert 0 < trust.min() < trust.max() <= 1
    assert 2 <= value.min() < value.max() <= 5
    # Confidence is single precision; each of a dozen convolutions in a row adds a few eps.
    close = {"rtol": 100 * torch.finfo(torch.float32).eps, "atol": 0}
    torch.testing.assert_close(net(10 * sparse)[0], 10 * value, **close)
    constant = torch.where(sparse > 0, 4.0, 0)
    torch.testing.assert_close(net(constant)[0], torch.full_like(depth, 4.0), **close)
    missing = torch.where(sparse > 0, sparse, torch.nan)
    assert torch.equal(net(missing)[0], value)


@torch.no_grad()
def test_confidence_falls_away_from_the_points_and_out_of_reach_the_start_is_predicted():
    torch.manual_seed(0)
    net = Unguided(PaperArchitecture(method="ncnn"))
    net.set_start(math.log(7))
    net.spread.set(math.exp(-3.0), 0.5)
    sparse = torch.zeros(1, 1, 24, 300)
    sparse[0, 0, 12, 20] = 3.0
    image = torch.zeros(1, 3, 24, 300, dtype=torch.uint8)
    mean, _, var = net.answer(Given(image, Points.from_maps(sparse))).prediction
    depth = mean.exp()[0, 0, 12]
    torch.testing.assert_close(depth[[20, 25]], torch.tensor([3.0, 3.0]))
    torch.testing.assert_close(depth[-1], torch.tensor(7.0))
    assert var[0, 0, 12, 20] < var[0, 0, 12, 35] < var[0, 0, 12, -1]


def test_the_spread_that_is_learned_is_the_one_that_made_the_errors():
    torch.manual_seed(0)
    doubt = 1 + 50 * torch.rand(200_000)
    std = 0.03 * doubt**0.7
    error = Laplace(0, std / math.sqrt(2)).sample()
    spread = Spread(doubts=True)
    assert spread.learn(error, doubt) == pytest.approx((0.03, 0.7), rel=0.03)
    torch.testing.assert_close(spread(doubt), std.square(), rtol=0.05, atol=0)
    alone = Spread(doubts=False)
    scale, power = alone.learn(error, torch.ones_like(doubt))
    assert power == 0
    assert scale == pytest.approx(math.sqrt(2) * float(error.abs().mean()), rel=1e-5)


@torch.no_grad()
def test_the_loss_of_ncnn_l2_is_the_squared_error(item):
    torch.manual_seed(0)
    net = Unguided(PaperArchitecture(method="ncnn-l2"))
    net.set_epoch(0, 4)
    want = (net.run(item.sparse)[0] - item.depth).square().flatten(1).mean(1)
    torch.testing.assert_close(net.loss(item), want)


@torch.no_grad()
def test_the_loss_is_hubers_less_a_reward_for_confidence_that_fades(item):
    torch.manual_seed(0)
    net = Unguided(PaperArchitecture(method="ncnn"))
    depth, confidence = net.run(item.sparse)
    error = (depth - item.depth).abs()
    huber = torch.where(error < 1, error.square() / 2, error - 0.5)
    for epoch in range(4):
        net.set_epoch(epoch, 4)
        want = (huber - confidence * (1 - huber) / (1 + epoch)).flatten(1).mean(1)
        torch.testing.assert_close(net.loss(item), want)
