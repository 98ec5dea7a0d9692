# SPDX-License-Identifier: Apache-2.0
"""Archives: manifests, shards, what is killed and done again, frames that are set aside."""

import hashlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepbasis.commands.complete import Complete, archive, shards
from deepbasis.commands.complete.archive import Attempts, Workbench, assign
from deepbasis.commands.complete.inputs import Frame
from deepbasis.commands.complete.manifest import list_frames, read_manifest
from deepbasis.commands.complete.storage import address, fetch, show, to_path
from deepbasis.data.formats import write_image
from deepbasis.model import load
from models import make_model
from waiting import LIMIT, POLL, wait_for

SIZE = (32, 48)
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    make_model(errors="independent").save(path)
    return path


def make_frame(name, seed):
    """Noise before a wall of 3 m, and 100 of its points."""
    draw = np.random.default_rng(seed)
    write_image(Path(f"rgb/{name}.png"), draw.integers(256, size=(*SIZE, 3), dtype=np.uint8))
    pixels = draw.permutation(SIZE[0] * SIZE[1])[:100]
    metres = 3 * np.exp(0.02 * draw.standard_normal(100))
    np.save(f"points/{name}.npy", np.c_[pixels % SIZE[1], pixels // SIZE[1], metres])


@pytest.fixture
def frames(tmp_path, monkeypatch):
    """A folder of five frames, the working folder."""
    monkeypatch.chdir(tmp_path)
    for folder in ("rgb", "points"):
        Path(folder).mkdir()
    for seed, name in enumerate(NAMES):
        make_frame(name, seed)
    return tmp_path


@pytest.fixture
def settings(frames, model):
    return Complete(
        (Path("rgb"),), Path("out"), Path("points"), model=str(model), shard_frames=2, figure=False
    )


@pytest.fixture
def complete(frames, model, command):
    """Run the command; gives exit code, and what was printed to both streams."""

    def run(words="--shard-frames 2", image="rgb", sparse="--sparse points", out="out"):
        words = f"complete {image} --out {out} --model {model} {sparse} {words}"
        return command(*words.split())

    return run


def contents(folder="out"):
    return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


def rows_of(folder="out"):
    files = sorted(Path(folder).glob("*.parquet"))
    rows = [row for file in files for row in shards.read_shard(io.BytesIO(file.read_bytes()))]
    return {row["name"]: row for row in rows}


# Lists of frames


def write_manifest(rows, path="frames.jsonl"):
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


ROWS = [{"image": f"rgb/{name}.png", "sparse": f"points/{name}.npy"} for name in NAMES]


def test_a_manifest_in_either_format_lists_what_the_folders_hold(settings):
    write_manifest(ROWS[::-1])
    pq.write_table(pa.Table.from_pylist(ROWS[::-1]), "frames.parquet")
    listed = list_frames(settings)
    assert [frame.name for frame in listed] == list(NAMES)
    for path in ("frames.jsonl", "frames.parquet"):
        assert read_manifest(Path(path)) == listed


def test_files_are_relative_to_the_manifest_or_anywhere(frames):
    Path("lists").mkdir()
    write_manifest(
        [
            {"image": "../rgb/a.png", "name": "first", "intrinsics": "/camera.txt"},
            {"image": "s3://bucket/rgb/x.png", "ground_truth": "file:///data/x.npy"},
        ],
        "lists/frames.jsonl",
    )
    first, x = read_manifest(Path("lists/frames.jsonl"))
    assert first == Frame("first", Path("lists/../rgb/a.png"), None, Path("/camera.txt"), None)
    assert (x.name, show(x.image)) == ("x", "s3://bucket/rgb/x.png")
    assert x.ground_truth == Path("/data/x.npy")
    assert address(x.ground_truth) is None
    assert address(to_path("gs://one/two")) == "gs://one/two"
    assert address(Path("C:/windows")) is None


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "lists no frame"),
        ([{"sparse": "x.npy"}], r"row 1: it names no image \(column `image`\)"),
        ([ROWS[0], {"image": None}], "row 2: it names no image"),
        ([{"image": "a.png", "lidar": "a.npy"}], "row 1: there is no column 'lidar' in a manifest"),
        ([{"image": 3}], "row 1: image is 3, not a text"),
        (["a.png"], "row 1: it is not an object"),
        ([ROWS[0], ROWS[0]], "row 2: the name 'a' is that of an earlier row"),
        ([{"image": "a.png", "name": "../a"}], "row 1: the name '../a' is not that of a file"),
    ],
)
def test_a_bad_manifest_is_told_in_one_sentence(complete, rows, reason):
    write_manifest(rows)
    with pytest.raises(ValueError, match=reason):
        read_manifest(Path("frames.jsonl"))
    code, out, err = complete(image="frames.jsonl", sparse="")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("deepbasis: frames.jsonl")


