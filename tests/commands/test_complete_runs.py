# SPDX-License-Identifier: Apache-2.0
"""Runs of `deepbasis complete` over folders: what fails, what is up to date, what is stopped."""

import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from deepbasis.cli import main
from deepbasis.commands.complete.inputs import Frame
from deepbasis.commands.complete.plan import Planned
from deepbasis.commands.complete.run import add_up_to, state_together
from deepbasis.commands.complete.sinks import Sinks
from deepbasis.data.bags import Bag, Topics
from deepbasis.data.files import atomic_write
from deepbasis.data.formats import write_depth_png, write_image
from models import make_model
from waiting import LIMIT, wait_for

SIZE = (64, 96)
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    make_model(errors="independent").save(path)
    return path


def make_frame(name, seed, points=300, noise=0.02):
    """A wall of 3 m with noisy points."""
    draw = np.random.default_rng(seed)
    write_image(Path(f"rgb/{name}.png"), draw.integers(256, size=(*SIZE, 3), dtype=np.uint8))
    depth = np.zeros(SIZE)
    chosen = draw.permutation(depth.size)[:points]
    depth.flat[chosen] = 3 * np.exp(noise * draw.standard_normal(points))
    write_depth_png(Path(f"lidar/{name}.png"), depth, 1000)


@pytest.fixture
def frames(tmp_path, monkeypatch):
    """A folder of three frames; the working folder."""
    monkeypatch.chdir(tmp_path)
    for folder in ("rgb", "lidar"):
        Path(folder).mkdir()
    Path("scale.txt").write_text("1000")
    for seed, name in enumerate(NAMES):
        make_frame(name, seed)
    return tmp_path


@pytest.fixture
def complete(frames, model, command):
    """Run the command; gives exit code, and what was printed to both streams."""

    def run(words="", image="rgb", sparse="--sparse lidar", figure="--no-figure"):
        words = f"complete {image} --out out --model {model} {sparse} {figure} {words}"
        return command(*words.split())

    return run


def completed(said):
    """Names of the frames that a run has computed."""
    return re.findall(r"^(\w+): \d+ points? used", said, re.MULTILINE)


# What fails


def test_a_corrupt_frame_does_not_stop_the_others_and_is_tried_again(complete):
    good = Path("rgb/b.png").read_bytes()
    Path("rgb/b.png").write_bytes(good[:200])
    code, out, err = complete()
    assert code == 1
    assert completed(out) == ["a", "c"]
    assert "deepbasis: b failed: rgb/b.png cannot be read as a picture" in err
    assert err.splitlines()[-1] == (
        "deepbasis: 1 of 3 frames failed; the same command tries them again"
    )
    assert not Path("out/b.json").exists()
    code, out, err = complete()
    assert (code, completed(out)) == (1, [])
    assert "2 of 3 frames are done already" in out
    Path("rgb/b.png").write_bytes(good)
    code, out, err = complete()
    assert (code, completed(out), err) == (0, ["b"], "")
    Path("rgb/b.png").write_bytes(good[:200])
    assert "; results of an earlier run, which may be outdated, remain in out\n" in complete()[2]
    err = complete(image="rgb/b.png", sparse="")[2]
    assert err.endswith("; results of an earlier run, which may be outdated, remain in out\n")


@pytest.mark.parametrize("sparse", [b"", b"hello", None])
def test_bad_points_and_lost_files_fail_alone(complete, sparse):
    path = Path("lidar/b.png")
    if sparse is None:
        path.unlink()
        path.symlink_to("nowhere.png")
    else:
        path.write_bytes(sparse)
    code, out, err = complete()
    assert (code, completed(out)) == (1, ["a", "c"])
    assert "deepbasis: b failed: " in err
    assert "Traceback" not in err


def test_if_all_frames_fail_there_is_no_table_but_their_reasons(complete):
    for seed, name in enumerate("abcdefghi"):
        make_frame(name, seed)
        Path(f"rgb/{name}.png").write_bytes(b"no picture")
    code, _, err = complete("--save-calibration table.json")
    assert code == 1
    assert err.count("cannot be read as a picture") == 9
    assert not Path("table.json").exists()


