# SPDX-License-Identifier: Apache-2.0
"""The examples print what their page shows. `python tests/test_examples.py` writes it anew."""

import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"
PAGE = EXAMPLES / "README.md"
SESSION = re.compile(r"(?ms)(?<=^\$ python examples/)(\w+)(\.py\n)(.*?)(?=^```$)")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def shown() -> dict[str, str]:
    """Output of each script on the page."""
    return {name: output for name, _, output in SESSION.findall(PAGE.read_text())}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, marks=() if path.stem == "first_steps" else pytest.mark.slow)
        for path in SCRIPTS
    ],
    ids=lambda path: path.stem,
)
def test_every_example_prints_what_is_shown_and_writes_a_picture(
    script, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path / "picture.png")])
    with matplotlib.rc_context({"backend": "Agg", "figure.max_open_warning": 0}):
        runpy.run_path(str(script), run_name="__main__")
        matplotlib.pyplot.close("all")
    printed = capsys.readouterr().out
    assert printed.count("\n") >= 2
    expected = shown()[script.stem]
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", expected)
    # Rounding differs between machines, and a trained network even more.
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (printed, expected)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.05, abs=0.03), (printed, expected)
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.size[0] > 500


def test_the_page_shows_the_output_of_all_examples():
    assert {name for name, output in shown().items() if output.strip()} == {
        path.stem for path in SCRIPTS
    }


def run(script: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(EXAMPLES / f"{script}.py"), f"{folder}/picture.png"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(SESSION.sub(lambda found: f"{found[1]}{found[2]}{run(found[1])}", page))
