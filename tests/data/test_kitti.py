# SPDX-License-Identifier: Apache-2.0
"""KITTI depth completion on a tiny copy of its published tree."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from data import fakes
from deepbasis.data.kitti import Kitti, read_calibration

CAMERA = torch.tensor([[721.5377, 0, 609.5593], [0, 721.5377, 172.854], [0, 0, 1]])


@pytest.fixture
def root(tmp_path):
    return fakes.kitti(tmp_path)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("apart", [False, True], ids=["merged", "apart"])
def test_drives(tmp_path, split, apart):
    frames = Kitti(fakes.kitti(tmp_path, apart=apart), split, halve=False)
    assert [s.name for s in frames] == [
        f"{fakes.DRIVES[split]}/image_0{c}/{k:010d}" for c in (2, 3) for k in (5, 6)
    ]
    sample = frames[1]
    assert (sample.image == 2).all()
    assert sample.depth.shape == (1, 6, 8)
    assert sample.depth[0, 0, 0] == sample.sparse[0, 0, 0] == 0
    assert (sample.depth.flatten()[1:] == 2).all()
    assert (sample.sparse.flatten()[1:] == 1).all()
    assert torch.equal(sample.intrinsics, CAMERA)


def test_half_size_keeps_the_points(root):
    path = f"val/{fakes.DRIVES['val']}/proj_depth/velodyne_raw/image_02/0000000005.png"
    lonely = np.zeros((6, 8), np.uint16)
    lonely[3, 5] = 384
    Image.fromarray(lonely).save(root / path)
    sample = Kitti(root, "val")[0]
    assert sample.image.shape == (3, 3, 4)
    assert sample.sparse.nonzero().tolist() == [[0, 1, 2]]
    assert sample.sparse.sum() == 1.5


def test_the_validation_selection_has_its_own_cameras(root):
    frames = Kitti(root, "val_selection", halve=False)
    start = f"{fakes.DRIVES['val']}_image_"
    assert [s.name for s in frames] == [f"{start}{k:010d}_image_02" for k in (5, 8)]
    assert (frames[1].depth.flatten()[1:] == 2).all()
    assert (frames[1].sparse.flatten()[1:] == 1).all()
    expected = torch.tensor([[720.0, 0, 600], [0, 710, 170], [0, 0, 1]])
    assert torch.equal(frames[1].intrinsics, expected)


def test_the_test_set_has_no_ground_truth(root):
    frames = Kitti(root, "test", halve=False)
    assert [s.name for s in frames] == ["0000000000", "0000000001"]
    assert not frames[1].depth.any()
    assert not frames[1].mask.any()
    assert (frames[1].sparse.flatten()[1:] == 1).all()
    assert frames[1].intrinsics[0, 0] == 720


def test_no_calibration_is_an_unknown_camera(root):
    (root / "raw" / "2011_09_26" / "calib_cam_to_cam.txt").unlink()
    assert Kitti(root)[0].intrinsics.isnan().all()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("P_rect_02", "P_rect_09", r"has no row `P_rect_02:` of 12 numbers \(found 0\)"),
        ("4.485728e+01", "", r"has no row `P_rect_02:` of 12 numbers \(found 11\)"),
        ("4.485728e+01", "x", r": P_rect_02 holds something that is not a number"),
        ("7.215377e+02", "nan", r"cannot be read as a calibration of KITTI: .*intrinsics are"),
    ],
)
def test_a_calibration_with_a_missing_row_says_so(tmp_path, old, new, said):
    path = tmp_path / "calib_cam_to_cam.txt"
    path.write_text(fakes.CALIBRATION.replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"calib_cam_to_cam\.txt ?{said}"):
        read_calibration(path, "image_02")
    assert torch.equal(read_calibration(path, "image_03"), CAMERA)


@pytest.mark.parametrize("split", ["train", "val_selection", "test"])
def test_a_missing_part_says_what_to_unpack(tmp_path, split):
    said = "unpack KITTI's data_depth_selection" if split != "train" else "or data_depth_annotated/"
    with pytest.raises(FileNotFoundError, match=f"there is no folder .*{said}"):
        Kitti(tmp_path, split)


def test_a_split_without_drives_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="train has no drive with proj_depth/groundtruth"):
        Kitti(tmp_path)


def test_a_missing_sweep_names_both_patterns(root):
    drive = root / "train" / fakes.DRIVES["train"] / "proj_depth"
    (drive / "velodyne_raw" / "image_03" / "0000000006.png").unlink()
    with pytest.raises(
        ValueError,
        match=r"groundtruth/image_03/\*\.png are 2 files and .*velodyne_raw/image_03/\*\.png are "
        r"1, 1 of them without a partner, first .*0000000006\.png",
    ):
        Kitti(root)


def test_a_missing_image_names_image_and_depth(root):
    data = root / "raw" / "2011_09_26" / fakes.DRIVES["train"] / "image_02" / "data"
    (data / "0000000006.png").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"no image .*image_02/data/0000000006\.png for .*truth/image_02/0000000006\.png",
    ):
        Kitti(root)
    shutil.rmtree(data)
    with pytest.raises(
        FileNotFoundError, match=r"image_02/data; it should hold the images of .*ra"
    ):
        Kitti(root)


def test_an_8_bit_depth_map_is_refused(root):
    path = f"train/{fakes.DRIVES['train']}/proj_depth/groundtruth/image_02/0000000005.png"
    fakes.image(root / path, 1, (6, 8))
    with pytest.raises(ValueError, match=r"0000000005\.png is an 8-bit image of mode RGB"):
        Kitti(root)[0]