def test_files_that_are_no_manifests_are_told(complete):
    Path("frames.jsonl").write_text('{"image": "rgb/a.png"}\n{"image"\n')
    code, _, err = complete(image="frames.jsonl", sparse="")
    assert code == 2
    assert "frames.jsonl, line 2 is not JSON" in err
    Path("frames.parquet").write_text("PAR1 no")
    code, _, err = complete(image="frames.parquet", sparse="")
    assert code == 2
    assert "frames.parquet cannot be read as a Parquet table" in err
    for path in ("nowhere.jsonl", "nowhere.parquet"):
        code, _, err = complete(image=path, sparse="")
        assert (code, err) == (2, f"deepbasis: there is no file {path}; check its name\n")


@pytest.mark.parametrize(
    ("words", "sparse", "reason"),
    [
        ("--shard-frames 0", "", "--shard-frames 0 must be at least 1"),
        ("--workers 2", "", "--workers is for Ray only"),
        ("--half", "", "--half is for shards only"),
        ("--shard-frames 2 --sequence", "", "--sequence is not possible with --ray"),
        ("--shard-frames 2 --poses p.txt", "", "--poses is not possible with --ray"),
        ("--shard-frames 2 --exr", "", "--exr is not possible with"),
        ("--ray local --rerun x.rrd", "", "--rerun is not possible with"),
        ("--ray local --workers 0", "", "--workers 0 must be at least 1"),
        ("", "--sparse points", "--sparse is for images; a manifest names the files"),
    ],
)
def test_settings_that_make_no_sense_are_refused(complete, words, sparse, reason):
    write_manifest(ROWS)
    image = "frames.jsonl" if sparse else "rgb"
    code, out, err = complete(words, image, sparse)
    assert (code, out) == (2, "")
    assert reason in err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("module", "words"), [("ray.data", "--ray local"), ("pyarrow.parquet", "")]
)
def test_a_missing_extra_is_told(complete, monkeypatch, module, words):
    monkeypatch.setitem(sys.modules, module, None)
    code, _, err = complete(f"--shard-frames 2 {words}")
    assert (code, err.count("\n")) == (2, 1)
    assert f'needs {module.split(".")[0]}: pip install "deepbasis[ray]"' in err


# Groups


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_every_frame_is_in_one_group_whatever_order_it_was_found_in(settings, size):
    listed = list_frames(settings)
    tasks = assign(listed, size)
    assert [frame for task in tasks for frame in task.frames] == listed
    assert all(0 < len(task.frames) <= size for task in tasks)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    assert len({task.shard(Path()) for task in tasks}) == len(tasks)
    images = tuple(Path(f"rgb/{name}.png") for name in reversed(NAMES))
    assert assign(list_frames(replace(settings, images=images)), size) == tasks
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_at_most_a_number_of_frames_are_judged_together(monkeypatch):
    monkeypatch.setattr(archive, "MOST_CHECKED", 10)
    frames = [Frame(f"{i:03d}", Path("x"), None, None, None) for i in range(95)]
    chosen = [name for task in assign(frames, 7, checked=True) for name in sorted(task.checked)]
    assert chosen == [f"{i:03d}" for i in range(0, 95, 10)]
    assert not any(task.checked for task in assign(frames, 7))


# Shards


