# SPDX-License-Identifier: Apache-2.0
"""What the project as a whole promises: layers, names, a light command line, true documents."""

import ast
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

import deepbasis
from deepbasis import cli, fit, latent, layer, metrics, nets
from deepbasis.cli import COMMANDS
from deepbasis.options import CONFIG
from deepbasis_paper import cli as paper_cli

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "deepbasis"

# Each may import from those before it, and from no other.
LAYERS = [
    "shapes", "options", "pretrained", "arguments", "fit", "latent", "points", "tracking",
    "patterns", "metrics", "layer", "data", "conformal", "nets", "joint", "result", "stream",
    "model", "portable", "registration", "self_check", "baselines", "plots", "calibrate", "train",
    "evaluation", "demo", "page", "commands", "cli",
]  # fmt: skip
FIT_LAYERS = [
    "checks", "prior", "linear", "robust", "evidence", "kernel", "neighbours", "field", "memory",
    "correlated", "doubt", "sampling", "outliers", "wrong_points", "hidden", "kernel_search",
    "calibration", "transfer",
]  # fmt: skip
LAYER_LAYERS = [
    "prediction", "pyramid", "calibration_table", "learned_prior", "errors", "judge",
    "basis_fit",
]  # fmt: skip
DATA_LAYERS = [
    "sample", "files", "limits", "extras", "tensors", "formats", "images", "surveys", "clouds",
    "recording", "transforms", "trajectories", "video", "folder", "matlab", "nyu", "vkitti2",
    "kitti", "lens", "messages", "bags", "colmap", "slam", "nerfstudio", "confidence",
    "with_points", "worlds", "packaged", "sources", "training",
]  # fmt: skip
METRICS_LAYERS = [
    "valid_pixels", "error", "uncertainty", "sparsification", "image", "tally", "bootstrap",
]  # fmt: skip
NETS_LAYERS = [
    "encoders", "decoder", "basis", "known", "familiarity", "usual_size", "frozen", "foreign",
    "kriging", "network", "folding", "cost",
]  # fmt: skip
CALIBRATE_LAYERS = ["measure", "distortions", "familiarity", "learn", "adapt"]
TRAIN_LAYERS = [
    "config", "job", "checkpoint", "record", "loop", "finish", "report", "run",
]  # fmt: skip
# Names that more than one package has, each for its own kind of the same thing.
SHARED_NAMES = {
    "adapt", "calibration", "demo", "evaluate", "export", "familiarity",
    "prior", "render", "run", "train",
}  # fmt: skip
COMPLETE_LAYERS = [
    "storage", "inputs", "plan", "outputs", "sinks", "run", "manifest", "shards", "attempts",
    "archive", "on_ray",
]  # fmt: skip
PORTABLE_LAYERS = ["fit_graph", "onnx_inverse", "to_onnx"]
PAGE_LAYERS = [
    "protocol",
    "access",
    "preview",
    "recipe",
    "uploads",
    "sequence",
    "session",
    "server",
]


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
        (SRC / "layer", LAYER_LAYERS),
        (SRC / "data", DATA_LAYERS),
        (SRC / "metrics", METRICS_LAYERS),
        (SRC / "nets", NETS_LAYERS),
        (SRC / "calibrate", CALIBRATE_LAYERS),
        (SRC / "train", TRAIN_LAYERS),
        (SRC / "commands" / "complete", COMPLETE_LAYERS),
        (SRC / "portable", PORTABLE_LAYERS),
        (SRC / "page", PAGE_LAYERS),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_imports_only_point_down(folder, layers):
    package = ".".join(folder.relative_to(ROOT / "src").parts)
    rooms = {p.stem for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(layers)
    for rank, name in enumerate(layers):
        used = (imported_siblings(folder / name, package) & rooms) - {name}
        # A type's name may point up where only the type checker looks.
        allowed = {*layers[:rank], *({"linear"} if name == "prior" else ())}
        assert used <= allowed, f"{name} imports upward: {used - allowed}"


def test_the_architecture_page_lists_the_modules_in_this_order_with_their_imports():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == LAYERS
    for name, imports in rows:
        used = imported_siblings(SRC / name, "deepbasis") & set(LAYERS) - {name, "shapes"}
        if name != "commands":  # imports what a command needs
            assert set(re.findall(r"`([a-z_]+)`", imports)) == used, name


def test_no_two_modules_share_a_name():
    """Except for a package's own parts that are named by what they do in each of them."""
    names = [path.stem for path in SRC.rglob("*.py") if path.stem != "__init__"]
    shared = {name for name in names if names.count(name) > 1}
    assert shared <= SHARED_NAMES, shared - SHARED_NAMES


def test_no_two_classes_share_a_name():
    trees = [ast.parse(path.read_text()) for path in SRC.rglob("*.py")]
    nodes = [node for tree in trees for node in tree.body]
    names = [n.name for n in nodes if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    assert not {name for name in names if names.count(name) > 1}


def test_public_names_are_guarded():
    """Change this list only together with CHANGELOG.md: users build on these names."""
    assert sorted(deepbasis.__all__) == [
        "BasisFit", "Completer", "Completion", "FrozenBases", "Points", "baselines", "data", "fit",
        "latent", "layer", "load", "metrics", "nets", "patterns", "points",
    ]  # fmt: skip
    assert sorted(fit.__all__) == [
        "Adapted", "FramePoints", "Gamma", "Hyperprior", "JitterWarning", "Kernel", "Posterior",
        "Prior", "Strength", "WeightSample", "Widening", "adapt_prior", "correlated", "evidence",
        "fit_gamma", "learn_kernel", "log_likelihood", "match_nees", "ml", "nees", "posterior",
        "posterior_mean", "posterior_moments", "search_kernel",
    ]  # fmt: skip
    assert sorted(metrics.__all__) == [
        "CONVENTIONS", "CalibrationCurve", "ErrorDistribution", "Laplace", "SparsificationCurve",
        "StudentT", "Tally", "auce", "ause", "calibration_curve", "confidence", "coverage",
        "delta", "imae", "irmse", "mae", "nees", "nll", "paired", "rel", "rmse", "sharpness",
        "sparsification_curve",
    ]  # fmt: skip
    assert sorted(nets.__all__) == [
        "Architecture", "BasisNet", "DepthNetwork", "EfficientNetLite0", "Features", "FrozenBases",
        "MobileNetV2", "Network", "ResNet34", "load_encoder_weights",
    ]  # fmt: skip
    assert sorted(layer.__all__) == [
        "BasisFit", "Calibration", "CalibrationRow", "Correlated", "ErrorModel", "Errors", "Fitted",
        "Independent", "LearnedPrior", "LeaveOneOut", "Observed", "Prediction", "PriorCollector",
        "Pyramid",
    ]  # fmt: skip
    for module in (deepbasis, fit, layer, metrics, nets):
        assert set(module.__all__) <= set(dir(module))
        assert all(getattr(module, name).__doc__ for name in module.__all__ if name != "Errors")
    public = {name for name in vars(latent) if name.islower() and not name.startswith("_")}
    assert {"to_latent", "to_depth", "interval", "std", "is_valid"} <= public
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = deepbasis.nothing


def test_every_file_names_its_licence():
    for folder in (SRC, ROOT / "models", ROOT / "paper"):
        for file in folder.rglob("*.py"):
            assert file.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n"), file


def test_help_imports_no_torch():
    program = (
        "import sys; from deepbasis.cli import main\n"
        f"for words in [[], *([command] for command in {list(COMMANDS)})]:\n"
        "    sys.argv = ['deepbasis', *words, '--help']\n"
        "    try: main()\n"
        "    except SystemExit as stop: assert stop.code == 0, words\n"
        "    heavy = {'torch', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("usage: deepbasis") == 1 + len(COMMANDS)


DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((SRC / "weights").glob("*.md")),
    *sorted((ROOT / "models").rglob("*.md")),
    *sorted((ROOT / "paper").rglob("*.md")),
]
# Commands that prepare a machine, which the tests cannot do to the one they run on.
NOT_RUN = ("git clone ", "cd ", "pip install ")
PROGRAMS = {"deepbasis": cli.main, "deepbasis-paper": paper_cli.main}


def blocks(document: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(d, marks=pytest.mark.slow if d.name in {"data.md", "own-data.md"} else ())
        for d in DOCUMENTS
    ],
    ids=lambda d: d.name,
)
def test_every_code_block_runs(document, tmp_path, monkeypatch, capsys):
    """Python is executed, one namespace a document; commands are run, and print what is shown."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    namespace: dict[str, object] = {"__name__": document.name}
    for language, code in blocks(document):
        if language == "python":
            exec(compile(code, str(document), "exec"), namespace)
        elif language == "console":
            run_session(code, monkeypatch, capsys)
        else:
            assert language in ("text", "bibtex"), f"{document}: a block of {language!r}"


def run_session(code: str, monkeypatch, capsys) -> None:
    """Run each `$ command`, in this process to save the imports; lines after it are its output."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, shown = part.split("\n", 1)
        if command.startswith("make "):
            checked = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, check=False)
            assert checked.returncode == 0, command
        elif not command.startswith(NOT_RUN):
            words = command.split()
            assert words[0] in PROGRAMS, f"the tests do not know how to run {command!r}"
            monkeypatch.setattr(sys, "argv", words)
            capsys.readouterr()
            PROGRAMS[words[0]]()  # ends the test by SystemExit if it fails
            if shown.strip():
                assert capsys.readouterr().out.strip() == shown.strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_inside_the_project_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_commands_that_are_only_shown_can_be_parsed(document):
    """Those in blocks of plain text take too long to be run here, or need data."""
    text = "\n".join(code for language, code in blocks(document) if language == "text")
    for line in re.findall(r"^\$ (deepbasis .*)$", text.replace("\\\n", " "), re.MULTILINE):
        words = shlex.split(line, comments=True)[1:]
        if words[:1] not in ([], ["--help"], ["--version"]) and "..." not in words:
            tyro.extras.subcommand_cli_from_dict(COMMANDS, args=words, config=CONFIG)


def test_the_site_leads_to_every_document():
    nav = (ROOT / "mkdocs.yml").read_text()
    for document in (ROOT / "docs").rglob("*.md"):
        assert f" {document.relative_to(ROOT).as_posix()}\n" in nav, document


def test_workflows_use_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    called = {name for text in workflows for name in re.findall(r"\bmake ([a-z-]+)", text)}
    assert {"lint", "test", "test-all", "docs"} <= called <= targets


def test_tables_of_the_documents_are_those_of_the_results(monkeypatch):
    monkeypatch.chdir(ROOT)
    script = runpy.run_path("benchmarks/tables.py")
    documents = [path for each in script["DOCUMENTS"] for path in ROOT.glob(each)]
    tables = [one for path in documents for one in script["TABLE"].findall(path.read_text())]
    assert len(tables) >= 7
    spreads = [len(script["SPREAD"].findall(path.read_text())) for path in documents]
    assert sum(spreads) == 3
    assert script["TARGETS"].search((ROOT / "docs" / "models.md").read_text())
    assert len(script["README_ROW"].findall((ROOT / "README.md").read_text())) == 4
    for path in (ROOT / "README.md", *documents):
        assert script["renewed"](path) == path.read_text(), path.name
