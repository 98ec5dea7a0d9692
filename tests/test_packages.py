# SPDX-License-Identifier: Apache-2.0
"""What is published: the files of the packages, their versions, models that are not installed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import deepbasis
import deepbasis_models
from deepbasis import pretrained

ROOT = Path(__file__).parent.parent
MISSING = "'indoor' is not installed: pip install deepbasis-models (research only)"


def files(builder, package):
    """The files that would be packed, as they lie in the package."""
    packed = builder(str(ROOT / package)).recurse_included_files()
    return {file.distribution_path for file in packed}


def kinds(names):
    """Folder and suffix of files that are not code."""
    paths = {Path(name) for name in names if not name.endswith(".py")}
    return {(str(path.parent), path.suffix) for path in paths}


def test_the_wheel_of_the_library_holds_the_open_model_and_no_other():
    packed = files(WheelBuilder, "")
    samples = {
        (f"deepbasis/samples/{world}{folder}", suffix)
        for world in ("roads", "rooms")
        for folder, suffix in (
            ("", ".txt"), ("/rgb", ".jpg"), ("/depth", ".png"), ("/intrinsics", ".txt"),
        )
    }  # fmt: skip
    static = {("deepbasis/page/static", suffix) for suffix in (".js", ".css", ".html", ".svg")}
    weights = {("deepbasis/weights", suffix) for suffix in (".safetensors", ".md")}
    assert kinds(packed - {"deepbasis/py.typed"}) == samples | static | weights
    assert "deepbasis/py.typed" in packed
    assert {Path(name).stem for name in packed if "/weights/" in name} == {"open"}
    code = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in packed if name.endswith(".py")} == code


def test_the_wheel_of_the_models_holds_weights_and_cards():
    cards = {f"{name}.{end}" for name in ("indoor", "outdoor") for end in ("md", "safetensors")}
    expected = {f"deepbasis_models/{name}" for name in ("__init__.py", *cards)}
    assert files(WheelBuilder, "models") == expected


def test_the_source_of_the_library_holds_no_model_of_restricted_use():
    packed = files(SdistBuilder, "")
    assert {Path(name).name for name in packed if name.endswith(".safetensors")} == {
        "open.safetensors"
    }
    assert all(name.startswith(("src/deepbasis/", "C")) for name in packed)


def test_all_packages_have_one_version():
    """And the changelog, the citation and the requirements know it."""
    version = deepbasis.__version__
    assert deepbasis_models.__version__ == version
    settings = {
        name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        for name in ("models", "paper")
    }
    assert settings["paper"]["version"] == version
    for project in settings.values():
        (needed,) = (one for one in project["dependencies"] if one.startswith("deepbasis"))
        assert needed.endswith(f">={version.rpartition('.')[0]}")
    newest = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_terms_name_every_model_that_has_them():
    terms = (ROOT / "models" / "LICENSE").read_text()
    others = [one for one in pretrained.PRETRAINED if one.file.parent != pretrained.WEIGHTS]
    assert [one.name for one in others] == ["indoor", "outdoor"]
    for one in others:
        assert f"\n{one.name}.safetensors\n    Trained on" in terms
        assert all(part in terms for part in one.data.split(" and "))


@pytest.fixture
def run(monkeypatch, command, tmp_path):
    """A command, where deepbasis-models is not installed: exit code, output, errors."""
    monkeypatch.setitem(sys.modules, "deepbasis_models", None)
    monkeypatch.chdir(tmp_path)
    return command


@pytest.fixture
def photo():
    """An image, and a file with points of it."""
    Path("points.csv").write_text("80 60 2.5\n160 120 3.0\n240 200 1.5\n")
    return pretrained.WEIGHTS.parent / "samples/rooms/rgb/000000.jpg", "--sparse", "points.csv"


def test_a_model_that_is_not_installed_says_what_to_install(run, photo):
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"the model {MISSING}")):
        deepbasis.load("indoor")
    for words in (
        ("complete", *photo, "--out", "out", "--model", "indoor"),
        ("export", "indoor", "--out", "model.onnx"),
        ("evaluate", "indoor", "--data", "rooms", "--frames", "1", "--points", "5"),
    ):
        assert run(*words) == (2, "", f"deepbasis: the model {MISSING}\n")
    with pytest.raises(ModuleNotFoundError, match=r"'outdoor' .* \(non-commercial\)"):
        deepbasis.load("outdoor")
    assert deepbasis.load("open")


def test_models_are_listed_whether_installed_or_not(run):
    assert pretrained.installed() == ("open",)
    code, said, _ = run("models", "--size", "32", "32")
    lines = said.splitlines()
    assert code == 0
    assert ["not installed" in line for line in lines[1:4]] == [True, True, False]
    assert lines[4] == "to install the others: pip install deepbasis-models"


def test_the_default_is_open_where_indoor_is_missing(run, photo):
    with pytest.warns(UserWarning, match=re.escape(f"'open' is used, since {MISSING}")) as told:
        code, said, _ = run("complete", *photo, "--out", "out", "--no-figure")
    assert (code, len(told)) == (0, 1)
    assert "depth, std and summaries are in out" in said
    named = run("complete", *photo, "--out", "out", "--no-figure", "--model", "open")
    assert named == (0, "1 of 1 frame is done already\n", "")  # and no warning


@pytest.mark.slow
def test_the_demo_works_without_indoor(run):
    with pytest.warns(UserWarning, match=re.escape(MISSING)):
        code, said, _ = run("demo")
    assert code == 0
    assert "completed by the model 'open'" in said
    assert Path("demo.png").stat().st_size > 10_000


@pytest.mark.parametrize("program", ["import deepbasis", "from deepbasis import pretrained"])
def test_importing_the_library_imports_nothing_heavy(program):
    """What is used is imported when it is used."""
    check = f"import sys; before = set(sys.modules); {program}; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "scipy", "matplotlib", "PIL", "tyro", "rich"}
    assert not heavy & {name.partition(".")[0] for name in run.stdout.split()}
