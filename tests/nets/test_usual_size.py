# SPDX-License-Identifier: Apache-2.0
"""Large images are reduced for the network, and its answer is at their own size."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import deepbasis
from deepbasis.data.packaged import packaged
from deepbasis.nets.usual_size import LARGEST, UsualSize


@pytest.fixture
def usual():
    found = UsualSize()
    found.store(size=torch.tensor((60, 80)))
    return found


@pytest.fixture(scope="module")
def indoor():
    return deepbasis.load("indoor")


@pytest.fixture(scope="module")
def room():
    return packaged("rooms")[0]


def test_images_of_up_to_the_usual_size_are_not_touched(usual):
    for size in ((60, 80), (30, 200), (round(60 * LARGEST) - 1, round(80 * LARGEST) - 1)):
        image = torch.zeros(1, 3, *size, dtype=torch.uint8)
        assert usual.reduce(image) is image
    huge = torch.zeros(1, 3, 600, 800, dtype=torch.uint8)
    assert UsualSize().reduce(huge) is huge


@pytest.mark.parametrize("size", [(600, 800), (81, 99), (100, 1200), (4000, 3)])
def test_larger_images_keep_their_shape_and_have_the_largest_area(usual, size):
    height, width = usual.reduce(torch.zeros(1, 3, *size, dtype=torch.uint8)).shape[2:]
    factor = LARGEST * math.sqrt(60 * 80 / (size[0] * size[1]))
    assert abs(height - factor * size[0]) <= 0.5
    assert abs(width - factor * size[1]) <= 0.5 or width == 1


def test_reducing_averages_the_pixels_it_skips(usual):
    lattice = torch.zeros(1, 3, 600, 800, dtype=torch.uint8)
    lattice[:, :, ::2, 1::2] = lattice[:, :, 1::2, ::2] = 200
    inner = usual.reduce(lattice)[:, :, 2:-2, 2:-2]
    torch.testing.assert_close(inner, torch.full_like(inner, 100.0), atol=1, rtol=0)


def test_it_is_a_part_of_the_file_if_it_is_known(usual):
    assert not UsualSize().state_dict()
    other = UsualSize()
    other.load_state_dict(usual.state_dict())
    assert other.size.tolist() == [60, 80]


def enlarged(room, factor):
    image = F.interpolate(room.image[None].float(), scale_factor=factor, mode="bicubic")[0]
    return image.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()


def test_the_answer_for_a_large_image_is_that_for_a_small_one(indoor, room):
    rng = np.random.default_rng(0)
    row, column = np.nonzero(room.mask[0].numpy())
    some = rng.permutation(len(row))[:60]
    points = np.stack([column, row, room.depth[0].numpy()[row, column]], 1)[some]
    larger = np.column_stack([3 * points[:, :2] + 1, points[:, 2]])
    small = indoor.complete(room.image.permute(1, 2, 0).numpy(), points)
    large = indoor.complete(enlarged(room, 3), larger)
    assert large.depth.shape == tuple(3 * x for x in small.depth.shape)
    off = np.abs(large.latent_mean[1::3, 1::3] - small.latent_mean)
    width = large.half_width(0.9)[1::3, 1::3] / small.half_width(0.9)
    assert np.median(off) < 0.02
    assert 0.8 < np.median(width) < 1.25
    # Not moved: the difference is smallest where the same pixel is compared.
    inner = small.latent_mean[:230, :310]
    moved = [
        np.abs(large.latent_mean[1 + dy :: 3, 1 + dx :: 3][:230, :310] - inner)
        for dy, dx in ((0, 0), (6, 0), (0, 6))
    ]
    assert np.mean(moved[0]) < min(np.mean(one) for one in moved[1:])


def test_a_large_image_has_smaller_errors_than_without_it(indoor, room):
    plain = deepbasis.load("indoor")
    plain.network.usual_size.store(size=None)
    true = room.depth[0].repeat_interleave(3, 0).repeat_interleave(3, 1).numpy()
    row, column = np.random.default_rng(1).integers(0, true.shape, (50, 2)).T
    points = np.stack([column, row, true[row, column]], 1)
    image = enlarged(room, 3)
    maes = [np.abs(one.complete(image, points).depth - true).mean() for one in (indoor, plain)]
    assert maes[0] < 0.8 * maes[1]


def test_the_network_sees_a_reduced_image_in_every_way_of_using_it(indoor, room):
    image = torch.from_numpy(enlarged(room, 3)).permute(2, 0, 1)[None]
    sparse = torch.zeros(1, 1, *image.shape[2:])
    sparse[0, 0, ::40, ::40] = 2.0
    prepared = indoor.prepare(image[0].permute(1, 2, 0).numpy()).complete(sparse[0, 0].numpy())
    network = indoor(image, sparse)
    seen = network.mean[0, 0].numpy()
    assert np.abs(seen - prepared.latent_mean).max() < 1e-3
