# SPDX-License-Identifier: Apache-2.0
"""A submission to KITTI's benchmark, from the test frames to the zip file."""

import io
import math
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from data import fakes
from deepbasis.data.kitti import Kitti
from deepbasis.evaluation import Estimate
from deepbasis_paper import submit
from deepbasis_paper.cli import main
from deepbasis_paper.data.submission import check_submission
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import PaperArchitecture
from models import make_model, set_prior

SIZE = (32, 48)


@pytest.fixture
def root(tmp_path):
    return fakes.kitti(tmp_path / "kitti", SIZE)


def maps(path):
    with zipfile.ZipFile(path) as archive:
        return {
            name: np.asarray(Image.open(io.BytesIO(archive.read(name))))
            for name in archive.namelist()
        }


def cli(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["deepbasis-paper", "submit", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def rgbd_model():
    torch.manual_seed(0)
    model = Ensemble(PaperArchitecture(input="rgbd"))
    set_prior(model.network.fit)
    return model


@pytest.mark.parametrize("make", [make_model, rgbd_model], ids=["library", "rgbd"])
def test_the_file_holds_what_the_model_completes(root, tmp_path, capsys, make):
    """The library's models and those of this package."""
    model, out = make(), tmp_path / "s.zip"
    model.save(tmp_path / "model.safetensors")
    submit.run(str(tmp_path / "model.safetensors"), root, out, 2, SIZE)
    assert "2 depth maps in " in capsys.readouterr().out
    check_submission(out, 2, SIZE)
    found = maps(out)
    assert list(found) == ["0000000000.png", "0000000001.png"]
    for counts, sample in zip(found.values(), Kitti(root, "test", halve=False), strict=True):
        answer = model.complete(sample.image.permute(1, 2, 0).numpy(), sample.sparse[0].numpy())
        assert np.abs(counts / 256 - answer.depth).max() < 0.6 / 256
        # The fake LiDAR measures k / 2 metres nearly everywhere, so depth must be near that.
        assert np.median(counts / 256) == pytest.approx(sample.sparse.median().item(), rel=0.1)


def test_frames_keep_their_order(root, tmp_path, monkeypatch):
    def echo(image, sparse):
        return Estimate(sparse[0].max().log().expand(SIZE), torch.ones(SIZE))

    monkeypatch.setattr(submit, "load", lambda name: name)
    monkeypatch.setattr(submit, "model_method", lambda model: echo)
    submit.run("any", root, tmp_path / "s.zip", 2, SIZE)
    found = maps(tmp_path / "s.zip")
    assert [np.unique(counts).tolist() for counts in found.values()] == [[128], [256]]


def test_depths_that_16_bits_do_not_hold_are_clamped_and_counted(
    root, tmp_path, monkeypatch, capsys
):
    def far(image, sparse):
        z = torch.zeros(SIZE)
        z[0, :4] = torch.tensor([math.log(300), 200.0, -9.0, -200.0])  # 200: float32 overflows
        return Estimate(z, torch.ones(SIZE))

    monkeypatch.setattr(submit, "load", lambda name: name)
    monkeypatch.setattr(submit, "model_method", lambda model: far)
    submit.run("any", root, tmp_path / "s.zip", 2, SIZE)
    assert "8 pixels lay outside 0.004 to 255.996 m: clamped" in capsys.readouterr().out
    for counts in maps(tmp_path / "s.zip").values():
        assert counts[0, :5].tolist() == [65535, 65535, 1, 1, 256]


def test_a_model_that_fails_leaves_nothing(root, tmp_path, monkeypatch):
    def second_fails(image, sparse):
        value = math.nan if sparse.max() == 1 else 0.0
        return Estimate(torch.full(SIZE, value), torch.ones(SIZE))

    monkeypatch.setattr(submit, "load", lambda name: name)
    monkeypatch.setattr(submit, "model_method", lambda model: second_fails)
    with pytest.raises(ValueError, match=r"0000000001\.png of the submission is nan at row 0"):
        submit.run("any", root, tmp_path / "s.zip", 2, SIZE)
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a submission needs a model and --root, the folder of KITTI; or --check"),
        (["m.safetensors"], "a submission needs a model and --root"),
        (["m.safetensors", "--check", "s.zip"], "--check looks at a file that is there: it takes"),
        (["--check", "s.zip"], "there is no file s.zip"),
        (["m.safetensors", "--root", "nowhere"], "there is no folder nowhere"),
        (["m.safetensors", "--root", "kitti", "--out", "s.tar"], "--out s.tar does not end in .z"),
        (["m.safetensors", "--root", "kitti", "--out", "no/s.zip"], "there is no folder no; make"),
        (
            ["m.safetensors", "--root", "kitti"],
            "there are 2 test frames, 0000000000.png to 0000000001.png, but the benchmark has 1000",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    root, monkeypatch, capsys, tmp_path, words, message
):
    monkeypatch.chdir(tmp_path)
    assert cli(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == [root]


def test_a_model_that_is_not_there_is_named(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file m\.safetensors"):
        submit.run("m.safetensors", root, tmp_path / "s.zip", 2, SIZE)


@pytest.mark.slow
def test_a_whole_submission_is_written_and_checked(root, tmp_path, monkeypatch, capsys):
    """1000 frames of full size, by a model that only knows the distance of the LiDAR's points."""
    test = root / "depth_selection" / "test_depth_completion_anonymous"
    fakes.image(test / "image" / "0000000000.png", 1, (352, 1216))
    fakes.counts(test / "velodyne_raw" / "0000000000.png", 512, (352, 1216))
    for kind in ("image", "velodyne_raw"):
        (test / kind / "0000000001.png").unlink()
        for k in range(1, 1000):
            (test / kind / f"{k:010d}.png").symlink_to(test / kind / "0000000000.png")

    def echo(image, sparse):
        return Estimate(sparse[0].max().log().expand(352, 1216), torch.ones(352, 1216))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submit, "load", lambda name: name)
    monkeypatch.setattr(submit, "model_method", lambda model: echo)
    assert cli(monkeypatch, "any", "--root", "kitti") == 0
    assert cli(monkeypatch, "--check", "submission.zip") == 0
    assert capsys.readouterr().out == (
        "1000 depth maps in submission.zip, in the format of the benchmark\n"
        "submission.zip has the format of the benchmark\n"
    )
    assert (maps(tmp_path / "submission.zip")["0000000999.png"] == 512).all()
