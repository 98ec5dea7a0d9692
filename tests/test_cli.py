# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it."""

import re
import subprocess
import sys

import pytest
from matplotlib import image

import deepbasis
from deepbasis.cli import COMMANDS, main
from deepbasis.model import load
from deepbasis.pretrained import PRETRAINED


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["deepbasis", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def table(said: str) -> list[list[float]]:
    """Points, MAE, RMSE and coverage in per cent that the demo printed."""
    rows = [line.split() for line in said.splitlines()[2:6]]
    return [[float(row[i].strip("%")) for i in (0, 1, 3, 5)] for row in rows]


def test_demo_prints_error_and_coverage_and_writes_a_picture(monkeypatch, capsys, tmp_path):
    out = tmp_path / "picture.png"
    assert run(monkeypatch, "demo", "--out", str(out)) == 0
    rows = table(capsys.readouterr().out)
    assert [row[0] for row in rows] == [500, 50, 5, 0]
    errors = [row[1] for row in rows]
    assert errors == sorted(errors)  # points help
    assert errors[0] < 0.1
    assert all(mae < rmse for _, mae, rmse, _ in rows)
    assert all(70 < coverage <= 100 for *_, coverage in rows)
    picture = image.imread(out)
    assert picture.shape[1] > 800
    assert picture.std() > 0.05
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_same_seed_same_numbers_other_seed_other_numbers(monkeypatch, capsys, tmp_path):
    said = []
    for seed in ("3", "3", "4"):
        run(monkeypatch, "demo", "--out", str(tmp_path / "x.png"), "--seed", seed)
        said.append(table(capsys.readouterr().out))
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--out", "nowhere/x.png"], "there is no folder nowhere; create it"),
        (["demo", "--out", "x.txt"], "does not end in .png, .pdf or .svg"),
        (
            ["render", "rooms", "--out", "x", "--count", "0"],
            "--count 0 and --workers 1 must be at least 1",
        ),
        (
            ["render", "roads", "--out", "x", "--variant", "snow"],
            "roads has no variant 'snow'; it has clone",
        ),
        (["train", "--data", "nyu"], "--data nyu needs its folder: pass --root"),
        (
            ["train", "--frames", "20", "--val-frames", "20"],
            "--val-frames 20 must be from 0 to 19, so that a frame is left to learn from",
        ),
        (["train", "--frames", "0"], "--frames 0 must be at least 1"),
        (
            ["train", "--frames", "6", "--val-frames", "3", "--accelerator", "cpu"],
            "3 frames are fewer than a step takes: --batch 4 x --accumulate 1 x 1 processes",
        ),
        (["train", "--resume"], "--resume: run holds no checkpoint to resume from"),
        (["train", "--downscale", "3"], "--downscale 3 is not one of 1, 2, 4"),
        (["train", "--jitter", "1.5"], "--jitter 1.5 must be between 0 and 1"),
        (["train", "--fit-points", "40"], "cannot determine 63 weights in training"),
        (
            ["render", "rooms", "--out", "x", "--size", "8", "8"],
            "too small; render at least 16 x 16",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    monkeypatch, capsys, tmp_path, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["demo", "--colour"], ["demonstrate"], []])
def test_unknown_flags_and_commands_exit_with_2(monkeypatch, capsys, arguments):
    assert run(monkeypatch, *arguments) == 2


@pytest.mark.parametrize(
    ("command", "shown"),
    [("adapt", "MODEL"), ("evaluate", "MODEL ..."), ("models", "--size HEIGHT WIDTH")],
)
def test_help_names_values_by_what_they_are(monkeypatch, capsys, command, shown):
    assert run(monkeypatch, command, "--help") == 0
    usage = capsys.readouterr().out.splitlines()[0]
    assert usage.endswith((shown, f"[{shown}]"))