def test_a_shard_holds_what_the_library_answers(complete, model):
    assert complete()[0] == 0
    rows = rows_of()
    assert list(rows) == list(NAMES)
    for name in ("a", "e"):
        row = rows[name]
        answer = load(model).complete(Path(f"rgb/{name}.png"), np.load(f"points/{name}.npy"))
        for kind in ("depth", "std"):
            values = np.frombuffer(row[kind], row["dtype"]).reshape(row["height"], row["width"])
            np.testing.assert_array_equal(values, getattr(answer, kind))
        assert row["error"] is None
        assert row["points"] == json.loads(row["summary"])["points"] == 100
        assert row["image"] == f"rgb/{name}.png"


@pytest.mark.slow
def test_shards_hold_the_same_as_files(complete):
    assert complete("--shard-frames 2 --interval 0.9 --check")[0] == 0
    assert complete("--interval 0.9 --check --no-figure", out="files")[0] == 0
    for name, row in rows_of().items():
        for kind in ("depth", "std", "low90", "high90"):
            values = np.frombuffer(row[kind], "<f4").reshape(SIZE)
            np.testing.assert_array_equal(values, np.load(f"files/{name}-{kind}.npy"))
        one = json.loads(row["summary"])
        other = json.loads(Path(f"files/{name}.json").read_text())
        assert one.items() <= other.items()
        held_out = shards.unpack_check(row["check"]).to_array()
        np.testing.assert_array_equal(held_out, np.load(f"files/{name}-check.npy"))


def test_half_precision_rounds_and_never_overflows(complete):
    assert complete()[0] == complete("--shard-frames 2 --half", out="half")[0] == 0
    full, half = rows_of()["c"], rows_of("half")["c"]
    one, other = np.frombuffer(full["depth"], "<f4"), np.frombuffer(half["depth"], "<f2")
    assert half["dtype"] == "float16"
    np.testing.assert_allclose(other, one, rtol=2.0**-11)
    huge = np.frombuffer(shards._pack(np.array([1e9, 2.0, np.nan]), np.float16), "<f2")
    np.testing.assert_array_equal(huge, np.array([65504, 2.0, np.nan], np.float16))


def test_a_shard_is_compressed_and_read_a_few_frames_at_a_time(complete):
    assert complete("--shard-frames 5")[0] == 0
    (path,) = Path("out").glob("*.parquet")
    found = pq.ParquetFile(path)
    depth = found.schema_arrow.get_field_index("depth")
    assert found.metadata.row_group(0).column(depth).compression == "ZSTD"
    many = [{"name": str(i), "depth": b"x"} for i in range(20)]
    with Path("many.parquet").open("wb") as file:
        shards.write_shard(file, many, ["depth"])
    assert pq.ParquetFile("many.parquet").metadata.num_row_groups == 3
    read = shards.read_shard(io.BytesIO(Path("many.parquet").read_bytes()))
    assert [row["name"] for row in read] == [str(i) for i in range(20)]


# Exactly once


def test_the_same_frames_give_the_same_bytes_in_any_number_of_runs(complete, settings):
    assert complete()[0] == 0
    first, times = contents(), [path.stat().st_mtime_ns for path in Path("out").glob("*.parquet")]
    code, out, _ = complete()
    assert code == 0
    assert "5 of 5 frames were done already" in out
    assert contents() == first
    assert times == [path.stat().st_mtime_ns for path in Path("out").glob("*.parquet")]
    # Another worker, from the last group to the first, one of them twice.
    elsewhere = replace(settings, out=Path("elsewhere"))
    tasks = assign(list_frames(settings), 2)
    bench = Workbench(elsewhere)
    for task in [*tasks[::-1], tasks[1]]:
        bench.complete(task)
    shards_only = {name: content for name, content in first.items() if name != "_archive.json"}
    assert contents("elsewhere") == shards_only


def test_what_was_lost_changed_or_damaged_is_made_again(complete):
    assert complete()[0] == 0
    first = contents()
    one, two, three = sorted(Path("out").glob("*.parquet"))
    one.unlink()
    two.write_bytes(two.read_bytes()[:-100])
    code, out, err = complete()
    assert code == 0
    assert "1 of 5 frames was done already" in out
    assert f"warning: {two} is written again" in err
    assert contents() == first
    make_frame("e", 77)
    code, out, _ = complete()
    assert "4 of 5 frames were done already" in out
    now = contents()
    assert [name for name in first if now[name] != first[name]] == ["_archive.json", three.name]
    code, out, _ = complete("--shard-frames 2 --max-depth 9")
    assert "done already" not in out


