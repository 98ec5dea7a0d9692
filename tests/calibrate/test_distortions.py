# SPDX-License-Identifier: Apache-2.0
"""Frames as another camera would see them."""

import math

import pytest
import torch

from deepbasis.calibrate import distortions
from deepbasis.calibrate.distortions import DISTORTIONS, LOOKS, VIEWS, Distorted
from deepbasis.data.sample import Sample, make_intrinsics


@pytest.fixture
def sample(generator):
    image = torch.randint(256, (3, 48, 64), generator=generator, dtype=torch.uint8)
    depth = 1 + torch.rand(1, 48, 64, generator=generator)
    depth[:, :8] = 0
    camera = make_intrinsics(50, 50, 31.5, 23.5)
    return Sample("one", image, depth, torch.zeros_like(depth), camera)


class Twice:
    """The same frame, two times."""

    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.sample

    def name(self, index):
        return self.sample.name


@pytest.mark.parametrize("change", [*DISTORTIONS.values(), *VIEWS])
def test_depths_are_those_of_the_frame(sample, generator, change):
    found = change(sample, generator)
    assert found.image.dtype == torch.uint8
    assert found.image.shape[1:] == found.depth.shape[1:]
    assert set(found.depth.unique().tolist()) <= set(sample.depth.unique().tolist())


@pytest.mark.parametrize("change", DISTORTIONS.values())
def test_images_change(sample, generator, change):
    assert not torch.equal(change(sample, generator).image, sample.image)


@pytest.mark.parametrize("change", LOOKS)
def test_another_look_leaves_depth_alone(sample, generator, change):
    found = change(sample, generator)
    torch.testing.assert_close(found.depth, sample.depth, rtol=0, atol=0)


def test_a_rolled_frame_shows_the_same_pixels_at_an_angle(sample, monkeypatch, generator):
    """Colours and depths follow the rotation by 30 degrees about the centre, enlarged."""
    monkeypatch.setattr(distortions, "uniform", lambda low, high, _: 30.0 if low > 0 else high)
    row, column = torch.meshgrid(torch.arange(48), torch.arange(64), indexing="ij")
    x, y = column - 31.5, row - 23.5
    image = torch.stack([2 * column, 2 * row, row]).to(torch.uint8)
    found = distortions.roll(sample._replace(image=image, depth=column[None] + 1.0), generator)
    cos, sin = math.cos(math.radians(30)), 0.5
    zoom = cos + sin * 64 / 48
    seen = (cos * x - sin * y) / zoom + 31.5, (sin * x + cos * y) / zoom + 23.5
    assert float((found.image[0] / 2 - seen[0]).abs().max()) < 0.6
    assert float((found.image[1] / 2 - seen[1]).abs().max()) < 0.6
    assert float((found.depth[0] - 1 - seen[0]).abs().max()) < 0.51
    assert min(float(part.min()) for part in seen) >= -0.5


def test_frames_are_distorted_in_the_same_way_again(sample):
    frames = Twice(sample)
    first, second = (Distorted(frames, seed=3)[i] for i in (0, 1))
    assert torch.equal(Distorted(frames, seed=3)[0].image, first.image)
    assert first.image.shape != second.image.shape or not torch.equal(first.image, second.image)
    other = Distorted(frames, seed=4)[0]
    assert other.image.shape != first.image.shape or not torch.equal(other.image, first.image)
    assert len(Distorted(frames, seed=3)) == 2
