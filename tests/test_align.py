# SPDX-License-Identifier: Apache-2.0
"""benchmarks/align.py finds how depth images lie on colour images of another camera."""

import runpy
import sys

import numpy as np
import pytest
from PIL import Image

from deepbasis.data.packaged import packaged

ZOOM, RIGHT, DOWN = 1.2, 6.0, -4.0


def test_depth_of_another_camera_is_aligned(tmp_path, monkeypatch, capsys):
    true = {}
    for name in ("rgb", "depth"):
        (tmp_path / "raw" / name).mkdir(parents=True)
    for sample in packaged("rooms"):
        depth = sample.depth[0].numpy()
        true[sample.name] = depth
        height, width = depth.shape
        # What the other camera sees at its row and column, by the formulas of a camera.
        v, u = np.indices(depth.shape)
        column = np.rint((u - (width - 1) / 2) * ZOOM + (width - 1) / 2 + RIGHT).astype(int)
        row = np.rint((v - (height - 1) / 2) * ZOOM + (height - 1) / 2 + DOWN).astype(int)
        seen = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        other = np.zeros(depth.shape, np.uint16)
        other[seen] = 1000 * depth[row[seen], column[seen]]
        Image.fromarray(other).save(tmp_path / "raw" / "depth" / f"{sample.name}.png")
        image = Image.fromarray(sample.image.permute(1, 2, 0).numpy())
        image.save(tmp_path / "raw" / "rgb" / f"{sample.name}.png")
    out = tmp_path / "aligned"
    words = ["--root", tmp_path / "raw", "--out", out, "--every", "1"]
    monkeypatch.setattr(sys, "argv", ["align.py", *map(str, words)])
    runpy.run_path("benchmarks/align.py", run_name="__main__")
    before, after = capsys.readouterr().out.splitlines()
    numbers = [float(word) for word in after.replace(",", "").split() if word[-1].isdigit()]
    assert numbers[:3] == pytest.approx([ZOOM, RIGHT, DOWN], abs=1.0)
    assert numbers[0] == pytest.approx(ZOOM, abs=0.02)
    assert numbers[3] > float(before.split()[-1])
    for name, depth in true.items():
        found = np.array(Image.open(out / "depth" / f"{name}.png")) / 1000
        known = (found > 0) & (depth > 0)
        assert known.mean() > 0.9
        assert np.median(np.abs(found - depth)[known] / depth[known]) < 0.01


def test_a_missing_folder_and_a_move_at_the_limit_are_told(tmp_path, monkeypatch, capsys):
    words = ["--root", tmp_path, "--out", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["align.py", *map(str, words)])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path("benchmarks/align.py", run_name="__main__")
    assert f"there is no folder {tmp_path / 'rgb'}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    align = runpy.run_path("benchmarks/align.py")
    moves = {
        (1.57, 4.0, -3.5): False,
        (1.0, -48.0, 0.0): True,
        (1.7, 0.0, 0.0): True,
        (0.55, 0.0, 0.0): True,
    }
    for move, limit in moves.items():
        assert align["at_limit"](align["Move"](*move)) is limit, move