def test_a_shard_with_damaged_maps_is_made_again(complete):
    assert complete()[0] == 0
    shard = sorted(Path("out").glob("*.parquet"))[0]
    group = pq.ParquetFile(shard).metadata.row_group(0)
    columns = {group.column(i).path_in_schema.split(".")[0]: i for i in range(group.num_columns)}
    place = group.column(columns["depth"]).data_page_offset
    content = bytearray(shard.read_bytes())
    content[place + 40 : place + 104] = bytes(64)
    shard.write_bytes(content)
    make_frame("a", 77)
    code, out, err = complete()
    assert code == 0
    assert f"warning: {shard} is written again" in err
    assert "3 of 5 frames were done already" in out
    assert len(pq.read_table(shard)) == 2


def test_the_address_of_a_local_folder_is_that_folder(complete, tmp_path):
    assert complete(out=f"file://{tmp_path}/there")[0] == 0
    assert len(list((tmp_path / "there").glob("*.parquet"))) == 3


def test_errors_of_any_file_system_name_the_address(monkeypatch, tmp_path):
    def refuse(*_):
        raise RuntimeError("403, forbidden")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", refuse)
    with pytest.raises(OSError, match=r"memory://a/b\.png cannot be reached: 403, forbidden"):
        fetch(to_path("memory://a/b.png"), tmp_path)


class Killed(BaseException):
    """In place of a signal that ends the process."""


@pytest.mark.parametrize(
    "after", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5)), 5]
)
def test_a_worker_that_ends_anywhere_leaves_whole_shards_only(
    complete, settings, monkeypatch, after
):
    """The group of two frames is killed after this many of its rows and before its file's name."""
    assert complete()[0] == 0
    whole = contents()
    whole.pop("_archive.json")
    elsewhere = replace(settings, out=Path("elsewhere"))
    real, calls = shards.to_row, []

    def dies(*arguments):
        calls.append(arguments)
        if len(calls) > after:
            raise Killed
        return real(*arguments)

    tasks, attempts = assign(list_frames(settings), 2), Attempts()
    monkeypatch.setattr(archive, "to_row", dies)
    bench = Workbench(elsewhere, attempts)
    try:
        for task in tasks:
            bench.complete(task)
    except Killed:
        left = contents("elsewhere") if Path("elsewhere").exists() else {}
        assert left == {name: whole[name] for name in left}
        assert len(left) == after // 2
    monkeypatch.setattr(archive, "to_row", real)
    bench = Workbench(elsewhere, attempts)
    reports = [bench.complete(task) for task in tasks]
    assert contents("elsewhere") == whole
    assert not any(report.failed for report in reports)


def test_shards_of_another_list_are_not_mixed_in(complete):
    assert complete()[0] == 0
    code, _, err = complete("--shard-frames 1")
    assert code == 2
    assert "holds shards of another list of frames (shard-000000-of-000003.parquet)" in err
    make_frame("f", 5)
    make_frame("g", 6)
    assert complete()[0] == 2


def test_no_report_describes_shards_that_are_being_replaced(complete, monkeypatch):
    assert complete()[0] == 0
    report = Path("out/_archive.json")
    assert report.exists()

    def cut_off(*_: object) -> None:
        raise SystemExit(9)

    monkeypatch.setattr(Workbench, "complete", cut_off)
    assert complete("--shard-frames 2 --interval 0.8")[0] == 9
    assert not report.exists()


def test_a_table_that_cannot_be_saved_is_refused_before_the_work(complete):
    code, _, err = complete("--shard-frames 2 --save-calibration nowhere/table.json")
    assert code == 2
    assert "--save-calibration nowhere/table.json cannot be written" in err
    assert not Path("out").exists()


def test_a_folder_that_cannot_be_created_is_told_in_one_sentence(complete):
    code, _, err = complete(out="/proc/out")
    assert (code, err.count("\n")) == (2, 1)
    assert "--out /proc/out cannot be created (No such file or directory); choose another" in err


