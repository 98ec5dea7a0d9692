# SPDX-License-Identifier: Apache-2.0
"""NYU from its official file and from exported frames."""

import json
import pickle
import sys

import h5py
import numpy as np
import pytest
import torch
from scipy.io import savemat
from torch.utils.data import DataLoader, Subset

from data import fakes
from deepbasis.data import nyu
from deepbasis.data.nyu import NyuFolder, NyuMat
from waiting import LIMIT


@pytest.fixture(scope="module")
def mat(tmp_path_factory):
    return fakes.nyu_mat(tmp_path_factory.mktemp("nyu") / "nyu_depth_v2_labeled.mat")


def test_the_papers_split_is_three_quarters_and_the_rest():
    parts = nyu.paper_split()
    assert [len(parts[name]) for name in ("train", "test")] == [1087, 362]
    assert sorted(parts["train"] + parts["test"]) == list(range(1449))
    assert parts["train"] == sorted(parts["train"])


def test_the_mat_file_is_turned_upright_cut_and_halved(mat):
    frames = NyuMat(mat)
    assert len(frames) == 1087
    sample = frames[0]
    assert sample.name == "0002"
    assert sample.image.shape == (3, 224, 304)
    assert (sample.image[0] == 3).all()
    # The top left pixel gathers rows 16 and 17, columns 16 and 17, of 8 and 5; below it are 9.
    assert sample.image[1:, 0, 0].tolist() == [8, 5]
    assert sample.image[1:, 1, 0].tolist() == [9, 5]
    torch.testing.assert_close(sample.depth[0, :2, 0], torch.tensor([3.016, 3.018]))
    assert (sample.depth == sample.depth[..., :1]).all()
    assert not sample.sparse.any()
    expected = [[259.43, 0, 154.54], [0, 259.735, 118.62], [0, 0, 1]]
    torch.testing.assert_close(sample.intrinsics, torch.tensor(expected))


def test_the_mat_file_at_full_size(mat):
    frames = NyuMat(mat, "test", halve=False)
    assert [frames.indices[0], len(frames)] == [0, 362]
    sample = frames[1]
    row, column = torch.meshgrid(torch.arange(16, 464), torch.arange(16, 624), indexing="ij")
    assert torch.equal(sample.image[1].long(), row // 2)
    assert torch.equal(sample.image[2].long(), column // 3)
    torch.testing.assert_close(sample.depth[0], 2 + row / 1000)
    assert sample.intrinsics[:2, 2].tolist() == pytest.approx([325.58 - 16, 253.74 - 16])


def test_the_official_split_counts_from_1(mat):
    """MATLAB's first frame is our frame 0."""
    train, test = np.arange(1, 796)[::-1, None], np.arange(796, 1450)[:, None]
    splits = mat.with_name("splits.mat")
    savemat(splits, {"trainNdxs": train.astype(np.uint16), "testNdxs": test.astype(np.uint16)})
    try:
        frames = NyuMat(mat, "train", "official")
        assert frames.indices == list(range(795))
        assert (frames[0].image[0] == 1).all()
        assert NyuMat(mat, "test", "official").indices == list(range(795, 1449))
        assert NyuMat(mat, "all", "official").indices == list(range(1449))
        savemat(splits, {"trainNdxs": train})
        with pytest.raises(ValueError, match=r"splits\.mat is not the official split file.*testNd"):
            NyuMat(mat, "train", "official")
        splits.write_bytes(b"nonsense" * 100)
        with pytest.raises(ValueError, match=r"splits\.mat is not the official split file"):
            NyuMat(mat, "train", "official")
    finally:
        splits.unlink()


def test_the_official_split_needs_its_file(mat):
    with pytest.raises(
        FileNotFoundError, match=r"splits\.mat; the official protocol needs it besi"
    ):
        NyuMat(mat, "train", "official")


def test_workers_read_the_same(mat):
    frames = NyuMat(mat)
    assert pickle.loads(pickle.dumps(frames)).indices == frames.indices
    here = frames[0]
    loader = DataLoader(Subset(frames, [0]), batch_size=None, num_workers=1, timeout=LIMIT)
    for there in loader:
        assert there.name == here.name
        assert torch.equal(there.depth, here.depth)


def test_an_old_mat_file_is_refused(tmp_path):
    savemat(tmp_path / "old.mat", {"images": np.zeros(3)})
    with pytest.raises(ValueError, match=r"old\.mat is not a MATLAB 7\.3 \(HDF5\) file"):
        NyuMat(tmp_path / "old.mat")


def test_another_hdf5_file_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.mat", "w") as file:
        file["images"] = np.zeros((2, 3, 640, 480), np.uint8)
    with pytest.raises(
        ValueError,
        match=r"other\.mat holds {'images': \(2, 3, 640, 480\), 'depths': None}; the off",
    ):
        NyuMat(tmp_path / "other.mat")


def test_without_h5py_we_say_what_to_install(mat, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs h5py: pip install "deepbasis\[train\]"'):
        NyuMat(mat)


# Exported frames


@pytest.fixture
def root(tmp_path):
    return fakes.nyu_folder(tmp_path)


def test_exported_frames_are_cut_within_the_white_frame(root):
    fakes.image(root / "rgb" / "0000.jpg", 255, (240, 320))
    row, column = np.mgrid[:240, :320]
    values = (1000 + 10 * row + column).astype(np.uint16)
    fakes.Image.fromarray(values).save(root / "depth" / "0000.png")
    sample = NyuFolder(root, "test")[0]
    assert sample.name == "0000"
    assert (sample.image == 255).all()
    assert sample.depth.shape == (1, 224, 304)
    expected = torch.from_numpy(values[8:232, 8:312].astype(np.float32)) / 1000
    assert torch.equal(sample.depth[0], expected)
    torch.testing.assert_close(sample.intrinsics[:2, 2], torch.tensor([154.8, 118.9]))


def test_splits_of_exported_frames(root):
    names = {
        split: [sample.name for sample in NyuFolder(root, split)]
        for split in ("train", "test", "all")
    }
    assert names == {"train": ["0002", "0003"], "test": ["0000"], "all": ["0000", "0002", "0003"]}


def test_a_frame_that_is_missing_is_named(root):
    (root / "depth" / "0003.png").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"split\.json names 2 frames for 'train', but .*rgb/0003\.jpg or depth/0003\.png is "
        r"missing; rgb/\*\.jpg are 3 files, depth/\*\.png are 2",
    ):
        NyuFolder(root)


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"train": []}), '{"train": ["x"]}',
                                  "[" * 100_000, '{"train": [1e999], "test": []}'],
                         ids=range(6))  # fmt: skip
def test_a_wrong_split_file_is_refused(root, text):
    (root / "split.json").write_text(text)
    with pytest.raises(ValueError, match=r'split\.json should hold {"train": \[numbers\]'):
        NyuFolder(root)


def test_no_split_file_is_said(root):
    (root / "split.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"split\.json; it says which frames are for train"):
        NyuFolder(root)


def test_frames_of_another_size_are_refused(root):
    fakes.image(root / "rgb" / "0002.jpg", 1, (480, 640))
    with pytest.raises(ValueError, match=r"0002\.jpg is \[480, 640\] pixels.*are \[240, 320\]"):
        NyuFolder(root)[0]
