# SPDX-License-Identifier: Apache-2.0
"""Samples, the transforms of training, and points that do not depend on the worker."""

import pytest
import torch
from torch.utils.data import DataLoader

from deepbasis.data import sample as s
from deepbasis.data.with_points import WithPoints
from deepbasis.patterns import parse


def make(height=6, width=8, seed=0) -> s.Sample:
    g = torch.Generator().manual_seed(seed)
    depth = 1 + torch.rand(1, height, width, generator=g)
    depth[0, 0, 0] = 0
    image = torch.randint(0, 256, (3, height, width), generator=g, dtype=torch.uint8)
    camera = s.make_intrinsics(10.0, 11.0, 3.0, 2.0)
    return s.Sample(f"frame{seed}", image, depth, torch.zeros_like(depth), camera)


class Some:
    """Eight frames."""

    def __len__(self) -> int:
        return 8

    def name(self, index: int) -> str:
        return str(index)

    def __getitem__(self, index: int) -> s.Sample:
        return make(24, 32, index)


def project(camera: torch.Tensor, point: tuple[float, float, float]) -> torch.Tensor:
    p = camera @ torch.tensor(point, dtype=torch.float32)
    return p[:2] / p[2]


def test_flip_mirrors_everything_alike_and_twice_is_nothing():
    frame = make()
    flipped = s.flip(frame)
    assert torch.equal(flipped.image[:, :, 0], frame.image[:, :, -1])
    assert torch.equal(flipped.depth[:, :, 0], frame.depth[:, :, -1])
    back = s.flip(flipped)
    assert all(torch.equal(a, b) for a, b in zip(back[1:], frame[1:], strict=True))
    # A point on the left of the camera lands, mirrored, on the mirrored column.
    left, right = project(frame.intrinsics, (-1, 0, 5)), project(flipped.intrinsics, (1, 0, 5))
    assert right[0] == pytest.approx(8 - 1 - left[0].item())


def test_crop_moves_the_camera_along():
    frame = make()
    part = s.crop(frame, slice(2, 5), slice(1, 7))
    assert part.image.shape == (3, 3, 6)
    assert torch.equal(part.depth[0, 0], frame.depth[0, 2, 1:7])
    before, after = (project(f.intrinsics, (0.3, 0.2, 2)) for f in (frame, part))
    assert (before - after).tolist() == pytest.approx([1, 2])


def test_halving_averages_colour_and_picks_depth():
    frame = make(7, 9)
    half = s.halve(frame)
    assert half.image.shape == (3, 3, 4)
    block = frame.image[:, 2:4, 4:6].float().mean((1, 2))
    assert (half.image[:, 1, 2].float() - block).abs().max() <= 0.5
    assert half.depth[0, 0, 0] == frame.depth[0, 0, 1]  # its first is missing, so the second
    assert half.depth[0, 2, 3] == frame.depth[0, 4, 6]
    everything = set(frame.depth.flatten().tolist())
    assert set(half.depth.flatten().tolist()) <= everything  # never a depth in between
    before, after = (project(f.intrinsics, (0.3, 0.2, 2)) for f in (frame, half))
    assert after.tolist() == pytest.approx(((before - 0.5) / 2).tolist())


def test_halving_keeps_single_points_and_holes():
    frame = make()._replace(depth=torch.zeros(1, 6, 8))
    frame.depth[0, 3, 5] = 4.0
    half = s.halve(frame)
    assert half.depth[0, 1, 2] == 4
    assert (half.depth > 0).sum() == 1


def test_centred_halving_keeps_a_plane_where_it_is():
    """Depths of the small frame, unprojected by its camera, lie on the plane; those of the upper
    left pixels lie beside it.
    """
    row, column = torch.meshgrid(torch.arange(20.0), torch.arange(30.0), indexing="ij")
    camera = s.make_intrinsics(25.0, 24.0, 14.2, 9.7)

    def on_plane(row, column, camera):
        x, y = (column - camera[0, 2]) / camera[0, 0], (row - camera[1, 2]) / camera[1, 1]
        return (2 / (1 + 0.3 * x - 0.4 * y))[None]

    depth = on_plane(row, column, camera)
    image = torch.zeros(3, 20, 30, dtype=torch.uint8)
    frame = s.Sample("x", image, depth, depth, camera)
    half = s.halve(frame, centred=True)
    want = on_plane(row[:10, :15], column[:10, :15], half.intrinsics)
    torch.testing.assert_close(half.depth, want, rtol=1e-5, atol=0)
    picked = s.halve(frame).depth
    assert ((picked - want).abs() > 1e-3 * want).float().mean() > 0.9


def test_centred_halving_keeps_single_points_holes_and_edges():
    depth = torch.zeros(1, 4, 6)
    depth[0, 1, 1] = 4.0  # a point
    depth[0, 0, 2:4], depth[0, 1, 2:4] = torch.tensor([2.0, 5.0]), torch.tensor([2.1, 5.1])  # edge
    depth[0, 2, 4:6] = torch.tensor([3.0, 3.1])  # half of a block, on one surface
    frame = make(4, 6)._replace(depth=depth, sparse=depth)
    half = s.halve(frame, centred=True)
    assert half.depth[0, 0].tolist() == [4.0, 2.0, 0.0]
    assert half.depth[0, 1].tolist() == [0.0, 0.0, pytest.approx(2 / (1 / 3.0 + 1 / 3.1))]
    assert torch.equal(half.depth, half.sparse)