def test_a_warning_says_that_it_is_one():
    program = (
        "import sys, warnings; from deepbasis import cli\n"
        "cli.COMMANDS['demo'].run = lambda self: warnings.warn('the bases are collinear')\n"
        "sys.argv = ['deepbasis', 'demo']; cli.main()"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stderr == "deepbasis: warning: the bases are collinear\n"
    assert said.returncode == 0


def test_a_workers_error_is_one_sentence_too(monkeypatch, capsys, tmp_path):
    """Data loaders wrap what their workers say in a traceback."""
    for folder in ("rgb", "depth"):
        (tmp_path / folder).mkdir()
        for name in "abcdefgh":
            suffix = ".jpg" if folder == "rgb" else ".npy"
            (tmp_path / folder / f"{name}{suffix}").write_bytes(b"no picture")
    words = ["--data", "folder", "--root", str(tmp_path), "--val-frames", "2", "--cache"]
    out = ["--out", str(tmp_path / "run"), "--accelerator", "cpu"]
    assert run(monkeypatch, "train", *words, *out) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    assert "a.npy cannot be read" in said
    assert not (tmp_path / "run").exists()


def test_models_shows_parameters_and_operations(monkeypatch, capsys):
    assert run(monkeypatch, "models", "--size", "64", "96") == 0
    said = capsys.readouterr().out
    assert "mobilenet_v2 " in said
    assert "resnet34 " in said
    assert "efficientnet_lite0 " in said
    assert said.count(" M ") == said.count(" G\n") == 3
    indoor = load("indoor")
    parameters = sum(p.numel() for p in indoor.network.bases.parameters())
    assert re.search(rf"{indoor.architecture.encoder} +{parameters / 1e6:.2f} M ", said)


def test_the_version_is_printed(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"deepbasis {deepbasis.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain(monkeypatch, capsys, command):
    """No type names of Python, no empty or meaningless defaults, no double negations."""
    assert run(monkeypatch, command, "--help") == 0
    said = capsys.readouterr().out
    for odd in ("None", "(default: )", "--no-no", "default: False", "default: True"):
        assert odd not in said


def test_render_writes_a_folder_and_resumes(monkeypatch, capsys, tmp_path):
    out = tmp_path / "rooms"
    for count in ("1", "2"):
        arguments = ["--out", str(out), "--count", count, "--size", "32", "48"]
        assert run(monkeypatch, "render", "rooms", *arguments) == 0
        assert f"{count} frames of rooms" in capsys.readouterr().out
    assert sorted(p.name for p in (out / "rgb").iterdir()) == ["000000.jpg", "000001.jpg"]
    assert run(monkeypatch, "render", "roads", "--out", str(out)) == 2
    assert "choose another folder" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_leaves_nothing_behind(monkeypatch, capsys, tmp_path):
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert run(monkeypatch, "demo", "--out", str(tmp_path / "x.png")) == 2
    assert "no space left" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_pretrained_models_come_first_and_agree_with_their_cards(monkeypatch, capsys):
    assert run(monkeypatch, "models", "--size", "32", "32") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [one.name for one in PRETRAINED] == [line.split()[0] for line in lines[1:4]]
    for one, line in zip(PRETRAINED, lines[1:4], strict=True):
        card = " ".join(one.file.with_suffix(".md").read_text().split())
        megabytes = one.file.stat().st_size / 1e6
        for cell in (one.purpose, one.data, f"{megabytes:.0f} MB", one.mae, one.terms):
            assert cell in line
        row = rf"\| 500 \| `{one.name}`(, correlated)? \| {one.mae.split()[0]} \|"
        assert re.search(row, card), one
        trained = re.search(r"\*\*Trained on\*\*(.*?)\*\*Licence\.\*\*(.*?)\*\*Train", card)
        for part in one.data.replace("scenes", "r").split(" and "):
            assert re.search(part, trained[1]), one
        words = {"research only": "researchers", "non-commercial": "excludes commercial use"}
        assert words.get(one.terms, one.terms) in trained[2], one
        if one.name != "open":
            assert one.purpose.split(", ")[1] in card, one


def test_output_that_nobody_reads_ends_quietly():
    """As in `deepbasis models | head -1`."""
    words = [sys.executable, "-m", "deepbasis.cli", "models"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 141
