# SPDX-License-Identifier: Apache-2.0
"""`deepbasis complete`: files in any form in, whole files out, and what is said on the way."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import trimesh
from PIL import Image
from safetensors.torch import save_file

from deepbasis.cli import main
from deepbasis.conformal import ConformalTable
from deepbasis.data.clouds import read_cloud, write_ply
from deepbasis.data.formats import (
    read_depth_png,
    write_depth_png,
    write_image,
    write_npy,
)
from deepbasis.data.images import read_image
from models import make_model

SIZE = (64, 96)
CAMERA = (80.0, 80.0, 47.5, 31.5)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A photograph of a wall, 400 of its points in every form, and an untrained model."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    write_image(folder / "wall.png", rng.integers(256, size=(*SIZE, 3), dtype=np.uint8))
    true = np.round(3 + np.linspace(-0.02, 0.02, SIZE[1]) + np.zeros(SIZE), 3)
    measured = np.zeros(SIZE)
    chosen = rng.permutation(measured.size)[:400]
    noisy = true.flat[chosen] * np.exp(0.02 * rng.standard_normal(400))
    measured.flat[chosen] = np.round(noisy, 3)
    write_npy(folder / "truth.npy", true.astype(np.float32))
    write_npy(folder / "map.npy", measured.astype(np.float32))
    write_depth_png(folder / "map.png", measured, 1000)
    v, u = measured.nonzero()
    rows = np.stack([u, v, measured[v, u]], 1)
    np.savetxt(folder / "rows.csv", rows, fmt="%.6g")
    fx, fy, cx, cy = CAMERA
    xyz = np.stack([(u - cx) / fx * rows[:, 2], (v - cy) / fy * rows[:, 2], rows[:, 2]], 1)
    write_ply(folder / "cloud.ply", xyz)
    write_ply(folder / "millimetres.ply", 1000 * xyz)
    write_ply(folder / "behind.ply", xyz * [1, 1, -1])
    np.pad(xyz, ((0, 0), (0, 1))).astype("<f4").tofile(folder / "cloud.bin")
    # A sensor whose x looks forward, y left and z up, 0.5 m behind the camera.
    pose = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, -0.5]])
    write_ply(folder / "sensor.ply", (xyz - pose[:, 3]) @ pose[:, :3])
    np.savetxt(folder / "pose.txt", pose)
    (folder / "camera.txt").write_text(" ".join(map(str, CAMERA)))
    make_model(errors="independent").save(folder / "model.safetensors")
    return folder


@pytest.fixture
def complete(inputs, monkeypatch, tmp_path):
    """Run the command on the wall in a folder of its own; gives exit code and output folder."""
    for file in inputs.iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(words, image="wall.png", model="model.safetensors", out="out"):
        options = ["--model", model, "--out", out, *words.split()]
        monkeypatch.setattr(sys, "argv", ["deepbasis", "complete", *image.split(), *options])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return run


def summary(folder, name="wall"):
    return json.loads((folder / "out" / f"{name}.json").read_text())


def test_every_form_of_the_same_points_gives_the_same_depth(complete, tmp_path, capsys):
    forms = {
        "map.npy": "",
        "map.png": "--depth-scale 1000",
        "rows.csv": "",
        "cloud.ply": "--intrinsics camera.txt",
        "cloud.bin": "--intrinsics camera.txt",
        "millimetres.ply": "--intrinsics camera.txt --depth-scale 1000",
        "sensor.ply": "--intrinsics camera.txt --extrinsics pose.txt",
    }
    depths = {}
    for file, words in forms.items():
        assert complete(f"--sparse {file} --no-figure {words}") == 0, capsys.readouterr().err
        assert summary(tmp_path)["points"] == 400
        depths[file] = np.load(tmp_path / "out" / "wall-depth.npy")
        np.testing.assert_allclose(depths[file], depths["map.npy"], rtol=1e-5)
    assert np.abs(depths["map.npy"] - np.load("truth.npy")).mean() < 0.1


@pytest.mark.parametrize(("shift", "hidden"), [(0.0, False), (0.3, True)])
def test_only_a_sensor_beside_the_camera_sees_hidden_points(complete, tmp_path, shift, hidden):
    fx, fy, cx, cy = np.loadtxt("camera.txt").flatten()[:4]
    v, u = np.indices((24, 24)).reshape(2, -1)
    z = np.random.default_rng(0).choice([2.0, 6.0], u.size)
    np.savetxt("mixed.xyz", np.stack([(u - cx) / fx * z - shift, (v - cy) / fy * z, z], 1))
    pose = np.eye(4)
    pose[0, 3] = shift
    np.savetxt("beside.txt", pose)
    words = "--sparse mixed.xyz --intrinsics camera.txt --extrinsics beside.txt --no-figure"
    assert complete(words) == 0
    assert any("hid" in why for why in summary(tmp_path)["dropped"]) == hidden


def test_what_is_written_reads_back(complete, tmp_path, capsys):
    words = (
        "--sparse map.npy --interval 0.9 --cloud --intrinsics camera.txt --ground-truth truth.npy"
    )
    assert complete(words) == 0
    out, told = tmp_path / "out", summary(tmp_path)
    maps = ["depth", "high90", "low90", "std"]
    files = {f"wall-{kind}{suffix}" for kind in maps for suffix in (".npy", ".png")}
    assert {p.name for p in out.iterdir()} == files | {"wall.png", "wall.json", "wall.ply"}
    for kind in maps:
        exact = np.load(out / f"wall-{kind}.npy")
        assert exact.dtype == np.float32
        scale = told["png_scale"][kind]
        rounded = read_depth_png(out / f"wall-{kind}.png", scale)
        np.testing.assert_allclose(rounded, exact, atol=0.51 / scale)
    depth, std = (np.load(out / f"wall-{kind}.npy") for kind in ("depth", "std"))
    v, u = np.indices(SIZE)
    xyz = np.stack([(u - 47.5) / 80 * depth, (v - 31.5) / 80 * depth, depth], -1).reshape(-1, 3)
    np.testing.assert_allclose(read_cloud(out / "wall.ply"), xyz, rtol=1e-6)
    cloud = trimesh.load(out / "wall.ply")
    np.testing.assert_allclose(cloud.vertices, xyz, rtol=1e-6)
    image = read_image(tmp_path / "wall.png")
    np.testing.assert_array_equal(cloud.colors[:, :3], image.reshape(-1, 3))
    raw = cloud.metadata["_ply_raw"]["vertex"]["data"]
    np.testing.assert_array_equal(raw["std"], std.ravel())
    assert read_image(out / "wall.png").std() > 20
    assert told["ground_truth"]["mae"] == pytest.approx(
        np.abs(depth - np.load("truth.npy")).mean(), 1e-4
    )
    assert told["alpha"] > 0
    assert told["noise_percent"] == pytest.approx(100 / told["beta"] ** 0.5)
    assert told["log_evidence"] > 0
    assert 1 <= told["steps"] <= 8
    assert (told["dropped"], told["warnings"]) == ({}, [])
    said = capsys.readouterr()
    assert "wall: 400 points used; median std 0." in said.out
    assert said.err == ""


@pytest.mark.parametrize(("name", "scale"), [("ros", 1000), ("kitti", 256), ("tum", 5000)])
def test_conventions_of_16_bit_depth(complete, tmp_path, name, scale):
    assert complete(f"--sparse map.npy --png {name}") == 0
    exact, told = np.load(tmp_path / "out/wall-depth.npy"), summary(tmp_path)
    counts = np.array(Image.open(tmp_path / "out/wall-depth.png"))
    np.testing.assert_array_equal(counts, np.rint(exact.astype(np.float64) * scale))
    assert told["png_scale"]["depth"] == scale
    assert told["warnings"] == []


def test_depth_beyond_a_convention_is_no_measurement(complete, tmp_path, capsys):
    rows = np.loadtxt("rows.csv")
    rows[:, 2] *= np.where(rows[:, 0] > SIZE[1] / 2, 8, 1)  # the right half is far away
    np.savetxt("far.csv", rows)
    assert complete("--sparse far.csv --png tum --no-robust") == 0
    exact = np.load(tmp_path / "out/wall-depth.npy")
    counts = np.array(Image.open(tmp_path / "out/wall-depth.png"))
    beyond = exact > 65535 / 5000
    assert 0 < beyond.mean() < 1
    np.testing.assert_array_equal(counts == 0, beyond)
    warned = capsys.readouterr().err
    assert f"--png tum stores at most 13.107 m, so {beyond.sum()} pixels beyond" in warned


def test_options_reach_the_model(complete, tmp_path):
    stds = {}
    for words in (
        "--errors independent",
        "--errors correlated",
        "--errors paper",
        "--huber 1.345",
        "--max-depth 3.1",
    ):
        assert complete(f"--sparse map.npy --no-figure {words}") == 0
        stds[words] = np.load(tmp_path / "out" / "wall-std.npy").mean()
    assert len(set(stds.values())) == 5
    told = summary(tmp_path)["dropped"]
    assert list(told) == ["beyond the largest depth, 3.1 m"]
    assert summary(tmp_path)["points"] + sum(told.values()) == 400


def test_without_points_depth_comes_from_the_image(complete, tmp_path, capsys):
    assert complete("") == 0
    assert summary(tmp_path)["points"] == 0
    assert "there are no points" in capsys.readouterr().err
    assert (tmp_path / "out" / "wall.png").exists()


def test_folders_are_matched_by_name_and_done_frames_are_skipped(complete, tmp_path, capsys):
    for folder in ("rgb", "lidar", "cameras"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b", "c", "d"):
        shutil.copy("wall.png", f"rgb/{name}.png")
        sparse = Path("rows.csv" if name == "b" else "map.png")
        shutil.copy(sparse, f"lidar/{name}{sparse.suffix}")
        shutil.copy("camera.txt", f"cameras/{name}.txt")
    (tmp_path / "scale.txt").write_text("1000")
    words = "--sparse lidar --intrinsics cameras --no-figure"
    assert complete(words, image="rgb") == 0
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.splitlines()[:4]] == ["a", "b", "c", "d"]
    depths = [np.load(f"out/{name}-depth.npy") for name in "abcd"]
    for depth in depths[1:]:
        np.testing.assert_allclose(depth, depths[0], rtol=1e-6)
    (tmp_path / "out" / "c.json").unlink()
    before = (tmp_path / "out" / "a-depth.npy").stat().st_mtime_ns
    assert complete(words, image="rgb") == 0
    said = capsys.readouterr().out
    assert said.startswith("3 of 4 frames are done already")
    assert "c: 400 points" in said
    assert "a: " not in said
    assert complete(words, image="rgb") == 0
    assert "4 of 4 frames are done already" in capsys.readouterr().out
    assert (tmp_path / "out" / "a-depth.npy").stat().st_mtime_ns == before
    assert complete(f"{words} --huber 1.345", image="rgb/a.png rgb/b.png") == 0
    assert "a: 400 points" in capsys.readouterr().out
    assert not list((tmp_path / "out").glob("*.part"))


def test_a_frame_is_done_only_when_all_of_it_is_written(complete, monkeypatch, tmp_path, capsys):
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", fail)
        assert complete("--sparse map.npy") == 2
    said = capsys.readouterr().err
    assert said == "deepbasis: cannot write out/wall.png (no space left on device)\n"
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert left == {f"wall-{k}{s}" for k in ("depth", "std") for s in (".npy", ".png")}
    assert complete("--sparse map.npy") == 0
    assert "wall: 400 points" in capsys.readouterr().out


def test_outliers_are_listed(complete, tmp_path, capsys):
    measured = np.load("map.npy")
    v, u = (int(x[0]) for x in measured.nonzero())
    measured[v, u] *= 2
    np.save("map.npy", measured)
    assert complete("--sparse map.npy") == 0
    told = summary(tmp_path)
    assert (told["outliers"], told["left_out"], told["points"]) == (1, 1, 399)
    assert (told["worst_outliers"][0]["u"], told["worst_outliers"][0]["v"]) == (u, v)
    assert told["worst_outliers"][0]["residual"] == pytest.approx(np.log(2), abs=0.1)
    assert "wall: 399 points used; median std 0." in (said := capsys.readouterr().out)
    assert "; 1 point left out as wrong\n" in said
    assert complete("--sparse map.npy --no-robust --no-figure") == 0
    told = summary(tmp_path)
    assert (told["outliers"], told["left_out"], told["points"]) == (1, 0, 400)
    assert "; 1 point may be wrong\n" in capsys.readouterr().out


def test_the_check_tells_and_rescaling_makes_intervals_hold(complete, tmp_path, capsys):
    assert complete("--sparse map.npy --no-figure --check --interval 0.9") == 0
    told, low = summary(tmp_path)["check"], np.load("out/wall-low90.npy")
    assert told["held_out"] > 150
    assert told["all"]["mae"] < 0.15
    assert told["near_points"]["held_out"] + told["far_from_points"]["held_out"] == told["held_out"]
    assert f"{told['held_out']} points held out, MAE" in capsys.readouterr().out
    assert complete("--sparse map.npy --no-figure --rescale --interval 0.9") == 0
    assert summary(tmp_path)["check"] == told
    assert not np.allclose(np.load("out/wall-low90.npy"), low, rtol=1e-4)
    np.savetxt("few.csv", np.loadtxt("rows.csv")[:20])
    assert complete("--sparse few.csv --no-figure --check") == 0
    assert summary(tmp_path)["check"]["verdict"] == "too few points to tell"
    assert "too few points to tell" in capsys.readouterr().out
    assert complete("--sparse few.csv --no-figure --rescale") == 2
    said = capsys.readouterr().err
    assert "few.csv: " in said
    assert "held-out points are too few for conformal intervals; 40 are needed" in said


@pytest.mark.slow
def test_one_table_of_a_folder_is_saved_and_used_again(complete, tmp_path, capsys):
    rows = np.loadtxt("rows.csv")
    for folder in ("rgb", "lidar"):
        Path(folder).mkdir()
    for i in range(10):
        shutil.copy("wall.png", f"rgb/{i}.png")
        np.savetxt(f"lidar/{i}.csv", rows[i::4])
    words = "--sparse lidar --no-figure --save-calibration camera.json"
    assert complete(words, image="rgb") == 0
    said = capsys.readouterr().out
    assert "all 10 frames: " in said
    assert "of 10 frames: camera.json" in said
    table = ConformalTable.load("camera.json")
    assert table.groups == 10
    assert complete("--sparse map.npy --no-figure --interval 0.9") == 0
    before = np.load("out/wall-low90.npy")
    assert complete("--sparse map.npy --no-figure --interval 0.9 --calibration camera.json") == 0
    assert not np.allclose(np.load("out/wall-low90.npy"), before, rtol=1e-4)
    Path("camera.json").write_text("{}")
    capsys.readouterr()
    refused = complete("--sparse map.npy --no-figure --calibration camera.json", out="other")
    assert refused == 2
    assert "camera.json is not a conformal table" in capsys.readouterr().err
    assert not Path("other").exists()


BAD = [
    ("--sparse map.npy --interval 1.5", "--interval 1.5 is not a probability between 0 and 1"),
    ("--sparse map.npy --rescale --calibration camera.json", "leave out --calibration"),
    ("--sparse map.npy --calibration camera.json", "there is no file camera.json; check its name"),
    ("--sparse map.npy --calibration folder", "folder is a folder, not a file; check its name"),
    ("--rescale", "--rescale needs points to hold out, and there are none: pass --sparse"),
    ("--sparse map.npy --save-calibration c.json", "needs 9 frames with points or more, and there"),
    ("--save-calibration c.json", "and there are 0; pass them with --sparse"),
    ("--save-calibration c.txt", "--save-calibration c.txt must end in .json"),
    ("--save-calibration folder", "--save-calibration folder must end in .json"),
    ("--sparse map.npy --save-calibration scale.json", "exists and is not a conformal table"),
    ("--sparse map.npy --cloud", "--cloud needs the camera: pass --intrinsics"),
    ("--sparse map.png --depth-scale 0", "--depth-scale 0 is not positive; metres = value / scale"),
    ("--sparse map.npy --huber inf", "--huber inf is not a positive number of standard deviations"),
    ("--sparse nothing.npy", "there is no file or folder nothing.npy"),
    ("--sparse map.png", "map.png holds integers, and the file does not say their unit: read as"),
    ("--sparse small.npy", "small.npy is 16 x 96 pixels (height x width), but the image wall.png"),
    ("--sparse map.png --depth-scale 1", "would be 3.002 m: pass --depth-scale 1000\n"),
    ("--sparse thousands.csv", "would be 3.002 m: pass --depth-scale 1000\n"),
    ("--sparse thousands.csv --depth-scale 0.1", "would be 30.02 m: pass --depth-scale 100\n"),
    ("--sparse millimetres.ply --intrinsics camera.txt", "m: pass --depth-scale 1000\n"),
    (
        "--sparse map.npy --ground-truth thousands.npy",
        "would be 3 m: pass --ground-truth-scale 1000",
    ),
    ("--sparse utf16.csv", "utf16.csv is not a text file but binary, or UTF-16; check"),
    ("--sparse binary.csv", "binary.csv is not a text file"),
    ("--sparse rows.csv --confidence map.png", "is not a depth image: leave out --confidence"),
    (
        "--sparse cloud.ply --intrinsics camera.txt --confidence map.png",
        "cloud.ply is not a depth image: leave out --confidence",
    ),
    ("--sparse sigma.csv", "sigma.csv: no sigma is finite; if the"),
    ("--sparse map.npy --max-depth 1", "map.npy: all 400 points are beyond the largest depth, 1 m"),
    ("--sparse cloud.ply", "cloud.ply is a point cloud, so the camera must be known"),
    ("--sparse behind.ply --intrinsics camera.txt", "(behind the camera: 400 of 400); check that"),
    ("--sparse map.npy --intrinsics wall.png", "wall.png is not a text file but binary"),
    ("--sparse map.npy --intrinsics camera.yaml", "write `fx fy cx cy` or a 3x3 matrix to a .txt"),
    (
        "--sparse camera.yaml",
        ".yaml cannot hold measurements; use a depth image or array (.png",
    ),
    (
        "--sparse x.pts --extrinsics pose.txt --intrinsics camera.txt",
        ".pts cannot hold measurements",
    ),
    (
        "--sparse rows.csv --extrinsics pose.txt --intrinsics camera.txt",
        "rows.csv is not a point cloud: leave out --extrinsics or, if each line is `x y z`, rename",
    ),
    ("--sparse map.npy --device warp", "--device warp cannot be used here (use cpu, cuda, or cuda"),
    ("--sparse map.npy --ground-truth small.npy", "small.npy is 16 x 96 pixels"),
    ("--sparse map.npy --ground-truth zero.npy", "zero.npy holds no depth to compare with"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_one_sentence_and_writes_nothing(complete, capsys, words, message):
    np.save("small.npy", np.load("map.npy")[:16])
    np.save("zero.npy", np.zeros(SIZE))
    Path("x.pts").write_text("0 0 3\n")
    Path("camera.yaml").write_text("camera_matrix: [3, 4, 5, 6]")
    np.savetxt("thousands.csv", np.loadtxt("rows.csv") * [1, 1, 1000])
    np.save("thousands.npy", 1000 * np.load("truth.npy"))
    Path("utf16.csv").write_text("u v depth\n1 2 3\n", encoding="utf-16")
    shutil.copy("map.png", "binary.csv")
    Path("folder").mkdir()
    Path("scale.json").write_text("{}")
    np.savetxt("sigma.csv", np.insert(np.loadtxt("rows.csv"), 3, np.nan, axis=1))
    check_refused(complete(words), message, capsys)


@pytest.mark.parametrize("kind", ["c16", "?", [("u", "f4"), ("v", "f4")]])
def test_rows_that_are_no_numbers_are_refused(complete, capsys, kind):
    np.save("rows.npy", np.ones((5, 3), kind))
    check_refused(complete("--sparse rows.npy"), "a depth map is [height, width] numbers", capsys)


def check_refused(code, message, capsys):
    said = capsys.readouterr()
    assert code == 2
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not Path("out").exists()


def test_a_bad_image_model_or_folder_is_one_sentence_too(complete, monkeypatch, tmp_path, capsys):
    (tmp_path / "broken.jpg").write_bytes((tmp_path / "wall.png").read_bytes()[:500])
    check_refused(
        complete("", image="broken.jpg"), "broken.jpg cannot be read as a picture", capsys
    )
    check_refused(complete("", image="nothing.jpg"), "there is no file nothing.jpg", capsys)
    check_refused(complete("", model="indor"), "did you mean 'indoor'?", capsys)
    other = {"deepbasis": json.dumps({"format": 99, "architecture": {}})}
    save_file({"x": torch.zeros(1)}, "other.safetensors", other)
    refused = complete("", model="other.safetensors")
    check_refused(refused, "not a model of this version of deepbasis: its format is 99", capsys)
    check_refused(complete("", out="map.npy/out"), "map.npy is a file; choose another", capsys)
    refused = complete("", out="/proc/out")
    check_refused(refused, "--out /proc/out cannot be created (No such file or dir", capsys)
    check_refused(
        complete("", out="."), "holds wall.png, an input that results would replace", capsys
    )
    (tmp_path / "more").mkdir()
    shutil.copy("wall.png", "more/wall.jpg")
    refused = complete("", image="wall.png more")
    check_refused(refused, "would have the same name", capsys)
    shutil.copy("wall.png", "more/other.png")
    refused = complete("--sparse map.npy", image="more")
    check_refused(refused, "--sparse map.npy is one file for 2 images; pass a folder", capsys)
    (tmp_path / "lidar").mkdir()
    shutil.copy("map.npy", "lidar/points.npy")
    refused = complete("--sparse lidar", image="more")
    check_refused(refused, "lidar holds 1 file, but none is named like an image", capsys)


def test_a_folder_that_cannot_be_written_to_is_refused(complete, monkeypatch, capsys):
    monkeypatch.setattr("os.access", lambda *_: False)
    check_refused(complete("--sparse map.npy"), "cannot be written to; choose another", capsys)