def test_held_out_points_of_an_earlier_run_do_not_remain(complete):
    assert complete("--check")[0] == 0
    assert Path("out/a-check.npy").is_file()
    assert complete("--no-robust")[0] == 0
    assert not Path("out/a-check.npy").exists()


def test_results_do_not_go_among_the_images(complete, command):
    before = sorted(Path("rgb").iterdir())
    code, _, err = command(*["complete", "rgb", "--sparse", "lidar", "--out", "./rgb"])
    assert code == 2
    assert "--out rgb is the folder of the images" in err
    assert sorted(Path("rgb").iterdir()) == before


def test_a_ground_truth_without_a_unit_asks_for_its_own_scale(complete):
    Path("scale.txt").unlink()
    Path("truth").mkdir()
    shutil.copy("lidar/a.png", "truth/a.png")
    np.savetxt("a.csv", [[5, 5, 3.0]])
    words = "--ground-truth truth/a.png"
    _, _, err = complete(words, image="rgb/a.png", sparse="--sparse a.csv")
    assert "--ground-truth-scale" in err
    assert "--depth-scale" not in err


def test_bags_get_the_frames_in_order_after_a_resume():
    planned = [
        Planned(Frame(name, Path(f"{name}.png"), None, None, None), {}, {}) for name in "abcd"
    ]
    summaries = {"a": None, "b": {}, "c": None, "d": {}}
    sinks, waiting = MagicMock(spec=Sinks), deque(planned)
    for one, summary in ((planned[0], {}), (planned[2], None)):  # the third one fails
        summaries[one.frame.name] = summary
        add_up_to(one, waiting, sinks, summaries)
    add_up_to(None, waiting, sinks, summaries)
    assert "".join(call.args[0].frame.name for call in sinks.add.call_args_list) == "abd"


def images_of(bag):
    return len(Bag(Path(bag), Topics("/deepbasis/image")).names)


@pytest.mark.parametrize("bag", ["bag", "x.bag"])
def test_the_same_command_completes_failed_frames_and_their_bag(complete, bag):
    good = Path("rgb/b.png").read_bytes()
    Path("rgb/b.png").write_bytes(good[:200])
    for _ in range(2):
        code, out, err = complete(f"--out-bag {bag}")
        assert code == 1, err
        assert out.splitlines()[-1].endswith(f"summaries are in out; the bag is {bag}")
        assert images_of(bag) == 2
    Path("rgb/b.png").write_bytes(good)
    code, out, err = complete(f"--out-bag {bag}")
    assert (code, completed(out), err) == (0, ["b"], "")
    assert images_of(bag) == 3
    before = {path: path.stat().st_mtime_ns for path in Path(bag).parent.rglob("*")}
    code, out, _ = complete(f"--out-bag {bag}")
    assert (code, completed(out)) == (0, [])
    assert out.splitlines()[-1] == f"the bag {bag} is up to date"
    assert before == {path: path.stat().st_mtime_ns for path in Path(bag).parent.rglob("*")}
    # A change of an input is a change of the bag.
    make_frame("b", 7)
    code, out, _ = complete(f"--out-bag {bag}")
    assert (code, completed(out), images_of(bag)) == (0, ["b"], 3)
    assert not list(Path().glob(".*.part"))


def test_a_bag_that_the_command_did_not_write_is_never_replaced(complete):
    assert complete("--out-bag bag")[0] == 0
    code, _, err = complete("--out-bag bag --max-depth 9")
    assert code == 2
    assert "bag exists already and is not an unchanged result of this command" in err
    make_frame("b", 7)
    Path("bag/notes.txt").write_text("mine")
    code, _, err = complete("--out-bag bag")
    assert (code, Path("bag/notes.txt").read_text()) == (2, "mine")
    Path("bag/notes.txt").unlink()
    with Path("bag/bag.mcap").open("ab") as file:
        file.write(b"x")
    assert complete("--out-bag bag")[0] == 2
    Path("other").mkdir()
    assert complete("--out-bag other")[0] == 2
    assert not list(Path("other").iterdir())


