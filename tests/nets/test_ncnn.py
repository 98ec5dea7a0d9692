# SPDX-License-Identifier: Apache-2.0
"""Normalised convolution against a slow twin and by its theorems; the network made of it."""

import math

import pytest
import torch
from torch.distributions import Laplace

from deepbasis.nets.heads import Spread
from deepbasis.nets.ncnn import NCNN, NormConv, shrink
from deepbasis.networks import Architecture, Unguided


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
    x = 5 * torch.rand(1, 2, 6, 7, generator=g)
    confidence = torch.rand(1, 2, 6, 7, generator=g)
    confidence[torch.rand(1, 2, 6, 7, generator=g) < 0.5] = 0
    confidence[:, :, :, :3] = 0  # some pixels see nothing
    return x, confidence


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return NormConv(2, 3, 3)


@torch.no_grad()
def test_it_is_the_slow_twin(layer, maps):
    for got, want in zip(layer(*maps), slow(layer, *maps), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
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
    x, confidence = (part.double().requires_grad_() for part in maps)
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
    net, image = NCNN(), torch.zeros(2, 3, 51, 37, dtype=torch.uint8)
    assert sum(p.numel() for p in net.parameters()) == 481 - 13  # published, without biases
    depth = 2 + 3 * torch.rand(2, 1, 51, 37)
    sparse = torch.where(torch.rand_like(depth) < 0.1, depth, 0)
    value, trust = net(image, sparse)
    assert value.shape == trust.shape == depth.shape
    assert 0 < trust.min() < trust.max() <= 1
    assert 2 <= value.min() < value.max() <= 5
    torch.testing.assert_close(net(image, 10 * sparse)[0], 10 * value)
    constant = torch.where(sparse > 0, 4.0, 0)
    torch.testing.assert_close(net(image, constant)[0], torch.full_like(depth, 4.0))
    missing = torch.where(sparse > 0, sparse, torch.nan)
    assert torch.equal(net(image, missing)[0], value)


@torch.no_grad()
def test_confidence_falls_away_from_the_points_and_out_of_reach_the_start_is_the_answer():
    torch.manual_seed(0)
    net = Unguided(Architecture("ncnn"))
    net.set_start(math.log(7))
    net.last.numbers.copy_(torch.tensor([-3.0, 0.5]))
    sparse = torch.zeros(1, 1, 24, 300)
    sparse[0, 0, 12, 20] = 3.0
    mean, _, var = net(torch.zeros(1, 3, 24, 300, dtype=torch.uint8), sparse)
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
