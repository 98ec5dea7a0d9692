# SPDX-License-Identifier: Apache-2.0
"""The check of the frames of a stream, and conformal tables over sequences."""

import json
from pathlib import Path

import numpy as np
import pytest

from data.test_trajectories import write as write_poses
from deepbasis.conformal import ConformalTable
from deepbasis.data.formats import write_npy
from deepbasis.points import Points
from deepbasis.self_check import Check, check, check_frame
from deepbasis.stream import MAP_POINTS, Stream
from walks import bundled, camera, draw_points, room

FRAMES = 4


def wrong(rows):
    rows = rows.copy()
    rows[::10, 2] *= 2.5
    return rows


def walk(points, *, checked=True, poses=False, frames=None):
    """Checks and completions of the frames of a walk, and the stream after them."""
    frames = frames or room()[:FRAMES]
    model, checks, outs = bundled("indoor"), [], []
    state = Stream(model.network.fit, intrinsics=camera(frames[0]))
    for frame, rows in zip(frames, points, strict=True):
        given = model.prepare(frame.image), rows, frame.pose if poses else None
        if checked:
            checks.append(check_frame(state, *given))
        outs.append(state.add(*given))
    return checks, outs, state


@pytest.fixture(scope="module")
def points():
    return [draw_points(frame, 200, i) for i, frame in enumerate(room()[:FRAMES])]


@pytest.fixture(scope="module")
def plain(points):
    return walk(points)


def test_right_points_of_a_stream_are_not_contradicted_and_wrong_ones_are(points, plain):
    checks, _, _ = plain
    assert [one.verdict for one in checks] == ["not contradicted"] * FRAMES
    assert all(len(one) > 100 for one in checks)
    checks, outs, _ = walk([wrong(rows) for rows in points])
    assert [one.verdict for one in checks] == ["contradicted"] * FRAMES
    assert all("of the points look wrong" in one.cause for one in checks)
    for one, out in zip(checks, outs, strict=True):
        assert one.named == pytest.approx(out.dropped["left out as wrong"] / 200)


def test_the_check_of_a_first_frame_is_that_of_a_completion(points, plain):
    scene = bundled("indoor").prepare(room()[0].image)
    alone, found = check(scene, scene.complete(points[0])), plain[0][0]
    np.testing.assert_array_equal(found.depth, alone.depth)
    np.testing.assert_array_equal(found.distance, alone.distance)
    assert found.registration == alone.registration
    # A widened prior is rounded to float32 before or after widening.
    np.testing.assert_allclose(found.predicted, alone.predicted, rtol=0.01)


@pytest.mark.parametrize("poses", [False, True])
def test_a_checked_stream_is_that_without_the_check(points, poses):
    _, outs, state = walk(points, poses=poses)
    _, expected, unchecked = walk(points, checked=False, poses=poses)
    for have, want in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(have.latent_mean, want.latent_mean)
        np.testing.assert_array_equal(have.latent_var, want.latent_var)
        np.testing.assert_array_equal(have.points, want.points)
    assert (state.count, state.resets) == (unchecked.count, unchecked.resets)


def test_a_check_does_not_add_to_the_resets_of_a_stream(points):
    """Its frame is after a cut."""
    _, _, state = walk(points)
    other = room(1)[0]
    check_frame(state, bundled("indoor").prepare(other.image), draw_points(other, 200, 0))
    assert (state.count, state.resets) == (FRAMES, [])