@pytest.mark.parametrize("option", ["--ground-truth", "--intrinsics", "--sparse"])
def test_a_missing_file_of_one_frame_fails_alone(complete, option):
    Path("other").mkdir()
    for name in ("a", "c"):
        np.save(f"other/{name}.npy", np.full(SIZE, 3.0, np.float32))
        Path(f"other/{name}.txt").write_text("40 40 23.5 15.5")
    suffix = ".npy" if option == "--intrinsics" else ".txt"
    for path in Path("other").glob(f"*{suffix}"):
        path.unlink()
    code, out, err = complete(sparse=f"{option} other")
    assert (code, completed(out)) == (1, ["a", "c"])
    assert f"deepbasis: b failed: {option} other holds no file named 'b'\n" in err
    for path in Path("other").iterdir():
        path.rename(path.with_stem(f"{path.stem}-depth"))
    code, out, err = complete(sparse=f"{option} other")
    assert (code, out) == (2, "")
    assert "holds 2 files, but none is named like an image: 'a-depth' is not 'a'" in err


def test_the_folder_above_the_images_is_recognised(complete):
    code, _, err = complete(image=".", sparse="")
    assert code == 2
    assert err.endswith(".png; did you mean lidar or rgb?\n")


def test_points_in_place_of_the_image_are_recognised(complete):
    np.savetxt("rows.csv", [[1, 2, 3.0]])
    for image in ("rows.csv", "rgb/a.png rows.csv"):
        code, _, err = complete(image=image, sparse="")
        assert code == 2
        assert err == (
            "deepbasis: rows.csv is not an image; pass measurements with --sparse rows.csv\n"
        )
    assert not Path("out").exists()


def test_a_missing_folder_is_not_called_a_file(complete):
    code, _, err = complete(sparse="--sparse lidr")
    assert (code, err) == (
        2, "deepbasis: --sparse: there is no file or folder lidr; check its name\n",
    )  # fmt: skip


def test_a_missing_option_is_said_once(complete):
    Path("scale.txt").unlink()
    code, _, err = complete()
    assert code == 2
    assert err.startswith("deepbasis: lidar/a.png holds integers, and the file does not say")
    assert err.count("\n") == 1
    for name in "abc":
        Path(f"lidar/{name}.png").unlink()
        np.savetxt(f"lidar/{name}.xyz", [[0, 0, 3.0]])
    code, _, err = complete()
    assert code == 2
    assert err == (
        "deepbasis: lidar/a.xyz is a point cloud, so the camera must be known: pass --intrinsics\n"
    )


def test_a_wrong_scale_is_said_once(complete):
    Path("scale.txt").write_text("1")
    code, _, err = complete()
    assert code == 2
    assert err.endswith(" m: pass --depth-scale 1000\n")
    assert err.count("\n") == 1


def test_one_image_that_fails_is_a_mistake(complete):
    Path("rgb/b.png").write_bytes(b"hello")
    code, out, err = complete(image="rgb/b.png", sparse="")
    assert (code, out) == (2, "")
    assert err.startswith("deepbasis: rgb/b.png cannot be read as a picture")
    assert err.count("\n") == 1


def test_a_full_disk_names_the_file(complete, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, _, err = complete()
    assert code == 2
    assert err == "deepbasis: cannot write out/a-depth.npy (No space left on device)\n"
    assert not list(Path("out").iterdir())


# What is up to date


def rerun(complete, words=""):
    code, out, err = complete(words)
    assert code == 0, err
    return completed(out)


def test_a_replaced_input_is_computed_again(complete):
    assert rerun(complete) == ["a", "b", "c"]
    assert rerun(complete) == []
    for path in ("rgb/b.png", "lidar/b.png"):
        status = Path(path).stat()
        make_frame("b", path.count("i") + 50)
        if path == "rgb/b.png":  # a tool that keeps times must not hide the change
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert rerun(complete) == ["b"]
    assert rerun(complete) == []


def test_another_scale_model_or_version_is_computed_again(complete, model, monkeypatch, tmp_path):
    assert rerun(complete) == ["a", "b", "c"]
    Path("scale.txt").write_text("1001")
    assert rerun(complete) == ["a", "b", "c"]
    assert rerun(complete, "--huber 1.345") == ["a", "b", "c"]
    assert rerun(complete, "--huber 1.345 --quiet") == []
    assert rerun(complete) == ["a", "b", "c"]
    monkeypatch.setattr("deepbasis.__version__", "99")
    assert rerun(complete) == ["a", "b", "c"]
    before = model.read_bytes()
    try:
        make_model(errors="correlated").save(model)
        assert rerun(complete) == ["a", "b", "c"]
    finally:
        model.write_bytes(before)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["b-depth.npy", "b-std.png", "b-check.npy", "b.json"])