def test_files_are_those_of_a_run_without_groups(complete):
    write_manifest(ROWS)
    assert complete("--no-figure", image="frames.jsonl", sparse="")[0] == 0
    assert complete("--no-figure", out="plain")[0] == 0
    grouped = contents()
    grouped.pop("_archive.json")
    for name, content in contents("plain").items():
        if name.endswith(".json"):  # the option --sparse is another
            one, other = json.loads(grouped[name]), json.loads(content)
            one.pop("made_from"), other.pop("made_from")
            assert one == other
        else:
            assert grouped[name] == content
    assert grouped.keys() == contents("plain").keys()
    _, out, _ = complete("--no-figure", image="frames.jsonl", sparse="")
    assert "5 of 5 frames were done already" in out


# Elsewhere


@pytest.fixture
def bucket():
    """A store of objects in memory."""
    system = fsspec.filesystem("memory")
    system.pipe({f"/drive/{path}": Path(path).read_bytes() for path in Path().glob("*/*.*")})
    yield system
    system.rm("/drive", recursive=True)


def test_frames_and_shards_may_lie_elsewhere(complete, frames, bucket):
    write_manifest([{k: f"memory://drive/{v}" for k, v in row.items()} for row in ROWS])
    bucket.pipe("/drive/rgb/d.png", b"damaged")
    bucket.rm("/drive/points/b.npy")
    where = "memory://drive/out"
    code, out, err = complete(image="frames.jsonl", sparse="", out=where)
    assert code == 1
    assert "b failed: there is no file memory://drive/points/b.npy; check its name" in err
    assert "d failed: memory://drive/rgb/d.png cannot be read as a picture" in err
    assert f"the report is {where}/_archive.json" in out
    names = [path.rpartition("/")[2] for path in bucket.ls("/drive/out", detail=False)]
    assert sorted(names) == [
        "_archive.json",
        *(f"shard-{i:06d}-of-000003.parquet" for i in range(3)),
    ]
    rows = {}
    for name in sorted(names)[1:]:
        with bucket.open(f"/drive/out/{name}") as file:
            rows |= {row["name"]: row for row in shards.read_shard(file)}
    assert rows["a"]["image"] == "memory://drive/rgb/a.png"
    assert "/tmp" not in json.dumps([rows["a"]["summary"], rows["d"]["error"]])
    before = {name: bucket.cat(f"/drive/out/{name}") for name in names}
    assert complete(image="frames.jsonl", sparse="", out=where)[0] == 1
    assert {name: bucket.cat(f"/drive/out/{name}") for name in names} == before
    for path in ("rgb/d.png", "points/b.npy"):
        bucket.pipe(f"/drive/{path}", Path(path).read_bytes())
    code, out, _ = complete(image="frames.jsonl", sparse="", out=where)
    assert code == 0
    assert "3 of 5 frames were done already" in out
    code, _, err = complete("", image="frames.jsonl", sparse="", out=where)
    assert code == 2
    assert f"--out {where} is not on this machine: pass --shard-frames" in err


def test_an_unknown_address_is_told(complete):
    code, _, err = complete(image="nosuch://bucket/frames.jsonl", sparse="")
    assert code == 2
    assert err.startswith("deepbasis: nosuch://bucket/frames.jsonl cannot be reached: ")
    assert err.count("\n") == 1


# Frames that are set aside


def test_a_poison_frame_is_set_aside_with_its_error_and_tried_again(complete):
    good = Path("rgb/b.png").read_bytes()
    Path("rgb/b.png").write_bytes(good[:100])
    Path("points/d.npy").unlink()
    code, out, err = complete()
    assert code == 1
    assert "3 of 5 frames completed" in out
    assert "deepbasis: b failed: rgb/b.png cannot be read as a picture" in err
    assert "deepbasis: d failed: --sparse points holds no file named 'd'" in err
    assert err.splitlines()[-1] == (
        "deepbasis: 2 of 5 frames failed; the same command tries them again"
    )
    report = json.loads(Path("out/_archive.json").read_text())
    assert [one["name"] for one in report["failed"]] == ["b", "d"]
    assert (report["frames"], report["completed"]) == (5, 3)
    row = rows_of()["b"]
    assert row["error"] == report["failed"][0]["error"]
    assert row["depth"] is row["summary"] is None
    first = contents()
    code, out, _ = complete()
    assert (code, contents()) == (1, first)
    assert "3 of 5 frames were done already" in out
    Path("rgb/b.png").write_bytes(good)
    make_frame("d", 3)
    code, out, err = complete()
    assert (code, err) == (0, "")
    assert complete(out="fresh")[0] == 0
    assert contents() == contents("fresh")