@pytest.mark.parametrize("poses", [False, True])
def test_held_out_points_do_not_affect_their_own_prediction(points, poses):
    frames, model = room(), bundled("indoor")
    _, _, state = walk(points, checked=False, poses=poses)
    scene, pose = model.prepare(frames[FRAMES].image), frames[FRAMES].pose if poses else None
    rows = Points.from_rows(draw_points(frames[FRAMES], 200, 9)).inside((96, 128)).rows
    found = check_frame(state, scene, rows, pose)
    for number in (0, len(found) // 2, len(found) - 1):
        changed = rows.copy()
        (place,) = np.flatnonzero(rows[:, 2] == found.depth[number])
        changed[place, 2] *= 1.2
        again = check_frame(state, scene, changed, pose)
        assert again.depth[number] == changed[place, 2]
        assert again.predicted[number] == found.predicted[number]
        np.testing.assert_array_equal(again.half[:, number], found.half[:, number])
        assert (again.predicted != found.predicted).any()  # it is used to predict others


def test_points_that_are_carried_over_count_in_the_distances(points, plain):
    checks, outs, _ = walk(points, poses=True)
    assert all(len(out.points) > 250 for out in outs[1:])
    for number, (one, other) in enumerate(zip(checks, plain[0], strict=True)):
        np.testing.assert_array_equal(one.depth, other.depth)  # only own points are held out
        assert (one.distance <= other.distance).all()
        assert (one.distance < other.distance).any() == (number > 0)
    assert len(outs[-1].points) <= MAP_POINTS


def test_each_walk_may_be_one_group_of_a_table(plain):
    joined = Check.join([Check.join(plain[0])] * 9)
    assert joined.table().groups == 9
    assert Check.join(plain[0] * 9).table().groups == 9 * FRAMES


def test_frames_that_cannot_be_checked_are_refused_in_one_sentence(plain):
    state, frame = plain[2], room()[0]
    scene = bundled("indoor").prepare(frame.image)
    assert check_frame(state, scene).verdict == "too few points to tell"
    with pytest.raises(ValueError, match="the only point is outside"):
        check_frame(state, scene, [[-9, 1, 2.0]])
    with pytest.raises(ValueError, match="pass what `model.prepare"):
        check_frame(state, frame.image)
    with pytest.raises(ValueError, match="the stream is 3; pass a"):
        check_frame(3, scene)
    with pytest.raises(ValueError, match="the pose of frame f is"):
        check_frame(state, scene, draw_points(frame, 40, 0), np.eye(3), "f")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two walks with points and ground truth, and the poses and the camera of the first."""
    monkeypatch.chdir(tmp_path)
    for index, walk in enumerate(("old", "new")):
        for kind in ("rgb", "lidar", "true"):
            Path(walk, kind).mkdir(parents=True)
        for number, frame in enumerate(room(index)):
            Path(f"{walk}/rgb/{number}.jpg").write_bytes(frame.jpeg)
            np.savetxt(f"{walk}/lidar/{number}.csv", draw_points(frame, 100, number), delimiter=",")
            write_npy(Path(f"{walk}/true/{number}.npy"), frame.depth)
    frames = room()
    write_poses(Path("poses.txt"), np.arange(len(frames)) * 1.0, [one.pose for one in frames])
    np.savetxt("camera.txt", camera(frames[0]))


@pytest.fixture
def complete(folders, command):
    def run(walk, words):
        words = (
            f"complete {walk}/rgb --sparse {walk}/lidar --ground-truth {walk}/true --sequence "
            f"--model indoor --no-figure {words}"
        )
        return command(*words.split())

    return run


def summaries(out):
    return [json.loads(path.read_text()) for path in sorted(Path(out).glob("*.json"))]


def test_a_table_of_a_sequence_is_saved_and_used_for_another(complete):
    code, out, _ = complete("old", "--save-calibration table.json --out checked")
    count = len(room())
    assert code == 0
    assert f"all {count} frames: " in out
    assert f" of {count} frames: table.json" in out
    assert all(told["check"]["held_out"] > 60 for told in summaries("checked"))
    saved = [Check.read(path) for path in sorted(Path("checked").glob("*-check.npy"))]
    assert [len(one) for one in saved] == [
        told["check"]["held_out"] for told in summaries("checked")
    ]
    assert ConformalTable.load("table.json").groups == count
    assert complete("old", "--out plain")[0] == 0
    for path in Path("plain").glob("*.npy"):  # the check changes nothing
        np.testing.assert_array_equal(np.load(path), np.load(Path("checked", path.name)))
    for words in ("--out before", "--out after --calibration table.json"):
        assert complete("new", words)[0] == 0
    covered = [
        np.mean([told["ground_truth"]["coverage90"] for told in summaries(name)])
        for name in ("before", "after")
    ]
    assert covered[1] >= max(covered[0], 0.9)


def test_intervals_of_a_sequence_are_widened_frame_by_frame(complete):
    """Those of frames with too few points are not; the sequence goes on."""
    Path("old/lidar/3.csv").unlink()
    code, out, err = complete("old", "--rescale --out out")
    assert code == 1
    assert "3 failed: old/rgb/3.jpg: 0 held-out points are too few for conformal intervals" in err
    assert len(summaries("out")) == len(room()) - 1
    assert "--rescale has widened" in out + err or "not contradicted" in out


def test_the_check_of_a_sequence_uses_its_poses(complete):
    words = "--poses poses.txt --intrinsics camera.txt --check --out out"
    assert complete("old", words)[0] == 0
    first, *others = summaries("out")
    nearest = [told["check"]["farthest_checked_px"] for told in (first, *others)]
    assert max(nearest[1:]) < nearest[0]


def test_a_table_of_too_few_frames_with_points_is_refused_before_the_work(complete):
    for number in range(2, len(room())):
        Path(f"old/lidar/{number}.csv").unlink()
    code, _, err = complete("old", "--save-calibration table.json --out out")
    assert code == 2
    assert "--save-calibration needs 9 frames with points or more, and there are 2" in err
    assert not Path("out").exists()


def test_a_table_of_frames_with_too_few_points_is_refused(complete):
    for number in range(1, len(room())):
        np.savetxt(f"old/lidar/{number}.csv", [[9, 9, 2.0]], delimiter=",")
    code, _, err = complete("old", "--save-calibration table.json --out out")
    assert code == 2
    assert "held-out points of 1 frames are too few for conformal intervals; 40 of 9 frames" in err
    assert not Path("table.json").exists()