def test_a_lost_output_is_written_again(complete, file):
    assert rerun(complete, "--check") == ["a", "b", "c"]
    before = (Path("out") / file).read_bytes()
    (Path("out") / file).unlink()
    assert rerun(complete, "--check") == ["b"]
    assert (Path("out") / file).read_bytes() == before


def test_a_damaged_summary_is_not_trusted(complete):
    assert rerun(complete) == ["a", "b", "c"]
    Path("out/a.json").write_text("[" * 100_000)
    Path("out/b.json").write_text("[1, 2]")
    assert rerun(complete) == ["a", "b"]


@pytest.mark.slow
def test_the_check_covers_frames_that_were_done_earlier(complete):
    whole = complete("--check")[1].splitlines()
    verdict = next(line for line in whole if line.startswith("all 3 frames: "))
    assert "points held out" in verdict
    Path("out/c.json").unlink()
    out = complete("--check")[1]
    assert completed(out) == ["c"]
    assert verdict in out
    assert verdict in complete("--check")[1]
    Path("rgb/c.png").write_bytes(b"damaged")
    assert "all 2 frames: " in complete("--check")[1]


def test_all_frames_together_do_not_hide_contradicted_ones():
    good, bad = "not contradicted", "contradicted"
    assert state_together([good, good], "not contradicted by 40 points") == (
        "not contradicted by 40 points"
    )
    assert state_together([good, bad, good], "not contradicted by 60") == (
        "1 contradicted; the average over all frames, which says nothing about a single one: not "
        "contradicted by 60"
    )


# Names of files


def test_results_of_one_name_are_refused(complete):
    make_frame("a-depth", 7)
    code, out, err = complete(figure="")
    assert (code, out) == (2, "")
    assert "the results of rgb/a.png and rgb/a-depth.png would both be called a-depth.png" in err
    assert not Path("out").exists()


def test_an_input_whose_name_is_that_of_a_result_is_refused(complete):
    Path("out").mkdir()
    write_image(Path("out/z.png"), np.zeros((*SIZE, 3), np.uint8))
    np.save("out/z-low2.5.npy", np.full(SIZE, 3.0, np.float32))
    before = Path("out/z-low2.5.npy").read_bytes()
    code, _, err = complete(
        "--interval 0.025", image="out/z.png", sparse="--sparse out/z-low2.5.npy"
    )
    assert code == 2
    assert "--out out holds z-low2.5.npy, an input that results would replace" in err
    assert Path("out/z-low2.5.npy").read_bytes() == before
    assert len(list(Path("out").iterdir())) == 2


def test_the_same_image_twice_is_one_frame(complete):
    assert completed(complete(image="rgb/a.png rgb/a.png", sparse="")[1]) == ["a"]


@pytest.mark.parametrize("link", ["out", "nowhere"])
def test_a_symbolic_link_to_nowhere_is_refused(complete, link):
    Path("out").symlink_to(link)
    code, out, err = complete()
    assert (code, out) == (2, "")
    assert err == "deepbasis: --out out: out is a symbolic link to nowhere; choose another folder\n"


