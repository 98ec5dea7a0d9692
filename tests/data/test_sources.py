# SPDX-License-Identifier: Apache-2.0
"""Data sets by name, and frames as a training sees them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data import fakes
from deepbasis.data.sample import Sample, halve, seeded, unknown_intrinsics
from deepbasis.data.sources import (
    CachedFrames,
    Concat,
    Cropped,
    Downscaled,
    Source,
    Subset,
    fingerprint,
    split_validation,
    subsample,
)
from deepbasis.data.training import AnySensor, Between, TrainingSet, batches, collate, parse_points


class Numbers:
    """Frames whose depth is their number and one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"n{index}"

    def __getitem__(self, index: int) -> Sample:
        depth = torch.full((1, 24, 32), 1.0 + index)
        image = torch.full((3, 24, 32), index, dtype=torch.uint8)
        return Sample(self.name(index), image, depth, depth * 0, torch.eye(3))


def test_worlds_test_on_other_frames_than_they_train_on():
    source = Source("rooms", count=2, size=(32, 48))
    train, test = source.open("train"), source.open("test")
    assert {train.name(i) for i in range(2)}.isdisjoint(test.name(i) for i in range(2))
    assert not torch.equal(train[0].depth, test[0].depth)


def test_frames_are_picked_and_downscaled():
    picked = Subset(Numbers(10), [1, 8])
    assert [picked.name(i) for i in range(2)] == ["n1", "n8"]
    small = Downscaled(picked, 4)[1]
    assert small.image.shape == (3, 6, 8)
    assert torch.equal(small.depth, halve(halve(picked[1])).depth)


def test_frames_are_downscaled_about_the_same_centre_if_asked_for():
    source = Source("rooms", count=1, size=(32, 48), downscale=2)
    full = replace(source, downscale=1).open("test")[0]
    for centred in (False, True):
        small = replace(source, centred=centred).open("test")[0]
        assert torch.equal(small.depth, halve(full, centred=centred).depth)


def test_kittis_selected_validation_frames_are_a_variant(tmp_path):
    source = Source("kitti", fakes.kitti(tmp_path), variant="val_selection")
    frames = source.open("test")
    assert len(frames) == 2
    assert all("image" in frames.name(i) for i in range(2))
    assert len(replace(source, variant=None).open("test")) == 4
    with pytest.raises(
        ValueError, match="`variant` is 'fog'; choose one of 'val', 'val_selection'"
    ):
        replace(source, variant="fog").open("test")


@pytest.mark.parametrize(
    ("count", "picked"), [(3, [0, 3, 6]), (10, list(range(10))), (99, list(range(10)))]
)
def test_frames_are_spread_evenly_and_none_is_there_twice(count, picked):
    some = subsample(Numbers(10), count)
    assert [some.name(i) for i in range(len(some))] == [f"n{i}" for i in picked]


def test_joined_frames_are_the_first_and_then_the_second():
    both = Concat(Subset(Numbers(9), [7, 5]), Numbers(3))
    assert [both.name(i) for i in range(len(both))] == ["n7", "n5", "n0", "n1", "n2"]
    assert [float(both[i].depth[0, 0, 0]) for i in range(len(both))] == [8, 6, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_remembered_frames_are_the_frames(workers):
    kept = CachedFrames(Numbers(5), workers)
    assert len(kept) == 5
    for i in range(5):
        assert kept.name(i) == f"n{i}"
        assert torch.equal(kept[i].depth, Numbers(5)[i].depth)


def test_held_back_frames_are_the_last_and_in_nobody_elses_hands():
    train, held = split_validation(Numbers(10), 3)
    assert [train.name(i) for i in range(7)] == [f"n{i}" for i in range(7)]
    assert [held.name(i) for i in range(3)] == ["n7", "n8", "n9"]
    with pytest.raises(ValueError, match="--val-frames 10 must be from 0 to 9"):
        split_validation(Numbers(10), 10)


def test_the_fingerprint_knows_number_and_order():
    prints = {fingerprint(f) for f in (Numbers(3), Numbers(4), Subset(Numbers(3), [1, 0, 2]))}
    assert len(prints) == 3
    assert fingerprint(Numbers(3)) == fingerprint(Subset(Numbers(9), [0, 1, 2]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "nyu"}, "--data nyu needs its folder: pass --root"),
        ({"data": "rooms", "root": Path()}, "--data rooms takes no --root"),
        ({"data": "rooms", "count": 0}, "--frames 0 must be at least 1"),
        ({"data": "moon"}, "`data` is 'moon'; choose one of 'nyu'"),
    ],
)
def test_sources_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Source(**settings)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes_share_an_epoch_without_overlap_and_in_the_order_of_one(ranks):
    alone = list(batches(25, 2, seed=4, epoch=1))
    shared = [list(batches(25, 2, seed=4, epoch=1, rank=r, ranks=ranks)) for r in range(ranks)]
    turns = [batch for turn in zip(*shared, strict=True) for batch in turn]
    assert turns == alone[: len(turns)]
    assert len(turns) == 25 // (2 * ranks) * ranks
    assert len({i for batch in turns for i in batch}) == 2 * len(turns)
    rest = list(batches(25, 2, seed=4, epoch=1, rank=0, ranks=ranks, skip=2))
    assert rest == shared[0][2:]
    assert list(batches(25, 2, seed=4, epoch=2)) != alone


