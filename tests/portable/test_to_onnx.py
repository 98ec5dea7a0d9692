# SPDX-License-Identifier: Apache-2.0
"""The graphs of ONNX against Python: the same depth, in onnxruntime, at every number of points."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deepbasis
from deepbasis.cli import main
from deepbasis.data.packaged import packaged
from deepbasis.data.sample import halve
from deepbasis.portable import to_onnx
from deepbasis.portable.fit_graph import FitGraph, spd_inverse

onnxruntime = pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[2] / "examples" / "runtimes" / "onnx_numpy.py"
MOST = 500
# Largest difference of log depth, and of std relative to it.
ACCURACY, STD_ACCURACY = 1e-4, 5e-3
# Of one pixel in a thousand the std may differ by this: the last of its neighbours may be another
# one if two are equally far in float32, and next to a point the variance is a rounding error.
RARE = 0.03


def measure(room, count, *, between=True, seed=0):
    """Places between the pixels of a room, or its pixels, as `u v metres`.

    Of pixels, many are equally far from a place; between them, neighbours are unique.
    """
    draw = np.random.default_rng(seed)
    depth = room.depth[0].numpy()
    row, column = np.nonzero(depth)
    chosen = draw.permutation(len(row))[:count]
    rows = np.stack([column, row, depth[row, column]], 1)[chosen].astype(np.float64)
    if between:
        rows[:, :2] += draw.uniform(-0.4, 0.4, (count, 2))
        rows[:, :2] = rows[:, :2].clip(0, np.array(depth.shape[::-1]) - 1)
    return rows


def compare(found, out):
    """Log depth, std and the interval of Python's completion."""
    assert np.abs(found["log_depth"] - np.log(out.depth)).max() < ACCURACY
    assert np.abs(found["depth"] / out.depth - 1).max() < 2 * ACCURACY
    off = np.abs(found["std"] / out.std - 1)
    assert np.quantile(off, 0.999) < STD_ACCURACY
    assert off.max() < RARE
    for name, bound in zip(("low90", "high90"), out.interval(0.9), strict=True):
        assert np.abs(found[name] / bound - 1).max() < 1e-3


@pytest.mark.parametrize("name", ["indoor", "open"])
def test_the_graph_in_torch_is_the_fit(name):
    """Both kinds of kernel, before any export; rooms are unfamiliar to one of the two."""
    room = halve(packaged("rooms")[1])
    model = deepbasis.load(name)
    if name == "open":
        model.network.familiarity.forget()
    scene = model.prepare(room.image)
    network = to_onnx.NetworkGraph(model.network).eval()
    graph = FitGraph(model.network.fit, MOST, embedding=scene.features.embedding is not None).eval()
    with torch.no_grad():
        maps = network(scene.image)
    scale, _ = next(x for x in maps if x.dim() == 1)
    assert (scale > 1) == (name == "indoor")
    if scene.features.embedding is None:
        maps = (scene.image, *maps)
    for count in (0, 1, 50, 400):
        rows = measure(room, count, seed=count)
        if count == 50:
            rows = np.column_stack([rows, np.linspace(0, 0.3, count)])
        points = torch.zeros(MOST, 4)
        points[: len(rows), : rows.shape[1]] = torch.from_numpy(rows)
        with torch.no_grad():
            found = graph(points, *maps)
        names = ("log_depth", "variance", "depth", "std", "low90", "high90")
        values = dict(zip(names, (x.numpy() for x in found), strict=True))
        compare(values, scene.complete(rows if count else None, errors="correlated", robust=False))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """`indoor`, exported by the command, in a Python without the tests' type checker: it would
    refuse the symbols that stand for sizes while a graph is made.
    """
    path = tmp_path_factory.mktemp("onnx") / "indoor.onnx"
    words = [sys.executable, "-m", "deepbasis.cli", "export", "indoor", "--out", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "fit of up to 500 points" in done.stdout
    assert "torchvision" not in done.stdout + done.stderr
    return path


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 50, 500])
def test_onnxruntime_gives_the_same_depth(exported, count):
    """By the example, which knows neither torch nor this library; at another size than traced."""
    example = runpy.run_path(str(EXAMPLE))["Model"](exported)
    room = halve(packaged("rooms")[2])
    model = deepbasis.load("indoor")
    rgb = room.image.permute(1, 2, 0).numpy()
    found = example.complete(example.prepare(rgb), measure(room, count))
    compare(found, model.complete(room.image, measure(room, count), robust=False))