def test_many_failures_are_counted_and_only_some_are_printed(complete, monkeypatch):
    monkeypatch.setattr(archive, "LISTED", 2)
    for name in "bcde":
        Path(f"rgb/{name}.png").write_bytes(b"damaged")
    code, _, err = complete()
    assert code == 1
    assert len(err.splitlines()) == 3
    assert "4 of 5 frames failed; 2 more are in _archive.json" in err


def test_an_option_that_all_frames_lack_ends_the_run_at_once(complete):
    Path("clouds").mkdir()
    for name in NAMES:
        np.savetxt(f"clouds/{name}.xyz", np.ones((3, 3)))
    code, out, err = complete(sparse="--sparse clouds")
    assert (code, out) == (2, "")
    assert "is a point cloud, so the camera must be known: pass --intrinsics" in err


def test_a_frame_that_ends_its_workers_is_set_aside_and_its_neighbours_are_not(
    settings, monkeypatch
):
    """As if reading frame d ended the process: whoever comes next works on one frame at a time."""
    settings = replace(settings, shard_frames=5)
    (task,) = assign(list_frames(settings), 5)
    attempts, real, deaths = Attempts(), archive.complete_all, 0

    def dies(left, *arguments):
        if "d" in [one.frame.name for one in left]:
            raise Killed
        return real(left, *arguments)

    monkeypatch.setattr(archive, "complete_all", dies)
    while True:
        try:
            report = Workbench(settings, attempts).complete(task)
            break
        except Killed:
            deaths += 1
            assert not list(Path("out").glob("*.parquet"))
    assert deaths == 1 + archive.MOST_LOST
    assert report.failed == {"d": "2 workers died while completing it (out of memory?)"}
    assert [name for name, row in rows_of().items() if row["error"] is None] == list("abce")
    monkeypatch.setattr(archive, "complete_all", real)
    assert not Workbench(settings).complete(task).failed


# The report


@pytest.mark.slow
def test_the_report_of_all_groups_is_the_mean_of_their_frames(complete):
    Path("truth").mkdir()
    for name in NAMES:
        np.save(f"truth/{name}.npy", np.full(SIZE, 3.0, np.float32))
    code, out, _ = complete("--shard-frames 2 --check --ground-truth truth")
    assert code == 0
    summaries = [json.loads(row["summary"]) for row in rows_of().values()]
    report = json.loads(Path("out/_archive.json").read_text())
    mean = np.mean([one["ground_truth"]["mae"] for one in summaries])
    assert report["ground_truth"] == pytest.approx(
        {
            "frames": 5,
            "mae": mean,
            "coverage90": np.mean([one["ground_truth"]["coverage90"] for one in summaries]),
        }
    )
    assert report["points"] == 500
    assert report["mean_median_std"] == pytest.approx(np.mean([s["median_std"] for s in summaries]))
    verdicts = [one["check"]["verdict"] for one in summaries]
    assert report["check"]["verdicts"] == {v: verdicts.count(v) for v in sorted(set(verdicts))}
    assert f"MAE {mean:.3f} m" in out
    assert "check: " in out
    first = contents()
    assert complete("--shard-frames 2 --check --ground-truth truth")[0] == 0
    assert contents() == first


