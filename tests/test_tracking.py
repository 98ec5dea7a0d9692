# SPDX-License-Identifier: Apache-2.0
"""Tracks: shifted images, rendered motion, and pixels that cannot be found."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from deepbasis.tracking import lattice, to_grey, track
from walks import SIZE, camera, room


def texture(height, width, seed=0):
    """Smooth noise with structure at all scales."""
    draw = torch.Generator().manual_seed(seed)
    total = torch.zeros(1, 1, height, width)
    for step in (4, 8, 16, 32):
        coarse = torch.rand(1, 1, height // step + 2, width // step + 2, generator=draw)
        total += F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
    return total / 4


@pytest.mark.parametrize(("down", "right"), [(0, 0), (3, -5), (-30, 41), (60, 10)])
def test_a_shift_of_whole_pixels_is_found(down, right):
    whole = texture(400, 500)
    before, after = (
        whole[..., 80:320, 90:410],
        whole[..., 80 - down : 320 - down, 90 - right : 410 - right],
    )
    tracks = track(before, after, lattice((240, 320), 200))
    moved = tracks.after - tracks.before
    there = lattice((240, 320), 200) + torch.tensor([down, right])
    inside = ((there > 8) & (there < torch.tensor([232, 312]))).all(1)
    assert tracks.found[inside].float().mean() > 0.95
    off = (moved - torch.tensor([down, right])).norm(dim=1)
    assert off.quantile(0.9) < 0.1


def test_exposure_does_not_matter():
    whole = texture(300, 400)
    before, after = whole[..., 20:260, 40:360], 0.7 * whole[..., 24:264, 34:354] + 0.2
    tracks = track(before, after, lattice((240, 320), 200))
    assert tracks.found.float().mean() > 0.85
    off = (tracks.after - tracks.before - torch.tensor([-4.0, 6.0])).norm(dim=1)
    assert off.quantile(0.9) < 0.2


def test_a_rendered_motion_is_found():
    first, other = room()[0], room()[2]
    grey = [to_grey(torch.from_numpy(f.image).permute(2, 0, 1)[None]) for f in (first, other)]
    tracks = track(*grey, lattice(SIZE, 300))
    assert tracks.found[tracks.textured].float().mean() > 0.6
    row, column = tracks.before.numpy().astype(int).T
    depth = first.depth[row, column]
    rays = np.linalg.solve(camera(first), np.stack([column, row, np.ones(len(row))]))
    world = first.pose[:3, :3] @ (rays * depth) + first.pose[:3, 3:]
    seen = camera(other) @ other.pose[:3, :3].T @ (world - other.pose[:3, 3:])
    off = np.hypot(*(seen[:2] / seen[2] - tracks.after.numpy().T[::-1]))[depth > 0]
    assert np.median(off) < 1.0
    assert np.quantile(off, 0.8) < 2.5


def test_what_is_flat_or_another_image_is_not_found():
    flat = torch.full((1, 1, 240, 320), 0.5)
    tracks = track(flat, flat, lattice((240, 320), 200))
    assert not tracks.found.any()
    assert not tracks.textured.any()
    tracks = track(texture(240, 320), texture(240, 320, seed=1), lattice((240, 320), 200))
    assert tracks.textured.float().mean() > 0.9
    assert tracks.found.float().mean() < 0.1


@pytest.mark.parametrize("size", [(240, 320), (17, 400), (1, 1), (5, 7)])
def test_a_lattice_lies_in_the_image_and_images_of_any_size_can_be_tracked(size):
    places = lattice(size, 300)
    assert (places >= 0).all()
    assert (places < torch.tensor(size)).all()
    assert len(places) <= 310
    track(texture(*size), texture(*size), places)
