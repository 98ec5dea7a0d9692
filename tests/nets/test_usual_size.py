# SPDX-License-Identifier: Apache-2.0
"""Large images are reduced for the network, and its answer is at their own size."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric

import deepbasis
from deepbasis.calibrate.distortions import Reduced
from deepbasis.calibrate.familiarity import summaries
from deepbasis.data.packaged import packaged
from deepbasis.nets.basis import BasisNet, Features
from deepbasis.nets.usual_size import LARGEST, STRIDE, UsualSize
from models import make_model


@pytest.fixture
def usual():
    found = UsualSize()
    found.store(size=torch.tensor((192, 256)))
    return found


@pytest.fixture(scope="module")
def indoor():
    return deepbasis.load("indoor")


@pytest.fixture(scope="module")
def room():
    return packaged("rooms")[0]


def test_images_of_up_to_the_usual_size_are_not_touched(usual):
    for size in ((192, 256), (96, 500), (round(192 * LARGEST) - 1, round(256 * LARGEST) - 1)):
        image = torch.zeros(1, 3, *size, dtype=torch.uint8)
        assert usual.reduce(image) is image
    huge = torch.zeros(1, 3, 600, 800, dtype=torch.uint8)
    assert UsualSize().reduce(huge) is huge


@pytest.mark.parametrize("size", [(600, 800), (250, 309), (300, 3600), (90000, 2)])
def test_larger_images_have_about_the_largest_area_in_whole_strides(usual, size):
    found = usual.reduce(torch.zeros(1, 3, *size, dtype=torch.uint8)).shape[2:]
    factor = LARGEST * math.sqrt(192 * 256 / (size[0] * size[1]))
    for side, own in zip(found, size, strict=True):
        assert side == own < STRIDE or (side % STRIDE == 0 and abs(side - factor * own) <= 16)


def test_reducing_averages_the_pixels_it_skips(usual):
    lattice = torch.zeros(1, 3, 1920, 2560, dtype=torch.uint8)
    lattice[:, :, ::2, 1::2] = lattice[:, :, 1::2, ::2] = 200
    inner = usual.reduce(lattice)[:, :, 2:-2, 2:-2]
    torch.testing.assert_close(inner, torch.full_like(inner, 100), atol=1, rtol=0)


class One:
    """A single frame."""

    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.sample

    def name(self, index):
        return self.sample.name


def ramp(height, width):
    """Where the centre of each pixel is, as a share of the height and of the width."""
    rows, columns = ((torch.arange(n) + 0.5) / n for n in (height, width))
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))[None]


def test_nothing_is_moved_when_images_are_reduced(usual):
    image = torch.full((1, 3, 600, 800), 255, dtype=torch.uint8)
    image[..., :40, :], image[..., :, :40] = 0, 0
    found = usual.reduce(image)[0, 0].double()
    # The dark borders end 40 pixels from the border of the whole image: so much is dark, around 20.
    for line, side in ((found[:, -1], 600), (found[-1], 800)):
        dark, scale = (255 - line) / 255, side / len(line)
        centre = (dark * (torch.arange(len(line)) + 0.5)).sum() / dark.sum()
        assert float(scale * dark.sum()) == pytest.approx(40, abs=0.1)
        assert float(scale * centre) == pytest.approx(20, abs=0.1)


def test_nothing_is_moved_when_the_maps_of_the_kernel_are_enlarged():
    features = Features([], ramp(200, 270), ramp(200, 270)[:, :1]).at_size((600, 801))
    wanted = ramp(600, 801)
    inner = (..., slice(3, -3), slice(3, -3))
    torch.testing.assert_close(features.embedding[inner], wanted[inner], atol=1e-4, rtol=0)
    torch.testing.assert_close(features.amplitude[inner], wanted[:, :1][inner], atol=1e-4, rtol=0)


def test_it_is_a_part_of_the_file_if_it_is_known(usual):
    assert not UsualSize().state_dict()
    other = UsualSize()
    other.load_state_dict(usual.state_dict())
    assert other.size.tolist() == [192, 256]


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


def test_the_network_sees_a_reduced_image_in_every_way_of_using_it(indoor, room, monkeypatch):
    image = torch.from_numpy(enlarged(room, 3)).permute(2, 0, 1)[None]
    seen = []
    plain = BasisNet.normalise
    monkeypatch.setattr(
        BasisNet, "normalise", lambda net, x: seen.append(tuple(x.shape[2:])) or plain(net, x)
    )
    sparse = torch.zeros(1, 1, *image.shape[2:])
    sparse[0, 0, ::40, ::40] = 2.0
    prepared = indoor.prepare(image[0].permute(1, 2, 0).numpy()).complete(sparse[0, 0].numpy())
    mean = indoor(image, sparse).mean[0, 0].numpy()
    assert np.abs(mean - prepared.latent_mean).max() < 1e-3
    large = room._replace(image=image[0])
    fabric = Fabric(accelerator="cpu", devices=1)
    (summary,) = summaries(fabric, indoor.network, One(large))
    assert set(seen) == {indoor.network.usual_size.size_of(*image.shape[2:])} != {image.shape[2:]}
    prepared = indoor.prepare(image[0].permute(1, 2, 0).numpy())
    torch.testing.assert_close(summary, prepared.features.summary[0], atol=1e-4, rtol=1e-3)


def test_familiarity_is_learned_from_frames_as_the_network_sees_them(usual, room):
    large = room._replace(
        image=torch.from_numpy(enlarged(room, 3)).permute(2, 0, 1),
        depth=room.depth.repeat_interleave(3, 1).repeat_interleave(3, 2),
    )
    found = Reduced(One(large), usual)[0]
    height, width = usual.size_of(*large.image.shape[1:])
    assert found.image.shape == (3, height, width)
    assert found.depth.shape == (1, height, width)
    torch.testing.assert_close(found.image, usual.reduce(large.image[None])[0], atol=1, rtol=0)
    assert Reduced(One(large), UsualSize())[0] is large


def test_a_damaged_size_is_refused(tmp_path):
    model = make_model()
    for size in ((-5.0, 5.0), (0.0, 0.0), (3.0,), (1.0, 2.0, 3.0), ()):
        model.network.usual_size.store(size=torch.tensor(size))
        model.save(tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match="usual image size"):
            deepbasis.load(tmp_path / "model.safetensors")