def test_progress_is_told_with_the_time_left(settings, monkeypatch, capsys):
    clock = iter([0.0, 60.0, 61.0, 7320.0, 9000.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    reports = [
        archive.GroupReport(0, 10, failed={"x": "damaged"}),
        archive.GroupReport(1, 10),
        archive.GroupReport(2, 10),
    ]
    list(archive.follow(reports, 100, settings))
    assert capsys.readouterr().out.splitlines() == [
        "10 of 100 frames, 1 failed; 9 min left",
        "30 of 100 frames, 1 failed; 4 h 44 min left",
    ]


def test_the_frames_of_a_recording_are_listed_by_each_worker(frames, model, settings):
    """A folder of TUM RGB-D, whose frames are not sent with the group."""
    from deepbasis.data.formats import write_depth_png

    Path("tum/rgb").mkdir(parents=True)
    Path("tum/depth").mkdir()
    lines = {"rgb": [], "depth": []}
    for number, name in enumerate(NAMES):
        Path(f"tum/rgb/{number}.000000.png").write_bytes(Path(f"rgb/{name}.png").read_bytes())
        write_depth_png(Path(f"tum/depth/{number}.000000.png"), np.full(SIZE, 3.0), 5000)
        for kind in lines:
            lines[kind].append(f"{number}.000000 {kind}/{number}.000000.png")
    for kind, found in lines.items():
        Path(f"tum/{kind}.txt").write_text("\n".join(found))
    settings = replace(settings, images=(Path("tum"),), sparse=None)
    tasks = assign(list_frames(settings), 2)
    assert all(task.recorded and task.frames[0].recording is None for task in tasks)
    reports = [Workbench(settings).complete(pickle.loads(pickle.dumps(task))) for task in tasks]
    assert not any(report.failed for report in reports)
    assert len(rows_of()) == 5


# Ray itself


def digest_of(folder):
    files = sorted(Path(folder).glob("shard-*.parquet"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def workers_of(pid):
    """Processes below one that complete groups, by what Ray calls them."""
    found, parents = [], {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text()
            title = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:  # it has ended
            continue
        parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1]), title
    for one in parents:
        above = one
        while above in parents and above != pid:
            above = parents[above][0]
        if above == pid and "MapWorker" in parents[one][1]:
            found.append(one)
    return found


@pytest.mark.slow
def test_killing_a_worker_and_then_the_driver_changes_no_byte(complete, model, frames):
    for seed in range(5, 24):
        make_frame(f"z{seed:02d}", seed)
    Path("rgb/z10.png").write_bytes(b"damaged")
    assert complete(out="whole")[0] == 1
    whole = digest_of("whole")
    assert len(whole) == 12
    command = [
        sys.executable, "-m", "deepbasis.cli", "complete", "rgb", "--sparse", "points", "--model",
        str(model), "--shard-frames", "2", "--ray", "local", "--workers", "2", "--out", "out",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    Path("out").mkdir()
    with Path("log").open("w") as log:
        first = subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment)
        try:
            wait_for(lambda: workers_of(first.pid) and len(digest_of("out")) >= 1, first)
            victim = workers_of(first.pid)[0]
            os.kill(victim, signal.SIGKILL)
            before = len(digest_of("out"))
            wait_for(lambda: len(digest_of("out")) >= before + 3, first)
            below = workers_of(first.pid)
        finally:
            first.kill()
            first.wait()
    end = time.monotonic() + LIMIT  # Ray ends the workers of a driver that is gone
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < end
        time.sleep(POLL)
    killed = digest_of("out")
    assert killed == {name: whole[name] for name in killed}
    assert 0 < len(killed) < len(whole)
    second = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert second.returncode == 1, second.stderr
    assert "frames were done already" in second.stdout
    assert "deepbasis: z10 failed: rgb/z10.png cannot be read as a picture" in second.stderr
    assert "Traceback" not in second.stderr
    assert digest_of("out") == whole
    assert contents("out")["_archive.json"] == contents("whole")["_archive.json"]


@pytest.mark.slow
def test_ray_that_cannot_be_joined_is_told(model, frames):
    command = [
        sys.executable, "-m", "deepbasis.cli", "complete", "rgb", "--model", str(model),
        "--ray", "127.0.0.1:1", "--out", "out",
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert "deepbasis: --ray 127.0.0.1:1: cannot connect to Ray" in run.stderr
    assert "Traceback" not in run.stderr