def test_jitter_changes_colours_by_two_percent_or_so_and_no_depth():
    frame = make(40, 40)
    jittered = s.jitter(frame, s.COLOUR_JITTER, torch.Generator().manual_seed(1))
    change = (jittered.image.float() - frame.image.float()).abs()
    assert 0 < change.mean() < 6
    assert torch.equal(jittered.depth, frame.depth)
    same = s.jitter(frame, 0.0, torch.Generator().manual_seed(1))
    assert torch.equal(same.image, frame.image)


def test_another_camera_changes_the_image_by_its_strength_and_no_depth():
    frame = make(40, 40)
    changes = []
    for strength in (0.0, 0.3, 1.0):
        varied = [s.vary_camera(frame, strength, s.seeded(i)) for i in range(20)]
        assert all(torch.equal(other.depth, frame.depth) for other in varied)
        change = [(v.image.float() - frame.image.float()).abs().mean() for v in varied]
        changes.append(float(torch.stack(change).mean()))
    assert changes[0] == 0 < changes[1] < changes[2]


def test_zoom_enlarges_a_part_and_brings_it_nearer():
    """Objects keep their size in pixels relative to depth, and the camera follows the crop."""
    row, column = torch.meshgrid(torch.arange(60.0), torch.arange(80.0), indexing="ij")
    image = torch.stack([row, column, 0 * row]).to(torch.uint8)
    depth = (1 + row / 10 + column / 100)[None]
    camera = s.make_intrinsics(50.0, 50.0, 40.0, 30.0)
    sample = s.Sample("x", image, depth, depth, camera)
    zoomed = s.zoom(sample, 0.5, s.seeded(1))
    across = float(zoomed.intrinsics[0, 0] / 50)
    assert 1 < across <= 1.5
    ray = torch.linalg.inv(zoomed.intrinsics) @ torch.tensor([33.0, 21.0, 1.0])
    u, v, _ = (camera @ ray).tolist()  # the same ray in the original
    assert zoomed.image[:2, 21, 33].tolist() == pytest.approx([v, u], abs=1)
    assert float(zoomed.depth[0, 21, 33]) == pytest.approx(
        (1 + v / 10 + u / 100) / across, rel=0.05
    )
    assert zoomed.depth.shape == depth.shape


def test_augmentation_flips_half_of_the_time():
    frame = make()
    flips = sum(
        torch.equal(s.augment(frame, s.seeded(0, i)).depth, frame.depth.flip(-1))
        for i in range(400)
    )
    assert 200 - 4 * 10 < flips < 200 + 4 * 10  # four standard errors


@pytest.mark.parametrize("training", [False, True])
def test_points_are_the_same_on_any_number_of_workers(training):
    frames = WithPoints(Some(), parse("20"), seed=5, training=training)
    once = [frames[i] for i in range(8)]
    for workers in (0, 2):
        loader = DataLoader(frames, batch_size=4, num_workers=workers)
        batches = list(loader)
        assert isinstance(batches[0], s.Sample)
        together = torch.cat([batch.sparse for batch in batches])
        assert torch.equal(together, torch.stack([f.sparse for f in once]))
    assert all((f.sparse > 0).sum() == 20 for f in once)
    assert all(torch.equal(f.sparse[f.sparse > 0], f.depth[f.sparse > 0]) for f in once)


def test_another_epoch_or_seed_draws_other_points():
    frames = WithPoints(Some(), parse("20"), seed=5)
    draws = [frames[0], frames.at_epoch(1)[0], WithPoints(Some(), parse("20"), seed=6)[0]]
    assert len({tuple((d.sparse > 0).flatten().tolist()) for d in draws}) == 3
    assert torch.equal(frames[0].sparse, frames.at_epoch(0)[0].sparse)


def test_two_frames_alike_get_different_points():
    class Alike(Some):
        def name(self, index: int) -> str:
            return str(index)

        def __getitem__(self, index: int) -> s.Sample:
            return make(24, 32)

    frames = WithPoints(Alike(), parse("20"), seed=5)
    assert not torch.equal(frames[0].sparse, frames[1].sparse)


def test_noise_and_outliers_come_on_top():
    clean = WithPoints(Some(), parse("50%"), seed=5)[0]
    noisy = WithPoints(Some(), parse("50%"), seed=5, noise=0.1)[0]
    at = clean.sparse > 0
    assert torch.equal(at, noisy.sparse > 0)
    spread = (noisy.sparse[at] / clean.sparse[at]).log().std()
    assert spread == pytest.approx(0.1, rel=0.2)


def test_sizes_that_differ_are_named():
    frame = make()._replace(depth=torch.ones(1, 3, 4))
    with pytest.raises(ValueError, match=r"frame0: image, depth .* are \[6, 8\], \[3, 4\]"):
        s.check_sizes(frame)