def test_a_size_is_divided_by_powers_of_two_only():
    with pytest.raises(ValueError, match="--downscale 3 is not one of 1, 2, 4"):
        Source("rooms", downscale=3)


def test_points_are_drawn_with_the_frame_whoever_asks():
    one, again = (TrainingSet(Numbers(4), "100-300", seed=7) for _ in "ab")
    for part, other in zip(one[3][1:], again[3][1:], strict=True):
        assert torch.equal(part, other)
    later = TrainingSet(Numbers(4), "100-300", seed=7, epoch=1)
    assert not torch.equal(later[3].sparse, one[3].sparse)


def test_a_range_reaches_both_ends_and_favours_no_magnitude():
    depth, image = torch.ones(1, 24, 32), torch.zeros(3, 24, 32, dtype=torch.uint8)
    g = torch.Generator().manual_seed(0)
    counts = torch.tensor(
        [int((Between(0, 500)(depth, image, torch.eye(3), g) > 0).sum()) for _ in range(400)]
    )
    assert counts.min() == 0
    assert counts.max() > 450
    # ln(1 + n) is uniform on 0 .. ln 501, so half of the counts are below sqrt(501) - 1 = 21.4;
    # four standard errors of a share of 400 draws are 0.1.
    assert abs(float((counts <= 21).float().mean()) - 0.5) < 0.1


def test_points_by_name():
    assert parse_points("sensor") is None
    assert parse_points("0-850") == Between(0, 850)
    assert str(parse_points("5%")) == "5%"
    with pytest.raises(ValueError, match="runs backwards; write 1-9"):
        parse_points("9-1")


def test_the_sensors_own_points_are_used_as_they_are():
    class Measured(Numbers):
        def __getitem__(self, index: int) -> Sample:
            sample = super().__getitem__(index)
            sparse = torch.zeros_like(sample.depth)
            sparse[0, 3, 4:9] = 2.5
            return sample._replace(sparse=sparse)

    item = TrainingSet(Measured(1), "sensor")[0]
    assert int((item.sparse == 2.5).sum()) == 5


def test_kittis_frames_are_cropped_to_what_the_benchmark_scores():
    class Large(Numbers):
        def __getitem__(self, index: int) -> Sample:
            depth = torch.arange(375 * 1242.0).view(1, 375, 1242)
            image = torch.zeros(3, 375, 1242, dtype=torch.uint8)
            return Sample("x", image, depth, depth, torch.eye(3))

    sample = Cropped(Large(1), (352, 1216))[0]
    assert torch.equal(sample.depth, Large(1)[0].depth[:, 23:, 13 : 13 + 1216])
    assert Cropped(Numbers(1), (352, 1216))[0].image.shape == (3, 24, 32)


def test_frames_of_two_sizes_cannot_share_a_batch():
    items = [TrainingSet(Numbers(2), "100")[i] for i in range(2)]
    assert collate(items).image.shape == (2, 3, 24, 32)
    small = TrainingSet(Downscaled(Numbers(2), 2), "100")[1]
    with pytest.raises(ValueError, match="the frames n0, n1 are of 2 sizes"):
        collate([items[0], small])


def test_any_sensor_draws_some_points_of_every_kind(generator):
    """Never fewer than 20 nor more than 5 %, also on an image without corners."""
    depth = torch.rand(1, 60, 80, generator=generator) + 1
    image = torch.randint(0, 256, (3, 60, 80), generator=generator, dtype=torch.uint8)
    rows_of_points = set()
    for seed, picture in [(seed, image) for seed in range(60)] + [(99, 0 * image)]:
        found = AnySensor()(depth, picture, unknown_intrinsics(), seeded(seed))
        count = int((found > 0).sum())
        assert 20 <= count <= 240
        assert torch.equal(found[found > 0], depth[found > 0])
        rows_of_points.add(len((found[0] > 0).any(1).nonzero()) / min(count, 60) < 0.4)
    assert rows_of_points == {True, False}  # on few rows: a grid or scan lines; and scattered
