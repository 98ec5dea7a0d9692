# SPDX-License-Identifier: Apache-2.0
"""Virtual KITTI 2 on a tiny copy of its published tree."""

import numpy as np
import pytest
import torch
from PIL import Image

from data import fakes
from deepbasis.data.vkitti2 import SPLITS, Vkitti2


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory):
    return fakes.vkitti2(tmp_path_factory.mktemp("vkitti2"))


def test_the_papers_splits(shared_root):
    names = [sample.name for sample in Vkitti2(shared_root)]
    assert names == [
        f"{scene}/{variant}/Camera_0/{k:05d}"
        for scene in ("Scene02", "Scene06", "Scene18", "Scene20")
        for variant in ("clone", "morning", "overcast", "sunset")
        for k in (0, 1)
    ]
    for split in SPLITS:
        if split != "train":
            variant = "clone" if split == "test" else split
            frames = Vkitti2(shared_root, split)
            assert [s.name for s in frames] == [
                f"Scene01/{variant}/Camera_0/0000{k}" for k in (0, 1)
            ]


def test_a_shifted_split_is_spelt_as_its_folder():
    assert list(SPLITS)[2:] == [
        "15-deg-left", "15-deg-right", "30-deg-left", "30-deg-right", "fog", "rain",
    ]  # fmt: skip


def test_values_at_both_sizes(shared_root):
    full = Vkitti2(shared_root, "test", halve=False)[1]
    assert (full.image == 2).all()
    assert full.depth.shape == (1, 5, 8)
    assert full.depth[0, 0, 0] == 0
    assert (full.depth.flatten()[1:] == 2).all()
    assert not full.sparse.any()
    expected = [[725.0087, 0, 620.5], [0, 725.0087, 187], [0, 0, 1]]
    assert torch.equal(full.intrinsics, torch.tensor(expected))
    half = Vkitti2(shared_root, "test")[1]
    assert half.image.shape == (3, 2, 4)
    assert (half.depth == 2).all()
    torch.testing.assert_close(half.intrinsics[:2, 2], torch.tensor([310.0, 93.25]))


def test_the_other_camera(shared_root):
    frames = Vkitti2(shared_root, "fog", "Camera_1")
    assert frames[0].name == "Scene01/fog/Camera_1/00000"


def test_sky_and_what_lies_beyond_the_cap_is_no_depth(tmp_path):
    root = fakes.vkitti2(tmp_path, (1, 6))
    counts = np.array([[150, 8000, 8001, 65534, 65535, 0]], np.uint16)
    path = root / "Scene01" / "clone" / "frames" / "depth" / "Camera_0" / "depth_00000.png"
    Image.fromarray(counts).save(path)
    depth = Vkitti2(root, "test", halve=False)[0].depth
    assert depth.flatten().tolist() == [1.5, 80, 0, 0, 0, 0]
    uncapped = Vkitti2(root, "test", cap=1e9, halve=False)[0].depth
    assert uncapped[0, 0, 3] == np.float32(655.34)
    assert uncapped[0, 0, 4] == 0


def test_an_unknown_split_names_the_known(shared_root):
    with pytest.raises(
        ValueError, match="`split` is '15-left'; choose one of 'train', 'test', '15-"
    ):
        Vkitti2(shared_root, "15-left")


def test_a_missing_scene_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"Scene02/clone/frames/rgb/Camera_0; `root` should"
    ):
        Vkitti2(tmp_path)


def test_unequal_counts_name_both_patterns(tmp_path):
    root = fakes.vkitti2(tmp_path)
    frames = root / "Scene01" / "fog" / "frames"
    (frames / "rgb" / "Camera_0" / "rgb_00001.jpg").unlink()
    with pytest.raises(
        ValueError,
        match=r"rgb/Camera_0/rgb_\*\.jpg are 1 files and .*depth/Camera_0/depth_\*\.png are 2, 1 "
        r"of them without a partner, first .*depth_00001\.png",
    ):
        Vkitti2(root, "fog")