def test_a_loop_above_the_folder_is_refused(frames, model, monkeypatch, capsys):
    Path("loop").symlink_to("loop")
    words = f"complete rgb/a.png --out loop/out --model {model}"
    monkeypatch.setattr(sys, "argv", ["deepbasis", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "is a symbolic link to nowhere; choose another" in capsys.readouterr().err


# What is printed


def test_json_is_one_line_a_frame_also_for_frames_done_earlier(complete):
    Path("rgb/b.png").write_bytes(b"hello")
    for _ in range(2):
        code, out, err = complete("--json")
        assert code == 1
        lines = [json.loads(line) for line in out.splitlines()]
        assert sorted(line["name"] for line in lines) == ["a", "b", "c"]
        assert [line["error"][:9] for line in lines if "error" in line] == ["rgb/b.png"]
        assert all(line["points"] == 300 for line in lines if "error" not in line)
        assert err.startswith("deepbasis: b failed")
    assert "earlier run" not in err


def test_a_warning_of_many_frames_is_printed_once(complete):
    code, out, err = complete("--quiet", sparse="")
    first, again = err.splitlines()
    assert (code, out) == (0, "")
    assert first.startswith("warning: a: there are no points")
    assert again == first.replace("a:", "the same for 2 more frames:", 1).replace("  ", " ")
    Path("rgb/c.png").unlink()
    _, _, err = complete("--quiet --no-robust", sparse="")
    assert err.splitlines()[1].startswith("warning: the same for 1 more frame: there are")


@pytest.mark.slow
def test_quiet_prints_nothing_but_warnings(complete):
    assert complete("--quiet --check") == (0, "", "")


@pytest.mark.parametrize("shards", ["", "--shard-frames 2"])
def test_contradictions_are_warnings_and_rescaling_is_advised_once(complete, shards):
    for name in NAMES:
        make_frame(name, 2, noise=0.3)
    code, out, err = complete(f"--quiet --no-robust --check {shards}")
    assert (code, out) == (0, "")
    if shards:
        assert err == "warning: 3 of 3 frames contradicted; see `check` in their summaries\n"
    else:
        assert re.findall(r"^warning: (\w): contradicted: ", err, re.MULTILINE) == list(NAMES)
        assert (
            err.count("are too narrow for this data") == err.count("; --rescale widens them") == 3
        )
    code, out, err = complete(f"--no-robust --rescale {shards}")
    assert (code, "--rescale widens them" in out + err) == (0, False)
    assert (out + err).count("--rescale has widened them") == (1 if shards else 4)


def test_the_line_of_a_frame_shows_the_median_std_in_metres(complete):
    out = complete(image="rgb/a.png", sparse="--sparse lidar/a.png")[1]
    median = np.median(np.load("out/a-std.npy"))
    assert f"a: 300 points used; median std {median:.3g} m\n" in out
    assert "noise" not in out
    complete(image="rgb/b.png", sparse="")
    assert json.loads(Path("out/b.json").read_text())["noise_percent"] is None


def test_rows_and_their_scale(complete):
    depth = 3000.0 + np.arange(40)
    rows = np.stack([np.arange(40), np.arange(40) % 30, depth, np.full(40, 20.0)], 1)
    np.savetxt("rows.csv", rows)
    np.save("rows.npy", rows)
    np.savetxt("cloud.xyz", [[0.1 * i, 0.1, 3.0] for i in range(-5, 5)])
    Path("camera.txt").write_text("40 40 23.5 15.5")
    found = []
    for sparse in ("rows.csv", "rows.npy"):
        words = f"--sparse {sparse} --depth-scale 1000"
        assert complete(image="rgb/a.png", sparse=words)[0] == 0
        found.append(np.load("out/a-depth.npy"))
    np.testing.assert_array_equal(*found)
    assert 2 < np.median(found[0]) < 4
    words = "--sparse cloud.xyz --intrinsics camera.txt"
    code, out, _ = complete(image="rgb/a.png", sparse=words)
    assert (code, completed(out)) == (0, ["a"])


def test_the_ground_truth_may_have_its_own_scale(complete):
    write_depth_png(Path("truth.png"), np.full(SIZE, 3.0), 256)
    words = "--ground-truth truth.png --depth-scale 1000 --ground-truth-scale 256"
    assert complete(words, image="rgb/a.png", sparse="--sparse lidar/a.png")[0] == 0
    assert json.loads(Path("out/a.json").read_text())["ground_truth"]["mae"] < 0.3


def test_points_outside_the_image_are_doubted(complete):
    rows = [[i, i % 30, 3.0] for i in range(40)] + [[i + 100, 5, 3.0] for i in range(20)]
    np.savetxt("rows.csv", rows)
    err = complete(image="rgb/a.png", sparse="--sparse rows.csv")[2]
    assert err.startswith(
        "warning: a: 20 of 60 points fall outside the image; check the order of u"
    )


@pytest.mark.parametrize(
    ("centre", "doubted"),
    [("47.5 31.5", False), ("24 50", False), ("95 63", True), ("9 31", True)],
)
def test_a_principal_point_far_from_the_centre_is_doubted_once(complete, centre, doubted):
    Path("camera.txt").write_text(f"80 80 {centre}")
    err = complete("--intrinsics camera.txt")[2]
    cx, cy = centre.split()
    said = (
        f"the principal point of the camera, cx = {cx} and cy = {cy}, is far from the centre of "
        "the image, which is 64 x 96 pixels (height x width); check that the intrinsics are for "
        "images of this size\n"
    )
    again = f"warning: the same for 2 more frames: {said}"
    assert err == (f"warning: a: {said}{again}" if doubted else "")


# What is stopped


def start(words, model, terminal=False):
    """The command in a process of its own; with a terminal, also its output."""
    command = [sys.executable, "-m", "deepbasis.cli", "complete", *words.split()]
    command += ["--model", str(model)]

    def hear_interrupts():
        """Tests in the background of a shell inherit that Ctrl-C is ignored."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    options = {"text": True, "preexec_fn": hear_interrupts}
    if not terminal:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, **options), None
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, **options)
    os.close(theirs)
    return process, ours


def read_all(descriptor):
    """All that a process writes to a terminal until it ends."""
    said = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            return said.decode()
        if not part:
            return said.decode()
        said += part


@pytest.fixture
def many(frames):
    for seed in range(12):
        make_frame(f"m{seed:02}", seed)
    return "rgb --out out --sparse lidar"


def test_interrupting_ends_at_once_without_a_traceback(many, model):
    for seed in range(12, 90):  # so many that it cannot end by itself before the signal comes
        make_frame(f"m{seed:02}", seed)
    process, _ = start(many, model)
    wait_for(lambda: list(Path("out").glob("*.json")), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert len(list(Path("out").glob("*.json"))) < 80  # of 93
    assert process.returncode == 130
    assert err == "deepbasis: interrupted\n"
    assert "Traceback" not in out


@pytest.mark.slow
def test_a_killed_run_is_resumed_and_its_parts_are_removed(many, model, complete):
    process, _ = start(many, model)
    wait_for(lambda: list(Path("out").glob("*.json")), process)
    process.kill()
    process.communicate(timeout=LIMIT)
    Path("out/.a-depth.npy.0123abcd.part").write_bytes(b"half")
    Path("out/.other.npy.0123abcd.part").write_bytes(b"of something else")
    done = len(list(Path("out").glob("*.json")))
    before = {path: path.read_bytes() for path in Path("out").glob("*-depth.npy")}
    code, out, _ = complete(figure="")
    assert code == 0
    assert re.search(rf"^{done} of 15 frames (is|are) done already", out)
    assert len(completed(out)) == 15 - done
    assert [path.name for path in Path("out").glob(".*.part")] == [".other.npy.0123abcd.part"]
    for path, content in before.items():
        assert path.read_bytes() == content


def test_a_second_run_leaves_the_files_that_a_live_one_is_writing(complete):
    Path("out").mkdir()
    with atomic_write(Path("out/a-depth.npy")) as file:
        assert complete()[0] == 0
        file.write(b"written by the first")
    assert Path("out/a-depth.npy").read_bytes() == b"written by the first"
    assert not list(Path("out").glob(".*.part"))


@pytest.mark.slow
def test_a_bar_shows_the_time_left_in_a_terminal_only(many, model):
    process, terminal = start(many + " --no-figure", model, terminal=True)
    said = read_all(terminal)
    os.close(terminal)
    assert process.wait(timeout=LIMIT) == 0
    assert "completing" in said
    assert re.search(r"\d+/15", said)
    assert re.search(r"left.*\d:\d\d:\d\d", said)
    assert "m11: 300 points used" in said
    shutil.rmtree("out")
    process, _ = start("rgb --out out --sparse lidar --no-figure", model)
    out, err = process.communicate(timeout=LIMIT)
    assert err == ""
    assert "completing" not in out