@pytest.mark.slow
def test_at_pixels_only_the_choice_of_equally_distant_neighbours_differs(exported):
    """Half of the pixels agree as above, and the mean error of depth is the same to 3 %."""
    example = runpy.run_path(str(EXAMPLE))["Model"](exported)
    room = halve(packaged("rooms")[2])
    rows = measure(room, 500, between=False)
    found = example.complete(example.prepare(room.image.permute(1, 2, 0).numpy()), rows)
    out = deepbasis.load("indoor").complete(room.image, rows, robust=False)
    assert np.median(np.abs(found["log_depth"] - np.log(out.depth))) < ACCURACY
    true, known = room.depth[0].numpy(), room.mask[0].numpy()
    errors = [np.abs(depth - true)[known].mean() for depth in (found["depth"], out.depth)]
    assert errors[0] == pytest.approx(errors[1], rel=0.03)


@pytest.mark.slow
def test_the_example_needs_no_torch(exported, tmp_path):
    room = halve(packaged("rooms")[2])
    Image.fromarray(room.image.permute(1, 2, 0).numpy()).save(tmp_path / "room.png")
    np.savetxt(tmp_path / "points.csv", measure(room, MOST + 100))
    program = f"""
import runpy, sys
sys.modules["torch"] = sys.modules["deepbasis"] = None
sys.argv = ["onnx_numpy.py", {str(exported)!r}, "room.png", "points.csv"]
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("500 of 600 points are used")
    assert "\n500 points: depth " in done.stdout
    assert np.load(tmp_path / "room-std.npy").shape == room.image.shape[1:]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v,u,depth\n1,2,3\n", "does not hold rows of `u v metres"),
        ("1;2;3\n", "does not hold rows of `u v metres"),
        ("1 2 3\n1 2\n", "does not hold rows of `u v metres"),
        ("", "does not hold rows of `u v metres"),
        ("1 2\n", "does not hold rows of `u v metres"),
        ("1 2 3\n4 5 -1\n", "point 2 has no positive depth"),
        ("1 2 nan\n", "point 1 has no positive depth"),
        ("1 2 3 -0.1\n", "point 1 has a negative sigma"),
        ("1 2 3\n8 2 3\n", "point 2 is outside the image"),
        ("1 -0.6 3\n", "point 1 is outside the image"),
        ("1 2 3\n5 2 3\n1.2 1.8 4\n", "point 3 is on the pixel of another"),
    ],
)
def test_the_example_refuses_bad_rows(text, said, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(SystemExit, match=said):
        runpy.run_path(str(EXAMPLE))["read_points"](path, (6, 8))


@pytest.mark.parametrize("header", ["", "u,v,depth,sigma\n", "# u v metres sigma\n"])
def test_the_example_reads_rows_with_and_without_a_header(header, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(f"{header}1,2,3.5,0\n\n-0.4, 5.4 ,2,0.1\n")
    found = runpy.run_path(str(EXAMPLE))["read_points"](path, (6, 8))
    assert (found == [[1, 2, 3.5, 0], [-0.4, 5.4, 2, 0.1]]).all()


@pytest.mark.slow
def test_more_points_than_the_maximum_are_refused(exported):
    example = runpy.run_path(str(EXAMPLE))["Model"](exported)
    with pytest.raises(ValueError, match="501 points are more than the 500"):
        example.complete({}, np.ones((501, 3)))


def test_inverses():
    a = torch.randn(5, 12, 12, dtype=torch.float64)
    spd = a @ a.mT + torch.eye(12)
    assert torch.allclose(spd_inverse(spd) @ spd, torch.eye(12).double(), atol=1e-9)


def test_if_one_graph_fails_neither_is_written(tmp_path, monkeypatch):
    def write(module, inputs, path, *others):
        if path.stem.endswith("-fit"):
            raise OSError("the disk is full")
        path.write_bytes(b"network")

    monkeypatch.setattr(to_onnx, "_write", write)
    with pytest.raises(OSError, match="the disk is full"):
        to_onnx.export(deepbasis.load("open"), tmp_path / "a.onnx", tmp_path / "a-fit.onnx", 500)
    assert not list(tmp_path.iterdir())


def test_a_third_party_network_is_refused(tmp_path):
    model = deepbasis.load(lambda image: 1 + image.mean(1, keepdim=True), prediction="depth")
    with pytest.raises(ValueError, match="a third-party network cannot be exported"):
        to_onnx.export(model, tmp_path / "a.onnx", tmp_path / "a-fit.onnx", 500)


def test_refusals(tmp_path, monkeypatch, capsys):
    for words, said in (
        (["--out", "model.bin"], "does not end in .onnx"),
        (["--out", "nowhere/model.onnx"], "there is no folder nowhere"),
        (["--out", "model.onnx", "--max-points", "10"], "at least 36 points as the maximum"),
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["deepbasis", "export", "indoor", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert said in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    words = ["deepbasis", "export", "indoor", "--out", "model.onnx"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert 'pip install "deepbasis[onnx]"' in capsys.readouterr().err
