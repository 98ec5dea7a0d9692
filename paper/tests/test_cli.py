# SPDX-License-Identifier: Apache-2.0
"""The command line: light help, presets, one sentence for a mistake."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from deepbasis_paper import commands
from deepbasis_paper.cli import COMMANDS, main
from deepbasis_paper.config import PRESETS
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import PaperArchitecture

# Prints the help of every command and of a preset, then whether anything heavy was imported.
HELP = """
import sys
from deepbasis_paper.cli import COMMANDS, main
for words in [[], *([name] for name in COMMANDS), ["train", "nyu-5"]]:
    sys.argv = ["deepbasis-paper", *words, "--help"]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, words
heavy = {"torch", "matplotlib", "scipy", "lightning_fabric"} & set(sys.modules)
print("heavy:", sorted(heavy))
"""


def call(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["deepbasis-paper", *words])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_help_of_every_command_imports_nothing_heavy():
    run = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("heavy: []\n")
    for name in (*COMMANDS, *PRESETS):
        assert name in run.stdout


def test_a_preset_is_changed_by_options(monkeypatch):
    seen = []
    monkeypatch.setattr(commands, "train", seen.append)
    words = ["--root", "nyu", "--method", "snap+log", "--size", "64", "96", "--cache"]
    assert call(monkeypatch, "train", "nyu-500", *words) == 0
    (config,) = seen
    changed = {"method": "snap+log", "size": (64, 96), "cache": True, "root": config.root}
    assert config == replace(PRESETS["nyu-500"][1], **changed)
    assert str(config.root) == "nyu"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "custom", "--epochs", "2", "--method", "snap"], "--epochs 2 is too few: snap"),
        (["train", "nyu-5"], "--data nyu needs its folder: pass --root"),
        (["evaluate"], "nothing to evaluate; name a model"),
        (["evaluate", "nowhere.safetensors"], "there is no file nowhere.safetensors"),
        (["reproduce", "mid", "--out", "nowhere"], "--out nowhere: there is no such folder"),
        (["reproduce", "mid", "--seeds", "0"], "--seeds 0 must be at least 1"),
        (["reproduce", "mid", "--val-selection"], "--val-selection is for --data kitti, not rooms"),
        (["reproduce", "published"], "this table is about KITTI: choose --data kitti, not rooms"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert said.startswith("deepbasis-paper: ")
    assert message in said
    assert said.count("\n") == 1


def test_an_unknown_preset_or_target_is_refused(monkeypatch, capsys):
    for words in (
        ["train", "nyu-50"],
        ["reproduce", "middle"],
        ["train", "tiny", "--metod", "log"],
    ):
        assert call(monkeypatch, *words) == 2
        assert words[-1] in capsys.readouterr().err or words[1] == "tiny"


def test_models_of_the_paper_are_evaluated(monkeypatch, tmp_path, capsys):
    path = tmp_path / "ncnn.safetensors"
    Ensemble(PaperArchitecture(method="ncnn")).save(path)
    size = ["--frames", "2", "--size", "32", "48", "--points", "50", "--workers", "0"]
    words = [str(path), "--baselines", "linear", *size, "--out", str(tmp_path / "scores")]
    assert call(monkeypatch, "evaluate", *words) == 0
    rows = json.loads((tmp_path / "scores.json").read_text())
    assert [row["method"] for row in rows["rows"]] == ["ncnn", "linear"]
    assert rows["command"].startswith("deepbasis-paper evaluate ")


def test_methods_are_listed(monkeypatch, capsys):
    assert call(monkeypatch, "methods") == 0
    assert "enet-bdbf" in capsys.readouterr().out
