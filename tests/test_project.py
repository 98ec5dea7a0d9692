# SPDX-License-Identifier: Apache-2.0
"""What the project as a whole promises: layers, names, a light command line, true documents."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deepbasis
from deepbasis import fit, latent, metrics, nets

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "deepbasis"

# Each may import from those before it, and from no other.
LAYERS = [
    "shapes", "fit", "latent", "sparse", "scaffold", "metrics", "nets", "pyramid",
    "measurements", "prediction", "counts", "layer", "frozen", "completion", "data",
    "methods", "classical", "networks", "model", "plots", "train", "adapt", "complete", "evaluate",
    "submit", "demo", "reproduce", "cli",
]  # fmt: skip
FIT_LAYERS = [
    "checks", "prior", "linear", "robust", "evidence", "kernel", "neighbours", "local", "outliers",
    "local_learn", "calibration", "adapt",
]  # fmt: skip
DATA_LAYERS = [
    "sample", "files", "formats", "clouds", "folder", "nyu", "vkitti2", "kitti", "submission",
    "points", "worlds", "samples", "sources", "training",
]  # fmt: skip
COMPLETE_LAYERS = ["config", "inputs", "check", "outputs", "run"]
METRICS_LAYERS = [
    "checks", "error", "uncertainty", "sparsification", "pooled", "image", "tally",
    "bootstrap",
]  # fmt: skip
TRAIN_LAYERS = [
    "config", "schedule", "job", "loss", "checkpoint", "measure", "record", "loop", "learn",
    "finish", "report", "run",
]  # fmt: skip
REPRODUCE_LAYERS = [
    "config", "noise_term", "gallery", "paper", "claims", "plan", "cells", "pages", "figures",
    "tables", "sparsity", "curves", "nees", "bounds", "qualitative", "prior", "runtime", "shift",
    "variances", "neighbours", "showcase", "enet", "run",
]  # fmt: skip


def imported_siblings(path: Path, package: str) -> set[str]:
    """Names directly below `package` that the files at `path` import, anywhere in them."""
    found = set()
    for file in (
        [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == package:
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
                found.add((node.module or "").removeprefix(f"{package}.").split(".")[0])
    return found


@pytest.mark.parametrize(
    ("folder", "layers"),
    [
        (SRC, LAYERS),
        (SRC / "fit", FIT_LAYERS),
        (SRC / "data", DATA_LAYERS),
        (SRC / "metrics", METRICS_LAYERS),
        (SRC / "train", TRAIN_LAYERS),
        (SRC / "reproduce", REPRODUCE_LAYERS),
        (SRC / "complete", COMPLETE_LAYERS),
    ],
    ids=["all", "fit", "data", "metrics", "train", "reproduce", "complete"],
)
def test_imports_only_point_down(folder, layers):
    package = ".".join(folder.relative_to(ROOT / "src").parts)
    rooms = {p.stem for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(layers)
    for rank, name in enumerate(layers):
        used = imported_siblings(folder / name, package) - {name, "__version__"}
        # A type's name may point up where only the type checker looks.
        allowed = {*layers[:rank], *({"linear"} if name == "prior" else ())}
        assert used <= allowed, f"{name} imports upward: {used - allowed}"


def test_public_names_are_guarded():
    """Change this list only together with CHANGELOG.md: users build on these names."""
    assert sorted(deepbasis.__all__) == [
        "BasisFit", "FrozenBases", "data", "fit", "latent", "load", "metrics", "nets", "scaffold",
        "sparse",
    ]  # fmt: skip
    assert sorted(fit.__all__) == [
        "Adapted", "Frame", "Gamma", "Hyperprior", "JitterWarning", "Kernel", "Posterior", "Prior",
        "Strength", "WeightSample", "adapt_prior", "evidence", "fit_gamma", "laplace_factor",
        "learn_kernel", "local", "log_likelihood", "match_nees", "ml", "nees", "posterior",
        "search_kernel", "shrunk", "two_term",
    ]  # fmt: skip
    assert sorted(metrics.__all__) == [
        "CONVENTIONS", "Calibration", "Laplace", "Shape", "Sparsification", "StudentT", "Tally",
        "auce", "ause", "calibration_curve", "confidence", "coverage", "delta", "imae", "irmse",
        "mae", "nees", "nll", "paired", "rel", "rmse", "sharpness", "sparsification_curve",
    ]  # fmt: skip
    assert sorted(nets.__all__) == [
        "BasisNet", "ConvHead", "MobileNetV2", "ResNet34", "load_encoder_weights",
    ]  # fmt: skip
    for module in (deepbasis, fit, metrics, nets):
        assert set(module.__all__) <= set(dir(module))
        assert all(getattr(module, name).__doc__ for name in module.__all__)
    public = {name for name in vars(latent) if name.islower() and not name.startswith("_")}
    assert {"to_latent", "to_depth", "interval", "std", "measured", "learn_tails"} <= public
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = deepbasis.nothing


def test_no_file_or_function_is_long_without_a_reason():
    for file in SRC.rglob("*.py"):
        text = file.read_text()
        assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n"), file
        assert text.count("\n") <= 300, file
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
                assert lines <= 40, f"{file}:{node.lineno} {node.name} has {lines} lines"


@pytest.mark.parametrize(
    "command",
    [
        "",
        "demo",
        "complete",
        "reproduce",
        "render",
        "models",
        "train",
        "adapt",
        "evaluate",
        "submit",
    ],
)
def test_help_imports_no_torch(command):
    program = (
        "import sys; from deepbasis.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "heavy = {'torch', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy; sys.exit(code)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "usage: deepbasis" in run.stdout


DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((SRC / "weights").glob("*.md")),
]
# Commands that prepare a machine, which the tests cannot do to the one they run on.
NOT_RUN = ("git clone ", "cd ", "pip install ")


def blocks(document: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_every_code_block_runs(document, tmp_path, monkeypatch):
    """Python is executed, one namespace a document; commands are run, and print what is shown."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    namespace: dict[str, object] = {"__name__": document.name}
    for language, code in blocks(document):
        if language == "python":
            exec(compile(code, str(document), "exec"), namespace)
        elif language == "console":
            run_session(code, tmp_path)
        else:
            assert language in ("text", "math", "bibtex"), f"{document}: a block of {language!r}"


def run_session(code: str, folder: Path) -> None:
    """Run each `$ command`; if lines follow it, they are its output."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, shown = part.split("\n", 1)
        if command.startswith("make "):
            checked = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, check=False)
            assert checked.returncode == 0, command
        elif not command.startswith(NOT_RUN):
            words = command.split()
            assert words[0] == "deepbasis", f"the tests do not know how to run {command!r}"
            ours = shutil.which("deepbasis", path=str(Path(sys.executable).parent))
            assert ours is not None, "install the project first"
            run = subprocess.run(
                [ours, *words[1:]], cwd=folder, capture_output=True, text=True, check=True
            )
            if shown.strip():
                assert run.stdout.strip() == shown.strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_inside_the_project_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
