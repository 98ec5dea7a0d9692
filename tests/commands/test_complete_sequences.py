# SPDX-License-Identifier: Apache-2.0
"""`deepbasis complete --sequence`: folders, videos, poses, and what is refused."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import deepbasis
from data.test_trajectories import write as write_poses
from data.test_video import write_video
from walks import camera, draw_points, room

COUNT = 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Frames named 8, 9, 10, 11; points of the first two; poses; a camera; a video."""
    folder = tmp_path_factory.mktemp("recorded")
    frames = room()[:COUNT]
    for name in ("rgb", "lidar"):
        (folder / name).mkdir()
    for number, frame in enumerate(frames):
        (folder / "rgb" / f"{number + 8}.jpg").write_bytes(frame.jpeg)
        if number < 2:
            rows = draw_points(frame, 15, number)
            np.savetxt(folder / "lidar" / f"{number + 8}.csv", rows, delimiter=",")
    write_poses(folder / "poses.txt", [0.1 * i for i in range(COUNT)], [f.pose for f in frames])
    np.savetxt(folder / "camera.txt", camera(frames[0]))
    write_video(folder / "film.mp4", [frame.image for frame in frames])
    return folder


@pytest.fixture
def complete(recorded, tmp_path, monkeypatch, command):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run(words):
        words = f"complete {words} --out out --model open --no-figure"
        code, out, err = command(*words.split())
        # Frames of this size are unfamiliar to the model.
        lines = err.splitlines(keepends=True)
        return code, out, "".join(line for line in lines if "not resemble" not in line)

    return run


def completed(said):
    return re.findall(r"^([\w-]+): (\d+) points? used", said, re.MULTILINE)


def test_a_folder_is_completed_in_the_order_of_its_numbers(complete):
    code, out, err = complete("--sequence rgb --sparse lidar")
    assert (code, err) == (0, "")
    assert completed(out) == [("8", "15"), ("9", "15"), ("10", "0"), ("11", "0")]
    frames = [
        (frame.image, draw_points(frame, 15, i) if i < 2 else None)
        for i, frame in enumerate(room()[:COUNT])
    ]
    outs = list(deepbasis.load("open").stream(frames))
    for name, expected in zip(("8", "9", "10", "11"), outs, strict=True):
        np.testing.assert_allclose(np.load(f"out/{name}-depth.npy"), expected.depth, rtol=1e-4)
        np.testing.assert_allclose(np.load(f"out/{name}-std.npy"), expected.std, rtol=1e-4)


def test_wrong_points_of_a_sequence_are_counted_in_the_summary(complete):
    rows = draw_points(room()[0], 100, 0)
    rows[:5, 2] *= 4
    np.savetxt("lidar/8.csv", rows, delimiter=",")
    _, out, _ = complete("--sequence rgb --sparse lidar")
    told = json.loads(Path("out/8.json").read_text())
    assert told["left_out"] == told["outliers"] >= 4
    assert (told["points"] + told["left_out"], told["dropped"]) == (100, {})
    assert f"; {told['left_out']} points left out as wrong" in out


def test_a_sequence_is_up_to_date_as_a_whole(complete):
    complete("--sequence rgb --sparse lidar")
    code, out, _ = complete("--sequence rgb --sparse lidar")
    assert (code, completed(out)) == (0, [])
    assert "4 of 4 frames are done already" in out
    Path("lidar/9.csv").write_text("10, 10, 2.0\n")
    code, out, _ = complete("--sequence rgb --sparse lidar")
    assert [name for name, _ in completed(out)] == ["8", "9", "10", "11"]
    before = [json.loads(Path(f"out/{n}.json").read_text())["made_from"] for n in (8, 10)]
    Path("lidar/9.csv").write_text("10, 10, 3.0\n")
    complete("--sequence rgb --sparse lidar")
    after = [json.loads(Path(f"out/{n}.json").read_text())["made_from"] for n in (8, 10)]
    # A frame depends on those before it.
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False]


def test_poses_carry_points_over(complete):
    options = "--sequence rgb --sparse lidar --intrinsics camera.txt --poses poses.txt"
    code, out, err = complete(options)
    assert (code, err) == (0, "")
    counts = [int(count) for _, count in completed(out)]
    assert counts[0] == 15
    assert min(counts[1:]) > 15


def test_a_damaged_frame_does_not_stop_the_others(complete):
    Path("rgb/9.jpg").write_bytes(b"hello")
    code, out, err = complete("--sequence rgb --sparse lidar")
    assert code == 1
    assert [name for name, _ in completed(out)] == ["8", "10", "11"]
    assert "deepbasis: 9 failed: rgb/9.jpg cannot be read as a picture" in err


def test_a_frame_of_another_size_fails_alone(complete):
    from PIL import Image

    Image.open("rgb/10.jpg").resize((64, 64)).save("rgb/10.jpg")
    Path("rgb/9.jpg").write_bytes(b"hello")
    code, out, err = complete("--sequence rgb")
    assert code == 1
    assert [name for name, _ in completed(out)] == ["8", "11"]
    assert "rgb/10.jpg: frame 10 is 64 x 64 pixels" in err
    assert "frames of a sequence must have the same size" in err


@pytest.mark.parametrize("sequence", ["--sequence", ""])
def test_a_video_is_completed_frame_by_frame(complete, sequence):
    code, out, _ = complete(f"{sequence} film.mp4")
    assert code == 0
    names = [f"film-{i:06d}" for i in range(COUNT)]
    assert completed(out) == [(name, "0") for name in names]
    assert np.load("out/film-000003-depth.npy").shape == room()[0].depth.shape


def test_depth_images_may_be_named_by_the_numbers_of_a_video(complete):
    Path("numbers").mkdir()
    for number in range(2):
        Path(f"lidar/{number + 8}.csv").rename(f"numbers/{number:06d}.csv")
    code, out, _ = complete("--sequence film.mp4 --sparse numbers")
    assert code == 0
    assert [int(points) for _, points in completed(out)] == [15, 15, 0, 0]
    shutil.copy("film.mp4", "other.mp4")  # of which of the two they are is not known
    code, _, err = complete("--sequence film.mp4 other.mp4 --sparse numbers")
    assert code == 2
    assert "'000000' is not 'film-000000'" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rgb --poses poses.txt", "--poses is for sequences only: pass --sequence"),
        ("--sequence rgb --poses poses.txt", "--poses needs the camera: pass --intrinsics"),
        (
            "--sequence rgb --intrinsics camera.txt --poses camera.txt",
            "camera.txt, line 1, is not a pose; expected `timestamp tx ty tz qx qy qz qw`",
        ),
        (
            "--sequence rgb/8.jpg rgb/9.jpg --intrinsics camera.txt --poses poses.txt",
            "poses.txt holds 4 poses for 2 frames, and none within 0.02 s of the frame '8', if "
            "this is its time; pass one pose for each frame, or name the frames by their time",
        ),
        ("--sequence none.mp4", "there is no file none.mp4"),
        ("film.mp4 film.mp4 rgb/film-000001.jpg", "there is no file rgb/film-000001.jpg"),
    ],
)
def test_bad_sequences_are_refused_in_one_sentence(complete, words, message):
    code, _, err = complete(words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
