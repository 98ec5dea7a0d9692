# SPDX-License-Identifier: Apache-2.0
"""Folder on a tiny copy of its own tree, and what all readers promise."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch

from data import fakes
from deepbasis.data import formats
from deepbasis.data.folder import Folder, read_extrinsics, read_intrinsics
from deepbasis.data.kitti import Kitti
from deepbasis.data.nyu import NyuFolder, NyuMat
from deepbasis.data.vkitti2 import Vkitti2
from refusals import refusals

CAMERA = torch.tensor([[3.0, 0, 2.5], [0, 4, 1.5], [0, 0, 1]])


@pytest.fixture
def root(tmp_path):
    return fakes.folder(tmp_path)


def make_reader(name, root):
    """Each reader on its fake, and the names of its frames in order."""
    drive = fakes.DRIVES["train"]
    return {
        "Folder": lambda: (Folder(fakes.folder(root)), ["000000", "000001", "000002"]),
        "NyuFolder": lambda: (NyuFolder(fakes.nyu_folder(root)), ["0002", "0003"]),
        "Vkitti2": lambda: (
            Vkitti2(fakes.vkitti2(root), "test"),
            ["Scene01/clone/Camera_0/00000", "Scene01/clone/Camera_0/00001"],
        ),
        "Kitti": lambda: (
            Kitti(fakes.kitti(root)),
            [f"{drive}/image_0{c}/{i:010d}" for c in (2, 3) for i in (5, 6)],
        ),
    }[name]()


READERS = ["Folder", "NyuFolder", "Vkitti2", "Kitti"]


@pytest.mark.parametrize("name", READERS)
def test_every_reader_is_a_sorted_stable_sequence(tmp_path, name):
    frames, names = make_reader(name, tmp_path)
    samples = [frames[i] for i in range(len(frames))]
    assert [sample.name for sample in samples] == names
    copy = pickle.loads(pickle.dumps(frames))
    for sample, again in zip(samples, copy, strict=True):
        assert sample.name == again.name
        assert all(
            torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
            for a, b in zip(sample[1:], again[1:], strict=True)
        )
        assert sample.image.dtype == torch.uint8
        assert sample.depth.dtype == sample.sparse.dtype == torch.float32
        assert sample.intrinsics.isfinite().all()
    with pytest.raises(IndexError):
        frames[len(frames)]


@pytest.mark.parametrize("name", READERS)
def test_the_tree_in_the_docstring_is_the_tree_that_is_read(tmp_path, name):
    frames, _ = make_reader(name, tmp_path)
    drawn = fakes.drawn_files(type(frames))
    assert len(drawn) >= 2
    for path in drawn:
        assert (tmp_path / path).exists(), path


def test_a_wrong_choice_names_the_right_ones():
    setup = (
        "from pathlib import Path; from deepbasis.data import kitti, nyu, vkitti2; root = Path('.')"
    )
    for case, said in refusals(
        setup,
        cases := {
            "kitti.Kitti(root, 'training')": (
                "`split` is 'training'; choose one of 'train', 'val', 'val_selection', 'test'"
            ),
            "nyu.NyuFolder(root, 'val')": "`split` is 'val'; choose one of 'train', 'test', 'all'",
            "nyu.NyuMat(root, 'val')": "`split` is 'val'; choose one of 'train', 'test', 'all'",
            "nyu.NyuMat(root, 'all', 'ours')": (
                "`protocol` is 'ours'; choose one of 'paper', 'official'"
            ),
            "vkitti2.Vkitti2(root, 'test', 'left')": (
                "`camera` is 'left'; choose one of 'Camera_0', 'Camera_1'"
            ),
        },
    ).items():
        assert said == cases[case]


@pytest.mark.parametrize(
    "make", [Folder, NyuFolder, NyuMat, Vkitti2, Kitti], ids=lambda make: make.__name__
)
def test_a_missing_root_is_named(tmp_path, make):
    with pytest.raises(FileNotFoundError, match=r"there is no (file|folder) .*nowhere; check its"):
        make(tmp_path / "nowhere")


# Folder


def test_folder_reads_values(root):
    for k, sample in enumerate(Folder(root, sparse="lidar")):
        assert sample.image.shape == (3, 4, 6)
        assert (sample.image == k + 1).all()
        assert sample.depth[0, 0, 0] == 0
        assert (sample.depth.flatten()[1:] == k + 1).all()
        assert sample.mask.sum() == 23
        assert (sample.sparse.flatten()[1:] == (k + 1) / 2).all()
        assert torch.equal(sample.intrinsics, CAMERA)


def test_each_frame_may_have_its_own_camera(root):
    (root / "intrinsics.txt").unlink()
    frames = Folder(root)
    assert [float(s.intrinsics[0, 0]) for s in frames] == [1, 2, 3]
    assert frames[1].intrinsics[1:].tolist() == CAMERA[1:].tolist()
    (root / "intrinsics" / "000001.txt").unlink()
    with pytest.raises(
        ValueError, match=r"rgb/\* are 3 files and .*intrinsics/\* are 2, 1 of them"
    ):
        Folder(root)


def test_without_depth_or_camera(root):
    (root / "intrinsics.txt").unlink()
    shutil.rmtree(root / "intrinsics")
    sample = Folder(root, depths=None)[2]
    assert not sample.depth.any()
    assert not sample.sparse.any()
    assert sample.intrinsics.isnan().all()


def test_the_argument_wins_over_the_file(root):
    frames = Folder(root, depth_scale=500.0, intrinsics=2 * CAMERA)
    assert frames[0].depth[0, 1, 1] == 2
    assert torch.equal(frames[0].intrinsics, 2 * CAMERA)


def test_float_depths_need_no_scale(root):
    (root / "scale.txt").unlink()
    with pytest.raises(ValueError, match=r"000000\.png holds integers.*from 1 to 1 m, with KITTI"):
        Folder(root)[0]
    depth = np.full((4, 6), 2.5, np.float32)
    for path, write in (
        (root / "depth" / "000000.npy", formats.write_npy),
        (root / "depth" / "000001.pfm", formats.write_pfm),
    ):
        path.with_suffix(".png").unlink()
        write(path, depth)
    frames = Folder(root)
    assert (frames[0].depth == 2.5).all()
    assert (frames[1].depth == 2.5).all()


def test_a_missing_folder_names_the_argument(root):
    with pytest.raises(FileNotFoundError, match=r"no folder .*photos; name the folder with `imag"):
        Folder(root, images="photos")
    with pytest.raises(FileNotFoundError, match=r"no folder .*dep;.* or pass `depths=None` if the"):
        Folder(root, depths="dep")


def test_unequal_counts_name_both_and_a_file(root):
    (root / "depth" / "000001.png").unlink()
    with pytest.raises(
        ValueError,
        match=r"rgb/\* are 3 files and .*depth/\* are 2, 1 of them without a partner, "
        r"first .*rgb/000001\.jpg; each frame needs both",
    ):
        Folder(root)


def test_unequal_sizes_name_the_frame(root):
    fakes.counts(root / "depth" / "000001.png", 1, (5, 6))
    with pytest.raises(
        ValueError, match=r"000001: image, depth and sparse depth are \[4, 6\], \[5"
    ):
        Folder(root)[1]


def test_a_truncated_depth_map_is_named(root):
    path = root / "depth" / "000001.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"000001\.png cannot be read as a picture"):
        Folder(root)[1]


def test_a_scale_that_is_no_number_is_refused(root):
    (root / "scale.txt").write_text("mm")
    with pytest.raises(
        ValueError, match=r"scale\.txt holds 'mm'; it should hold one positive number"
    ):
        Folder(root)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("i.txt", "3 4 2.5 1.5"),
        ("i.txt", "3, 0, 2.5\n0, 4, 1.5\n0, 0, 1\n"),
        ("i.json", json.dumps({"fx": 3, "fy": 4, "cx": 2.5, "cy": 1.5, "model": "D435"})),
        ("i.json", json.dumps([[3, 0, 2.5], [0, 4, 1.5], [0, 0, 1]])),
        ("i.json", json.dumps([3, 4, 2.5, 1.5])),
    ],
)
def test_a_camera_in_every_dress(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert torch.equal(read_intrinsics(str(tmp_path / name)), CAMERA)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("i.txt", "3 0 2.5\n0 4 1.5\n", r"holds 6 numbers.*\(is a row missing\?\)"),
        ("i.txt", "3 4 2.5", "holds 3 numbers; a camera is `fx fy cx cy` or a 3x3 matrix"),
        ("i.txt", "fx 4 2 1", "does not hold the numbers of a camera .*'fx'"),
        ("i.txt", "3 0 2.5 0 4 1.5 1 0 0", "is not a camera matrix"),
        ("i.txt", "-3 4 2.5 1.5", "is not a camera matrix"),
        ("i.json", '{"fx": 3, "fy": 4, "cx": 2}', "has no 'cy'; give fx, fy, cx and cy in pixels"),
        ("i.json", "[[3, 0, 2.5], [0, 4], [0, 0, 1]]", "does not hold the numbers of a camera"),
        ("i.json", "{", "does not hold the numbers of a camera"),
        ("i.json", json.dumps([10**400, 1, 1, 1]), "does not hold the numbers of a camera"),
    ],
)
def test_a_wrong_camera_is_refused(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"i\.(txt|json) {said}"):
        read_intrinsics(tmp_path / name)


TURN = "0 -1 0 0.1\n0 0 -1 0.2\n1 0 0 -0.5"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pose.txt", TURN),
        ("pose.txt", f"{TURN}\n0 0 0 1\n".replace(" ", ", ")),
        ("pose.json", "[[0,-1,0,0.1],[0,0,-1,0.2],[1,0,0,-0.5]]"),
    ],
)
def test_a_pose_takes_points_from_sensor_to_camera(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    pose = read_extrinsics(str(tmp_path / name))
    ahead = torch.tensor([2.0, 0, 0, 1]).double()
    torch.testing.assert_close(pose @ ahead, torch.tensor([0.1, 0.2, 1.5, 1]).double())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2 3", r"pose\.txt holds 3 numbers; a pose is 3x4 or 4x4"),
        ("a b c", r"pose\.txt does not hold the numbers of a pose"),
        (TURN.replace("1", "2"), r"pose\.txt is not a valid pose: its first three columns"),
        (TURN.replace("-1", "1", 1), r"pose\.txt is not a valid pose: its first three columns"),
    ],
)
def test_what_is_no_pose_is_refused(tmp_path, text, said):
    (tmp_path / "pose.txt").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_extrinsics(tmp_path / "pose.txt")


def test_a_huge_integer_is_no_pose(tmp_path):
    (tmp_path / "pose.json").write_text(json.dumps([10**400, *range(11)]))
    with pytest.raises(ValueError, match=r"pose\.json does not hold the numbers of a pose"):
        read_extrinsics(tmp_path / "pose.json")
