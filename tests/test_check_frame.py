# SPDX-License-Identifier: Apache-2.0
"""The check of the frames of a stream, and conformal tables over sequences."""

import json
from pathlib import Path

import numpy as np
import pytest

from data.test_trajectories import write as write_poses
from deepbasis.conformal import ConformalTable
from deepbasis.data.formats import write_npy
from deepbasis.points import to_points
from deepbasis.self_check import Check, check, check_frame
from deepbasis.stream import LEFT_OUT, Stream
from walks import SIZE, bundled, camera, draw_points, room

# Of a room in which the model finds no right point wrong.
FRAMES, COUNT = room(2)[:3], 100


def contaminate(rows):
    wrong = rows.copy()
    wrong[::10, 2] *= 2.5
    return wrong


def run(frames, points, *, checked=True, poses=False, robust=True):
    """Checks and completions of the frames of a walk, and the stream after them."""
    model, checks, outs = bundled("indoor"), [], []
    state = Stream(model.network.fit, robust=robust, intrinsics=camera(FRAMES[0]))
    for frame, rows in zip(frames, points, strict=True):
        given = model.prepare(frame.image), rows, frame.pose if poses else None
        if checked:
            checks.append(check_frame(state, *given))
        outs.append(state.add(*given))
    return checks, outs, state


@pytest.fixture(scope="module")
def points():
    return [draw_points(frame, COUNT, i) for i, frame in enumerate(FRAMES)]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "posed"])
def poses(request):
    return request.param


@pytest.fixture(scope="module")
def walk(points, poses):
    return run(FRAMES, points, poses=poses)


def test_right_points_of_a_stream_are_not_contradicted(walk):
    checks, _, _ = walk
    assert [one.verdict for one in checks] == ["not contradicted"] * len(FRAMES)
    assert all(len(one) > 0.6 * COUNT for one in checks)


def test_wrong_points_of_a_stream_are_contradicted(points):
    checks, outs, _ = run(FRAMES[:2], [contaminate(rows) for rows in points[:2]])
    for one, out in zip(checks, outs, strict=True):
        assert one.verdict == "contradicted"
        assert "of the points look wrong" in one.cause
        assert one.named == pytest.approx(out.dropped[LEFT_OUT] / COUNT)


def test_the_check_of_a_first_frame_is_that_of_a_completion(points):
    scene = bundled("indoor").prepare(FRAMES[0].image)
    ((found,), _, _) = run(FRAMES[:1], points[:1], robust=False)
    alone = check(scene, scene.complete(points[0], robust=False), robust=False)
    np.testing.assert_array_equal(found.depth, alone.depth)
    np.testing.assert_array_equal(found.distance, alone.distance)
    assert found.registration == alone.registration
    # A widened prior is rounded to float32 before or after widening.
    np.testing.assert_allclose(found.predicted, alone.predicted, rtol=0.01)


def test_a_checked_stream_is_that_without_the_check(points, poses, walk):
    _, outs, state = walk
    _, expected, unchecked = run(FRAMES, points, checked=False, poses=poses)
    for have, want in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(have.latent_mean, want.latent_mean)
        np.testing.assert_array_equal(have.latent_var, want.latent_var)
        np.testing.assert_array_equal(have.points, want.points)
    assert (state.count, state.resets) == (unchecked.count, unchecked.resets) == (len(FRAMES), [])


def test_a_check_after_a_cut_does_not_reset_the_stream(walk):
    _, _, state = walk
    other = room(1)[0]
    scene, rows = bundled("indoor").prepare(other.image), draw_points(other, 20, 0)
    assert len(check_frame(state, scene, rows)) > 0
    assert (state.count, state.resets) == (len(FRAMES), [])
    after = state.copy()
    after.add(scene, rows)
    assert (after.resets, state.resets) == ([len(FRAMES)], [])


def test_held_out_points_do_not_affect_their_own_prediction(poses, walk):
    frame, (_, _, state) = room(2)[len(FRAMES)], walk
    scene, pose = bundled("indoor").prepare(frame.image), frame.pose if poses else None
    rows = to_points(draw_points(frame, 35, 9), SIZE).inside(SIZE).rows
    found = check_frame(state, scene, rows, pose)
    for number in range(0, len(found), 10):
        changed = rows.copy()
        (place,) = np.flatnonzero(rows[:, 2] == found.depth[number])
        changed[place, 2] *= 1.2
        again = check_frame(state, scene, changed, pose)
        assert again.depth[number] == pytest.approx(changed[place, 2])
        assert again.predicted[number] == found.predicted[number]
        np.testing.assert_array_equal(again.half[:, number], found.half[:, number])
        assert (again.predicted != found.predicted).any()  # others are predicted from it


def test_points_that_are_carried_over_count_in_the_distances(points):
    """Only points of the frame itself are held out."""
    rows = [one[:35] for one in points]
    plain, _, _ = run(FRAMES, rows)
    posed, outs, _ = run(FRAMES, rows, poses=True)
    for number, (one, other) in enumerate(zip(posed, plain, strict=True)):
        np.testing.assert_array_equal(one.depth, other.depth)
        assert (one.distance <= other.distance).all()
        assert (one.distance < other.distance).any() == (number > 0)
        assert (len(outs[number].points) > 35) == (number > 0)


def test_a_frame_or_a_walk_may_be_a_group_of_a_table(walk):
    checks, _, _ = walk
    assert Check.join(checks * 9).table().groups == 9 * len(FRAMES)
    assert Check.join([Check.join(checks)] * 9).table().groups == 9


