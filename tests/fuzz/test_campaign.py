# SPDX-License-Identifier: Apache-2.0
"""The campaign counts what it sees: it neither rots nor misses a crash, a hang or a defect."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "campaign.py"


@pytest.fixture
def campaign():
    spec = importlib.util.spec_from_file_location("campaign", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["campaign"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def run(out, *words):
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out), "--seed", "1", *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_tiny_campaign_writes_its_page(tmp_path):
    done = run(tmp_path / "page", "--scale", "0.001", "--parts", "fuzz", "frames")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "page.json").read_text())
    found = report["parts"]["fuzz"]
    assert found["cases"] == 100
    assert found["answers"] + found["refusals"] == 100
    assert found["answers"] > 5
    assert report["parts"]["frames"]["frames"] == 20
    page = (tmp_path / "page.md").read_text()
    assert "| **all** | 100 |" in page
    assert "--scale 0.001 --seed 1 --parts fuzz frames --keep" in page
    assert "None were found." in page


@pytest.mark.slow
def test_a_small_campaign_kills_and_compares(tmp_path):
    done = run(tmp_path / "page", "--scale", "0.05", "--parts", "kill", "threads", "forks")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "page.json").read_text())
    assert {"complete", "render", "train"} <= report["parts"]["kill"].keys()
    assert report["parts"]["kill"]["complete"]["killed"] == 1


WORKER = """
import json, os, sys, time
seed, first, step, last = map(int, sys.argv[1:])
def say(**line):
    print(json.dumps({"kind": "a kind"} | line), flush=True)
for number in range(first, last, step):
    say(number=number)
    if number == 3:
        os.kill(os.getpid(), 11)
    if number == 5:
        time.sleep(3600)
    ended = {7: "else", 8: "refusal"}.get(number, "answer")
    slow, large = (99 if number == 10 else 0), (999 if number == 11 else 0)
    say(number=number, ended=ended, what="a defect", seconds=slow, memory=large, peak=1)
"""


@pytest.mark.slow
def test_crashes_hangs_and_defects_are_counted(campaign, tmp_path, monkeypatch):
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(campaign, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(campaign, "MOST_WAITED", 5.0)
    monkeypatch.setattr(campaign, "CASES", 12)
    found = campaign.fuzz(campaign.Plan(1.0, 1, 1, 10.0))
    assert found["cases"] == 12
    assert found["anything else"] == 5
    assert found["refusals"] == 1
    said = "\n".join(sorted(found["defects"]))
    for words in ("case 3 ended its process with code -11", "case 5 hung", "a defect",
                  "case 10 took 99 s", "case 11 took 999 MB"):  # fmt: skip
        assert words in said


def test_half_written_and_other_files_are_noticed(campaign, tmp_path):
    command = campaign.Command("complete", [], changes=("run.json",))
    (tmp_path / "a.npy").write_bytes(b"whole")
    (tmp_path / "run.json").write_bytes(b"10:15")
    wanted = campaign.contents(tmp_path, command)
    assert wanted.keys() == {"a.npy"}
    assert campaign.compare(tmp_path, wanted, command) == []
    (tmp_path / ".b.npy.0123abcd.part").write_bytes(b"of a killed run")
    assert campaign.compare(tmp_path, wanted, command) == []
    assert campaign.contents(tmp_path, command).keys() != wanted.keys()
    (tmp_path / "a.npy").write_bytes(b"who")
    assert campaign.compare(tmp_path, wanted, command) == [
        "a.npy is not that of an uninterrupted run"
    ]


def test_a_defect_of_any_part_is_on_the_page_and_in_the_exit_code(campaign, tmp_path, monkeypatch):
    broken = {
        "scale": 1.0,
        "seed": 1,
        "frames": 3,
        "threads": 4,
        "that differ": 1,
        "defects": ["1 of 3 frames differ"],
    }
    monkeypatch.setattr(campaign, "run_part", lambda name, arguments: broken)
    monkeypatch.setattr(sys, "argv", ["campaign.py", "--out", str(tmp_path / "p"), "--parts",
                                      "threads"])  # fmt: skip
    assert campaign.main() == 1
    assert "- threads: 1 of 3 frames differ" in (tmp_path / "p.md").read_text()
