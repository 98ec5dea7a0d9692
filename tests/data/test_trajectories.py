# SPDX-License-Identifier: Apache-2.0
"""Poses in the format of TUM RGB-D, and which frame each belongs to."""

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from deepbasis.data.trajectories import Trajectory, read_trajectory


def write(path, times, poses):
    rows = [
        [time, *pose[:3, 3], *Rotation.from_matrix(pose[:3, :3]).as_quat()]
        for time, pose in zip(times, poses, strict=True)
    ]
    lines = [" ".join(f"{number:.9f}" for number in row) for row in rows]
    path.write_text("\n".join(["# timestamp tx ty tz qx qy qz qw", "", *lines, ""]))


@pytest.fixture
def poses():
    draw = np.random.default_rng(0)
    found = np.tile(np.eye(4), (5, 1, 1))
    found[:, :3, :3] = Rotation.random(5, random_state=0).as_matrix()
    found[:, :3, 3] = draw.normal(size=(5, 3))
    return found


def test_poses_are_read_as_scipy_writes_them(tmp_path, poses):
    path = tmp_path / "groundtruth.txt"
    write(path, [10.0, 10.1, 10.2, 10.3, 10.4], poses)
    found = read_trajectory(str(path))
    np.testing.assert_allclose(found.poses, poses, atol=1e-8)
    np.testing.assert_allclose(found.times, [10.0, 10.1, 10.2, 10.3, 10.4])


def test_times_in_nanoseconds_are_recognised(tmp_path, poses):
    path = tmp_path / "poses.txt"
    write(path, [1305031452.75, 1305031452.85], poses[:2])
    seconds = read_trajectory(path).times
    path.write_text(re.sub(r"(?m)^(\d+)\.", r"\1", path.read_text()))  # nine decimals
    np.testing.assert_allclose(read_trajectory(path).times, seconds, atol=1e-6)


def test_frames_are_matched_in_order_or_by_time(tmp_path, poses):
    path = tmp_path / "groundtruth.txt"
    write(path, [10.0, 10.1, 10.2, 10.3, 10.4], poses)
    found = read_trajectory(path)
    in_order = found.match(["a", "b", "c", "d", "e"], path)
    np.testing.assert_array_equal(in_order, found.poses)
    by_time = found.match(["10.105", "10.39"], path)
    np.testing.assert_array_equal(by_time, found.poses[[1, 4]])
    with pytest.raises(ValueError, match="holds 5 poses for 2 frames; pass one for each frame"):
        found.match(["a", "b"], path)
    with pytest.raises(ValueError, match=r"no pose within 0.02 s of the frame '10.15': its time"):
        found.match(["10.1", "10.15"], path)
    names = [f"{time - 4000:.3f}" for time in found.times + 9000]  # as many, but other times
    with pytest.raises(
        ValueError, match=r"time is 5010 s, and the nearest .* is at 10.4 s; .*--to"
    ):
        found.match(names, path)
    names = [f"{time:.3f}" for time in found.times]
    with pytest.raises(ValueError, match=r"holds 2 poses at 10.1 s, so it is not clear"):
        Trajectory(found.times[[0, 1, 1, 3, 4]], found.poses).match(names, path)
    np.testing.assert_array_equal(
        found.match(["10.1", "10.15"], path, tolerance=0.06)[0], found.poses[1]
    )
    turned = Trajectory(found.times[::-1], found.poses[::-1])
    names = [f"{time:.2f}" for time in found.times]  # as many, in another order
    np.testing.assert_array_equal(turned.match(names, path), found.poses)
    numbers = [f"{number:06d}" for number in range(5)]
    np.testing.assert_array_equal(found.match(numbers, path), found.poses)
    np.testing.assert_array_equal(turned.match(["10.105", "10.39"], path), found.poses[[1, 4]])
    with pytest.raises(ValueError, match="holds 5 poses for 1 frames; pass one for each frame"):
        found.match(["inf"], path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "holds no pose; expected lines of `timestamp tx ty tz qx qy qz qw`"),
        ("1 0 0 0 0 0 0 1\n1 2 3\n", "line 2, is not a pose; expected"),
        ("1 0 0 0 0 0 0 up\n", "line 1, is not a pose"),
        ("1 0 0 0 0 0 0 nan\n", "line 1, is not a pose"),
        ("1 0 0 0 0 0 0 0\n", "its quaternion qx qy qz qw has length 0, not 1"),
        ("1 0 0 0 1 1 1 1\n", "length 2, not 1"),
        ("-1 0 0 0 0 0 0 1\n", "'-1' is not a time in seconds"),
    ],
)
def test_what_is_not_a_trajectory_is_refused_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "poses.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"poses\.txt") as caught:
        read_trajectory(path)
    assert message in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"there is no file nowhere\.txt"):
        read_trajectory(Path("nowhere.txt"))


def test_hours_of_poses_are_matched_without_a_table_of_all_gaps():
    """100 poses and 10 frames a second: a table of 36,000 x 360,000 gaps would take 100 GB."""
    times = np.random.default_rng(0).permutation(np.arange(30_000) / 100)
    poses = np.tile(np.eye(4), (len(times), 1, 1))
    poses[:, 0, 3] = times
    found = Trajectory(times, poses)
    names = [f"{time:.3f}" for time in np.arange(0, 300, 0.1) + 0.004]
    tracemalloc.start()
    poses = found.match(names, Path("poses.txt"))
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 10_000_000
    np.testing.assert_allclose([pose[0, 3] for pose in poses], np.arange(0, 300, 0.1), atol=1e-9)


def test_a_name_that_is_no_time_has_no_pose(tmp_path, poses):
    write(tmp_path / "poses.txt", [1.0, 2.0, 3.0], poses[:3])
    for name in ("nan", "inf"):
        with pytest.raises(ValueError, match="name the frames by their time in seconds"):
            read_trajectory(tmp_path / "poses.txt").match(["1.0", name], Path("poses.txt"))