def test_frames_that_cannot_be_checked_are_refused_in_one_sentence(walk):
    (_, _, state), frame = walk, FRAMES[0]
    scene = bundled("indoor").prepare(frame.image)
    assert check_frame(state, scene).verdict == "too few points to tell"
    with pytest.raises(ValueError, match="the only point is outside"):
        check_frame(state, scene, [[-9, 1, 2.0]])
    with pytest.raises(ValueError, match="the pose of frame f is"):
        check_frame(state, scene, draw_points(frame, 40, 0), np.eye(3), "f")


def test_held_out_points_are_written_and_read(walk, tmp_path):
    (one, *_), _, _ = walk
    one.write(tmp_path / "a-check.npy")
    for path in (tmp_path / "a-check.npy", str(tmp_path / "a-check.npy")):
        np.testing.assert_array_equal(Check.read(path).scores, one.scores)
    np.save(tmp_path / "b.npy", np.ones((3, 4)))
    with pytest.raises(ValueError, match="not a file of held-out points"):
        Check.read(str(tmp_path / "b.npy"))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two walks with points and ground truth; poses and camera of the first."""
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(("old", "new")):
        for kind in ("rgb", "lidar", "true"):
            Path(name, kind).mkdir(parents=True)
        for number, frame in enumerate(room(index)):
            Path(f"{name}/rgb/{number}.jpg").write_bytes(frame.jpeg)
            np.savetxt(f"{name}/lidar/{number}.csv", draw_points(frame, COUNT, number))
            write_npy(Path(f"{name}/true/{number}.npy"), frame.depth)
    frames = room()
    write_poses(Path("poses.txt"), np.arange(float(len(frames))), [one.pose for one in frames])
    np.savetxt("camera.txt", camera(frames[0]))


@pytest.fixture
def complete(folders, command):
    def start(words, name="old"):
        words = (
            f"complete {name}/rgb --sparse {name}/lidar --ground-truth {name}/true --sequence "
            f"--model indoor --no-figure {words}"
        )
        return command(*words.split())

    return start


def shorten(kind, count):
    """Keep the first files of a folder."""
    for path in Path("old", kind).iterdir():
        if int(path.stem) >= count:
            path.unlink()


def summaries(out):
    return [json.loads(path.read_text()) for path in sorted(Path(out).glob("*.json"))]


@pytest.mark.slow
def test_a_table_of_a_sequence_is_saved_and_used_for_another(complete):
    code, out, _ = complete("--save-calibration table.json --out checked")
    count = len(room())
    assert code == 0
    assert f"all {count} frames: " in out
    assert f" of {count} frames: table.json" in out
    assert ConformalTable.load("table.json").groups == count
    for told, path in zip(
        summaries("checked"), sorted(Path("checked").glob("*-check.npy")), strict=True
    ):
        assert len(Check.read(path)) == told["check"]["held_out"] > 0.6 * COUNT
    assert complete("--out plain")[0] == 0
    for path in Path("plain").glob("*.npy"):  # the check changes no result
        np.testing.assert_array_equal(np.load(path), np.load(Path("checked", path.name)))
    for words in ("--out before", "--out after --calibration table.json"):
        assert complete(words, "new")[0] == 0
    before, after = (
        np.mean([told["ground_truth"]["coverage90"] for told in summaries(out)])
        for out in ("before", "after")
    )
    assert after >= max(before, 0.9)


@pytest.mark.slow
def test_intervals_of_a_sequence_are_widened_frame_by_frame(complete):
    """A frame with too few points fails, and the sequence goes on."""
    shorten("rgb", 3)
    Path("old/lidar/1.csv").unlink()
    assert complete("--check --interval 0.9 --out checked")[0] == 0
    code, _, err = complete("--rescale --interval 0.9 --out widened")
    assert code == 1
    assert "1 failed: old/rgb/1.jpg: 0 held-out points are too few for conformal intervals" in err
    assert [path.name for path in sorted(Path("widened").glob("*.json"))] == ["0.json", "2.json"]
    for name in ("0", "2"):
        depth, low = (
            [np.load(f"{out}/{name}-{kind}.npy") for out in ("checked", "widened")]
            for kind in ("depth", "low90")
        )
        np.testing.assert_array_equal(*depth)
        assert (low[1] <= low[0]).all()
        assert (low[1] < 0.99 * low[0]).any()


@pytest.mark.slow
def test_the_check_of_a_sequence_uses_its_poses(complete):
    shorten("rgb", 3)
    for number in range(3):
        np.savetxt(f"old/lidar/{number}.csv", draw_points(room()[number], 35, number))
    assert complete("--check --out plain")[0] == 0
    words = "--check --poses poses.txt --intrinsics camera.txt --out posed"
    assert complete(words)[0] == 0
    for number in range(3):
        plain, posed = (Check.read(Path(out, f"{number}-check.npy")) for out in ("plain", "posed"))
        assert (plain.distance > posed.distance).any() == (number > 0)


def test_a_table_of_too_few_frames_with_points_is_refused_before_the_work(complete):
    shorten("lidar", 2)
    code, _, err = complete("--save-calibration table.json --out out")
    assert code == 2
    assert "--save-calibration needs 9 frames with points or more, and there are 2" in err
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_table_of_frames_with_too_few_points_is_refused(complete):
    """Even if one of them has enough for a table of its own."""
    for number in range(1, len(room())):
        np.savetxt(f"old/lidar/{number}.csv", [[9, 9, 2.0]])
    code, _, err = complete("--save-calibration table.json --out out")
    assert code == 2
    assert "held-out points of 1 frames are too few for conformal intervals; 40 of 9 frames" in err
    assert not Path("table.json").exists()
