# SPDX-License-Identifier: Apache-2.0
"""Frames with points for the network's input and points for the fit."""

import torch

from deepbasis.data.sample import Sample
from deepbasis_paper.data.training import PaperTrainingSet
from deepbasis_paper.scaffold import scaffold


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


def test_fit_points_are_disjoint_from_those_the_network_sees():
    frames = Numbers(3)
    item = PaperTrainingSet(frames, "50", "300", depth_input=True)[2]
    seen = PaperTrainingSet(frames, "50", "same", depth_input=True)[2]
    assert int((item.sparse > 0).sum()) == 300
    assert int((seen.sparse > 0).sum()) == 50
    assert not ((item.sparse > 0) & (seen.sparse > 0)).any()
    assert torch.equal(item.scaffold, scaffold(seen.sparse))
    assert torch.equal(item.seen, seen.sparse > 0)  # the points, not the hull around them
    assert int(item.seen.sum()) == 50 < int((item.scaffold > 0).sum())


def test_withheld_and_unseen_points_leave_nothing_in_the_input():
    for dropped in (
        PaperTrainingSet(Numbers(3), "50", "300", drop=1.0, depth_input=True)[0],
        PaperTrainingSet(Numbers(3), "50", "300")[0],
    ):
        assert not dropped.seen.any()
        assert not dropped.scaffold.any()
        assert int((dropped.sparse > 0).sum()) == 300


def test_points_depend_on_frame_seed_and_epoch_alone():
    settings = {"depth_input": True, "seed": 7}
    one, again = (PaperTrainingSet(Numbers(4), "0-100", "300", **settings) for _ in "ab")
    for part, other in zip(one[3][1:], again[3][1:], strict=True):
        assert torch.equal(part, other)
    later = PaperTrainingSet(Numbers(4), "0-100", "300", epoch=1, **settings)
    assert not torch.equal(later[3].sparse, one[3].sparse)


def test_the_sensors_own_points_are_used_as_they_are():
    class Measured(Numbers):
        def __getitem__(self, index: int) -> Sample:
            sample = super().__getitem__(index)
            sparse = torch.zeros_like(sample.depth)
            sparse[0, 3, 4:9] = 2.5
            return sample._replace(sparse=sparse)

    item = PaperTrainingSet(Measured(1), "sensor", "same", depth_input=True)[0]
    assert int((item.sparse == 2.5).sum()) == 5
