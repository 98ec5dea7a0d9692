# SPDX-License-Identifier: Apache-2.0
"""Random and damaged input for the public functions and every reader.

Each case ends in an answer, which is checked, in a clear refusal, or in anything else, which is a
defect: another exception, a warning, NaN or infinity in an answer, a negative std, a sentence that
is too long.
"""

import json
import random
import re
import signal
import struct
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import av
import laspy
import numpy as np
import pye57
import torch
from PIL import Image
from pyarrow import Table, parquet
from scipy.io import savemat

from deepbasis import BasisFit, baselines, fit, latent, metrics, patterns
from deepbasis import points as points_module
from deepbasis.commands.complete import manifest
from deepbasis.conformal import ConformalTable
from deepbasis.data import (
    bags,
    clouds,
    colmap,
    confidence,
    folder,
    formats,
    images,
    kitti,
    messages,
    nerfstudio,
    nyu,
    slam,
    trajectories,
    video,
)  # fmt: skip
from deepbasis.model import Completer, load
from deepbasis.nets import MobileNetV2, load_encoder_weights
from deepbasis.points import Points, to_numbers, to_points
from models import make_model

LONGEST_SENTENCE = 700
SIZE = (24, 32)


class Defect(Exception):
    """Neither an answer nor a clear refusal."""


def judge(case: Callable[[], object], about: str) -> str:
    """Run a case: "answer" or "refusal"; anything else is a defect."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", fit.JitterWarning)  # it says what was done
        warnings.filterwarnings("ignore", ".* states that it has .* frames")  # a video cut off
        try:
            case()
        except (ValueError, OSError) as error:
            text = str(error)
            if not text or len(text) > LONGEST_SENTENCE or text.count("\n") > 3:
                raise Defect(f"{about}: unclear refusal {text[:200]!r}") from error
            return "refusal"
        except Defect as defect:
            raise Defect(f"{about}: {defect}") from defect
        except BaseException as error:
            raise Defect(
                f"{about}: {type(error).__name__} at {_place(error)}: {str(error)[:150]}"
            ) from error
    return "answer"


def _place(error: BaseException) -> str:
    """The last line of ours that an error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "deepbasis" in one.filename] or list(frames)
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def check(condition: object, what: str) -> None:
    """Part of a case: what an answer must be."""
    if not condition:
        raise Defect(what)


# Arrays

NUMBERS = [0.0, -0.0, 1.0, 2.5, -1.0, 1e-46, 1e-30, 1e-7, 1e7, 1e30, 1e39, 1e300, np.nan, np.inf,
           -np.inf]  # fmt: skip
KINDS = ["u1", "u2", "i4", "i8", "f2", "f4", "f8", "c16", "?", "O", "U3"]


def make_array(rng: random.Random, shapes: list[tuple[int, ...]]) -> object:
    """An array, tensor, list or something else altogether."""
    shape = rng.choice([*shapes, (), (0,), (0, 3), (3, 0), (5,), (2, 2, 2), (1, 1, 3, 4)])
    draw = np.random.default_rng(rng.getrandbits(32))
    values = draw.uniform(0.5, 5, shape)
    if rng.random() < 0.5 and values.size:
        odd = draw.random(shape) < rng.choice([0.05, 0.5, 1.0])
        values = np.where(odd, draw.choice(NUMBERS, shape), values)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = values.astype(rng.choice(KINDS)) if rng.random() < 0.5 else values
    how = rng.random()
    if how < 0.1:
        return np.ma.masked_array(values, draw.random(shape) < 0.5)
    if how < 0.2:
        return torch.from_numpy(values).to(rng.choice([torch.float32, torch.bfloat16]))
    if how < 0.3:
        return array.tolist()
    if how < 0.35:
        return rng.choice([None, {}, {"u": 1}, "text", 3, object(), [[1, 2], [3]], b"bytes"])
    return array


def make_points(rng: random.Random) -> object:
    """Rows of points, or a map, or neither."""
    return make_array(rng, [SIZE, SIZE, (7, 3), (7, 4), (40, 3), (40, 4), (1, 3), (32, 3)])


def make_image(rng: random.Random) -> object:
    """An image, or not."""
    if rng.random() < 0.5:
        shape = rng.choice([SIZE, (*SIZE, 3), (*SIZE, 1), (*SIZE, 4), (3, *SIZE), (1, *SIZE)])
        kind = rng.choice(["u1", "u2", "f4", "f8"])
        draw = np.random.default_rng(rng.getrandbits(32))
        image = draw.random(shape) if kind[0] == "f" else draw.integers(256, size=shape)
        return image.astype(kind)
    return make_array(rng, [SIZE, (*SIZE, 3), (3, 3, 3), (0, 4, 3), (4, 0, 3)])


def check_completion(out: object) -> None:
    """Finite depths with positive error bars."""
    if isinstance(out, list):
        for one in out:
            check_completion(one)
        return
    check(np.isfinite(out.depth).all() and (out.depth > 0).all(), "depth is not finite")
    check(np.isfinite(out.std).all() and (out.std >= 0).all(), "std is not finite")
    low, high = out.interval(0.9)
    check((low <= high).all() and np.isfinite(low).all(), "interval is not finite")
    for outlier in out.outliers:
        check(np.isfinite(outlier).all(), "outlier is not finite")


def array_case(rng: random.Random, model: Completer, image: np.ndarray) -> Callable[[], object]:
    """A call of a public function with odd arrays."""
    which = rng.randrange(6)
    points, odd_image = make_points(rng), make_image(rng)
    option = rng.choice([None, None, 1.345, 0.0, -1.0, np.nan, np.inf])

    def run() -> None:
        if which == 0:
            check_completion(model.complete(image, points))
        elif which == 1:
            check_completion(model.complete(odd_image, None))
        elif which == 2:
            check_completion(model.complete(image, points, huber=option))
        elif which == 3:
            check_completion(model.complete(image, points, max_depth=option))
        elif which == 4:
            found = to_points(points, SIZE).inside(SIZE)
            check(found.z.isfinite().all(), "points are not finite")
        else:
            rgb = images.to_rgb(odd_image)
            check(rgb.dtype == np.uint8 and rgb.shape[2] == 3, "not RGB")

    return run


# Functions on tensors


def make_tensor(rng: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers that are usually fine."""
    g = torch.Generator().manual_seed(rng.getrandbits(31))
    kind = rng.choices([torch.float32, torch.float64, torch.bfloat16, torch.int64], [20, 4, 2, 1])[
        0
    ]
    values = torch.randn(shape, generator=g, dtype=torch.float64)
    if rng.random() < 0.3 and values.numel():
        values.view(-1)[rng.randrange(values.numel())] = rng.choice(NUMBERS)
    return values.to(kind)


def make_alike(rng: random.Random, count: int) -> list[torch.Tensor]:
    """Tensors of one shape, most of them positive; sometimes one of another shape."""
    shape = rng.choice([(4, 5), (2, 4, 5), (2, 1, 4, 5), (7,), (), (0,), (0, 4, 5), (2, 0, 5)])
    found = [make_tensor(rng, shape) for _ in range(count)]
    found = [one if rng.random() < 0.1 else one.abs() for one in found]
    if rng.random() < 0.1:
        found[rng.randrange(count)] = make_tensor(rng, (3,))
    return found


def finite(*values: object) -> None:
    """Part of a case: all numbers of an answer are finite."""
    for value in values:
        check(np.isfinite(np.asarray(value, np.float64)).all(), f"{str(value)[:50]} is not finite")


def fit_case(rng: random.Random) -> Callable[[], object]:
    """A fit to odd tensors."""
    b, n, m = rng.choice([0, 1, 2]), rng.choice([0, 1, 5, 30]), rng.choice([1, 3])
    phi = make_tensor(rng, (b, n, m) if rng.random() < 0.8 else (n, m))
    z = make_tensor(rng, phi.shape[:-1] if rng.random() < 0.9 else (3,))
    weight = make_tensor(rng, z.shape).abs() if rng.random() < 0.5 else None
    prior = fit.Prior(torch.zeros(m), torch.eye(m))
    alpha = rng.choice([1.0, 0.7, -1.0, 0.0, np.nan, np.inf, 1e30])
    beta = rng.choice([1.0, 3.5, 1e20, -2.0, 0.0, np.nan, torch.tensor(2.0), torch.ones(5)])
    huber = rng.choice([None, None, 1.345, 0.0, np.inf, np.nan])
    calls: list[Callable[[], fit.Posterior]] = [
        lambda: fit.evidence(phi, z, prior, weight, huber=huber),
        lambda: fit.posterior(phi, z, prior, weight, alpha=alpha, beta=beta),
        lambda: fit.ml(phi, z, weight),
    ]
    which = rng.randrange(4)

    def run() -> None:
        if which == 3:
            mean = fit.posterior_mean(phi, z, prior, weight, beta=beta)
            finite(mean.double())
            return
        post = calls[which]()
        finite(post.mean.double(), post.cov.double(), post.alpha.double())
        mean, model_var, noise_var = post.predict(phi)
        finite(mean.double(), model_var.double())
        check((model_var >= 0).all() and (noise_var >= 0).all(), "a variance is negative")

    return run


def metric_case(rng: random.Random) -> Callable[[], object]:
    """A score of odd maps."""
    a, b, true = make_alike(rng, 3)
    name = rng.choice(["mae", "rmse", "rel", "delta", "imae", "irmse", "coverage", "sharpness",
                       "nll", "auce", "ause", "nees"])  # fmt: skip
    pair = name in ("mae", "rmse", "rel", "delta", "imae", "irmse", "nees")
    score = getattr(metrics, name)
    return lambda: finite(float(score(a, true) if pair else score(a, b, true)))


def latent_case(rng: random.Random) -> Callable[[], object]:
    """An interval of odd numbers."""
    mean, var = make_alike(rng, 2)
    level = rng.choice([0.9, 0.5, 0.0, 1.0, 1.5, -1.0, np.nan])

    def run() -> None:
        low, high = latent.interval(mean, var, level)
        fine = mean.isfinite() & (var >= 0) & (var < 10) & (mean.abs() < 50)
        check((low <= high)[fine].all(), "an interval is upside down")

    return run


def points_case(rng: random.Random) -> Callable[[], object]:
    """Points from odd maps and clouds."""
    shape = rng.choice([(2, 1, 6, 8), (0, 1, 6, 8), (1, 1, 0, 8), (1, 6, 8), (6, 8), (2, 2, 6, 8)])
    sparse = make_tensor(rng, shape).abs()
    weight = rng.choice([None, make_tensor(rng, shape).abs(), make_tensor(rng, (3,))])
    xyz = make_tensor(rng, rng.choice([(9, 3), (0, 3), (9, 2), ()]))
    camera = torch.tensor([[5.0, 0, 3], [0, 5, 2], [0, 0, 1]])
    if rng.random() < 0.4:
        camera.view(-1)[rng.randrange(9)] = rng.choice([np.nan, np.inf, 0.0, -5.0])
    which = rng.randrange(4)

    def run() -> None:
        if which == 0:
            points = Points.from_maps(sparse, weight)
            finite(points.z.double(), points.u.double())
        elif which == 1:
            finite(Points.from_cloud(xyz, camera, None, (6, 8)).rows)
        elif which == 2:
            depth = points_module.range_to_depth(
                sparse[:, 0] if sparse.ndim > 3 else sparse, camera
            )
            check(depth.dtype == sparse.dtype, "another dtype")
        else:
            found = Points.from_map(sparse)
            finite(points_module.remove_occluded(found.inside((6, 8)), (6, 8)).rows)

    return run


def layer_case(rng: random.Random) -> Callable[[], object]:
    """The layer on odd maps."""
    layer = BasisFit(2, errors=rng.choice(["independent", "correlated", "paper"])).eval()
    b, h, w = rng.choice([0, 1, 2]), rng.choice([0, 1, 6]), rng.choice([1, 8])
    bases = make_tensor(rng, (b, 2, max(h // 2, 1), max(w // 2, 1)))
    sparse = make_tensor(rng, (b, 1, h, w) if rng.random() < 0.9 else (h, w)).abs()

    def run() -> None:
        with torch.no_grad():
            prediction = layer(bases, sparse)
        finite(prediction.mean.double(), prediction.var.double())
        check((prediction.var >= 0).all(), "a variance is negative")

    return run


def baseline_case(rng: random.Random) -> Callable[[], object]:
    """A classical baseline on odd maps."""
    image = torch.zeros(3, 6, 8, dtype=rng.choice([torch.uint8, torch.uint8, torch.float32]))
    sparse = make_tensor(rng, rng.choice([(1, 6, 8), (1, 6, 8), (6, 8), (1, 0, 8), ()])).abs()
    which = rng.choice([baselines.nearest, baselines.linear, baselines.kriging])
    return lambda: finite(*(part.double() for part in which(image, sparse)))


def text_case(rng: random.Random) -> Callable[[], object]:
    """A pattern from odd text."""
    parts = ["500", "5%", "lidar16", "tof", "8x8", "grid", "features", "-1", "1e99", "", " ", "%"]
    text = "".join(rng.choice(parts) for _ in range(rng.choice([1, 2, 3])))
    return lambda: str(patterns.parse(text))


def tensor_case(rng: random.Random) -> Callable[[], object]:
    """A call of the mathematics with odd tensors."""
    kinds = [fit_case, fit_case, metric_case, latent_case, points_case, layer_case, baseline_case,
             text_case]  # fmt: skip
    return rng.choice(kinds)(rng)


# Files


def write_seeds(folder_path: Path) -> dict[str, Callable[[Path], object]]:
    """A good file of every kind, and what reads it."""
    draw = np.random.default_rng(0)
    image = draw.integers(256, size=(*SIZE, 3), dtype=np.uint8)
    depth = draw.uniform(0.5, 5, SIZE).astype(np.float32)
    xyz = draw.uniform(1, 5, (20, 3))
    Image.fromarray(image).save(folder_path / "photo.png")
    Image.fromarray(image).save(folder_path / "photo.jpg")
    formats.write_depth_png(folder_path / "depth.png", depth, 1000)
    formats.write_npy(folder_path / "depth.npy", depth)
    np.savez(folder_path / "depth.npz", depth=depth)
    formats.write_pfm(folder_path / "depth.pfm", depth)
    np.savetxt(folder_path / "rows.csv", np.column_stack([xyz[:, :2] * 4, xyz[:, 2]]), fmt="%.4g")
    clouds.write_ply(folder_path / "cloud.ply", xyz)
    np.savetxt(folder_path / "cloud.xyz", xyz)
    header = "VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 20\nHEIGHT 1\n"
    header += "POINTS 20\nDATA ascii\n" + "\n".join(" ".join(map(str, row)) for row in xyz)
    (folder_path / "cloud.pcd").write_text(header)
    np.pad(xyz, ((0, 0), (0, 1))).astype("<f4").tofile(folder_path / "cloud.bin")
    (folder_path / "camera.txt").write_text("40 40 15.5 11.5")
    (folder_path / "camera.json").write_text(json.dumps({"fx": 1, "fy": 1, "cx": 0, "cy": 0}))
    np.savetxt(folder_path / "pose.txt", np.eye(4)[:3])
    (folder_path / "scale.txt").write_text("1000.0")
    (folder_path / "pose.json").write_text(json.dumps(np.eye(4).tolist()))
    Image.fromarray(depth).save(folder_path / "depth.tif")
    np.save(folder_path / "rows.npy", xyz)
    torch.save({"features.0.0.weight": torch.zeros(32, 3, 3, 3)}, folder_path / "encoder.pth")
    make_model().save(folder_path / "model.safetensors")
    scores = draw.exponential(size=400)
    table = ConformalTable.learn(scores, draw.uniform(0, 20, 400), np.arange(400) // 20)
    table.save(folder_path / "table.json")
    frames = [{"image": f"rgb/{i}.png", "name": f"frame {i}", "sparse": None} for i in range(5)]
    (folder_path / "frames.jsonl").write_text("\n".join(map(json.dumps, frames)))
    parquet.write_table(Table.from_pylist(frames), folder_path / "frames.parquet")
    calibration = "calib_time: 09-Jan-2012\nP_rect_02: 7.2e+02 0 6e+02 4.4e+01 0 7.2e+02 1.7e+02 "
    (folder_path / "calib.txt").write_text(f"{calibration}2.1e-01 0 0 1 2.7e-03\n")
    (folder_path / "split.json").write_text(json.dumps({"train": [1, 2, 3], "test": [4]}))
    numbers = {"trainNdxs": np.arange(1, 9)[:, None], "testNdxs": np.arange(9, 12)[:, None]}
    savemat(folder_path / "splits.mat", numbers)
    for name, codec in (("film.mp4", "mpeg4"), ("film.avi", "mjpeg"), ("film.mkv", "mpeg4")):
        write_video(folder_path / name, codec, draw)

    return {
        "photo.png": images.read_image,
        "photo.jpg": images.read_image,
        "depth.png": lambda path: finite(formats.read_depth(path, 1000)),
        "depth.npy": lambda path: finite(formats.read_depth(path)),
        "depth.npz": lambda path: finite(formats.read_depth(path)),
        "depth.pfm": lambda path: finite(formats.read_depth(path)),
        "rows.csv": lambda path: Points.from_rows(clouds.read_points(path)),
        "cloud.ply": lambda path: finite(clouds.read_cloud(path)),
        "cloud.xyz": lambda path: finite(clouds.read_cloud(path)),
        "cloud.pcd": lambda path: finite(clouds.read_cloud(path)),
        "cloud.bin": lambda path: finite(clouds.read_cloud(path)),
        "camera.txt": lambda path: finite(folder.read_intrinsics(path)),
        "camera.json": lambda path: finite(folder.read_intrinsics(path)),
        "pose.txt": lambda path: finite(folder.read_extrinsics(path)),
        "pose.json": lambda path: finite(folder.read_extrinsics(path)),
        "scale.txt": lambda path: finite(folder.read_scale(path)),
        "depth.tif": lambda path: finite(formats.read_depth(path)),
        "rows.npy": lambda path: Points.from_rows(to_numbers(formats.load_array(path), "it")),
        "encoder.pth": lambda path: load_encoder_weights(MobileNetV2(), path),
        "model.safetensors": lambda path: load(path),
        "table.json": use_table,
        "calib.txt": lambda path: finite(kitti.read_calibration(path, "image_02")),
        "frames.jsonl": lambda path: check(manifest.read_manifest(path), "no frame"),
        "frames.parquet": lambda path: check(manifest.read_manifest(path), "no frame"),
        "split.json": nyu._read_split,
        "splits.mat": read_official_split,
    } | dict.fromkeys(("film.mp4", "film.avi", "film.mkv"), read_video)


def read_official_split(path: Path) -> None:
    """It is found beside the data, by its name."""
    folder_path = path.parent / "official"
    folder_path.mkdir(exist_ok=True)
    (folder_path / "splits.mat").write_bytes(path.read_bytes())
    nyu._official_split(folder_path / "nyu.mat")


def write_video(path: Path, codec: str, draw: np.random.Generator) -> None:
    """Three small frames."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width = 32, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for _ in range(3):
            image = draw.integers(256, size=(32, 48, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def read_video(path: Path) -> None:
    """All frames that it claims, up to ten."""
    film = video.Video(path)
    for index in range(min(video.count_frames(path), 10)):
        check(film.read(index).dtype == np.uint8, "not an image")


def use_table(path: Path) -> None:
    """Intervals of a conformal table."""
    table = ConformalTable.load(path)
    own, distance = np.linspace(0.01, 1, 50), np.linspace(0, 100, 50)
    for level in (0.5, 0.9):
        half = table.half_width(own, own, distance, level)
        finite(half)
        check((half >= 0).all(), "a width is negative")


WORDS = [b"0", b"-1", b"99999999999999999999", b"nan", b"inf", b"1e999", b"[[[[", b"{", b"\x00",
         b"\xff\xfe", b"\n", b" ", b"," , b"COUNT 2000000000", b"list", b"[" * 3000]  # fmt: skip


ODD_VALUES = [None, True, 0, -1, 1e999, -1e999, float("nan"), 1e300, 10**30, "", "x" * 300, "1", [],
              {}, [[]], [1, 2, 3], {"a": 1}]  # fmt: skip
ODD_BYTES = [
    *(struct.pack("<i", x) for x in (0, -1, 1, 2**31 - 1, -(2**31), 1000)),
    *(struct.pack("<f", x) for x in (np.nan, np.inf, -1.0, 1e30)),
    *(struct.pack("<d", x) for x in (np.nan, np.inf, -1.0, 1e300)), struct.pack("<q", 2**62),
]  # fmt: skip


def damage(rng: random.Random, content: bytes) -> bytes:
    """Change a file: what it says, or its bytes at random."""
    how = rng.random()
    if how < 0.25 and (changed := change_json(rng, content)) is not None:
        return changed
    if how < 0.4 and content:
        return change_number(rng, content)
    return break_bytes(rng, content)


def change_json(rng: random.Random, content: bytes) -> bytes | None:
    """Replace or remove one value somewhere in a JSON file; None if it is none."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return None
    node, places = tree, []
    while isinstance(node, dict | list) and node:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        places.append((node, key))
        node = node[key]
    if not places:
        return None
    node, key = rng.choice(places)
    if rng.random() < 0.2:
        del node[key]
    else:
        node[key] = rng.choice(ODD_VALUES)
    return json.dumps(tree).encode()


def change_number(rng: random.Random, content: bytes) -> bytes:
    """Replace one number, written in digits or in bytes."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content[:20000]))
    if numbers and rng.random() < 0.5:
        start, end = rng.choice(numbers).span()
        return content[:start] + rng.choice([*WORDS, b"1", b"-0.5", b"1e30"]) + content[end:]
    place, odd = rng.randrange(len(content)), rng.choice(ODD_BYTES)
    return content[:place] + odd + content[place + len(odd) :]


def break_bytes(rng: random.Random, content: bytes) -> bytes:
    """A few random changes, most of them near the beginning, where headers are."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        place = rng.randrange(max(1, min(len(data), rng.choice([16, 300, len(data) or 1]))))
        how = rng.randrange(6)
        if how == 0 and data:
            data[min(place, len(data) - 1)] = rng.randrange(256)
        elif how == 1:
            del data[place : place + rng.choice([1, 4, 100])]
        elif how == 2:
            data[place:place] = rng.choice(WORDS)
        elif how == 3:
            data[place : place + 1] = rng.choice(WORDS)
        elif how == 4:
            del data[rng.randrange(max(1, len(data))) :]
        elif data:
            data[place:place] = data[: rng.choice([1, 50])]
    return bytes(data)


def write_recordings(folder_path: Path) -> dict[str, Callable[[Path], object]]:
    """A good recording of every kind, the part of it that is damaged, and what reads it.

    Damaged files have another name, so that a folder is read by a copy with the damaged part.
    """
    from data.fake_bags import START, FakeBag

    draw = np.random.default_rng(0)
    image = draw.integers(256, size=(12, 16, 3), dtype=np.uint8)
    xyz = draw.uniform([-1, -1, 3], [1, 1, 4], (30, 3))
    camera = np.array([[20.0, 0, 7.5], [0, 20, 5.5], [0, 0, 1]])
    for name in ("drive.bag", "packed.bag", "drive-mcap", "packed-mcap", "drive-db3"):
        bag = FakeBag(folder_path / name, db3=name == "drive-db3", packed=name.startswith("packed"))
        bag.info("/c/camera_info", START, camera, (12, 16), (0.1, 0, 0, 0, 0))
        bag.transform(START, np.eye(4), "lidar", "camera")
        bag.image("/c/image", START, image, "rgb8")
        bag.compressed("/c/compressed", START, image)
        bag.image("/c/depth", START, np.full((12, 16), 2000, np.uint16), "16UC1")
        bag.cloud("/points", START, xyz)
        bag.close()
    for name in ("drive", "packed"):
        (folder_path / f"{name}-mcap" / f"{name}-mcap.mcap").rename(folder_path / f"{name}.mcap")
    next((folder_path / "drive-db3").glob("*.db3")).rename(folder_path / "drive.db3")
    wall = draw.uniform(2.9, 3.1, (20, 3))
    parts = {
        "cameras.txt": "1 PINHOLE 16 12 20 20 8 6\n",
        "images.txt": "1 1 0 0 0 0 0 0 1 photo.png\n"
        + " ".join(f"{x * 4:.3f} {y * 3:.3f} {i}" for i, (x, y, _) in enumerate(wall)) + "\n",
        "points3D.txt": "\n".join(f"{i} {x} {y} {z} 0 0 0 1" for i, (x, y, z) in enumerate(wall)),
    }  # fmt: skip
    binary = {
        "cameras.bin": struct.pack("<QiiQQ4d", 1, 1, 1, 16, 12, 20, 20, 8, 6),
        "images.bin": struct.pack("<Qi7di", 1, 1, 1, 0, 0, 0, 0, 0, 0, 1) + b"photo.png\0"
        + struct.pack("<Q", 20)
        + b"".join(struct.pack("<ddq", 4 * x, 3 * y, i) for i, (x, y, _) in enumerate(wall)),
        "points3D.bin": struct.pack("<Q", 20)
        + b"".join(struct.pack("<Q3d3BdQ", i, *p, 0, 0, 0, 1, 0) for i, p in enumerate(wall)),
    }  # fmt: skip
    Image.fromarray(image).save(folder_path / "view.png")
    clouds.write_ply(folder_path / "map.ply", xyz)
    frame = {"file_path": "view.png", "transform_matrix": np.diag([1, -1, -1, 1]).tolist()}
    about = {"fl_x": 20, "cx": 8, "cy": 6, "k1": 0.1, "frames": [frame], "ply_file_path": "map.ply"}
    texts = {
        "transforms.json": json.dumps(about),
        "rgb.txt": "1.5 view.png\n",
        "poses.txt": "1.5 0 0 0 0 0 0 1\n2.5 0 0 0.1 0 0 0 1\n",
        **parts,
    }
    for name, text in texts.items():
        (folder_path / name).write_text(text)
    for name, content in binary.items():
        (folder_path / name).write_bytes(content)
    Image.fromarray(draw.integers(3, size=(6, 8)).astype(np.uint8)).save(folder_path / "trust.png")
    las = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
    las.x, las.y, las.z = xyz.T
    las.write(str(folder_path / "cloud.las"))
    las.write(str(folder_path / "cloud.laz"))
    with pye57.E57(str(folder_path / "cloud.e57"), mode="w") as scans:
        scans.write_scan_raw({f"cartesian{a}": xyz[:, i].copy() for i, a in enumerate("XYZ")})

    def read_bag(topics: bags.Topics) -> Callable[[Path], object]:
        def read(path: Path) -> None:
            found = bags.Bag(path, topics)
            try:
                finite(found.read(found.names[0]).points.rows)
            finally:
                found.close()

        return read

    def read_colmap(path: Path) -> None:
        """A model of the damaged part and the others."""
        suffix, own = path.suffix, path.name.removeprefix("damaged-")
        model = folder_path / "model"
        model.mkdir(exist_ok=True)
        for old in model.iterdir():
            old.unlink()
        for part in colmap.PARTS:
            source = path if f"{part}{suffix}" == own else folder_path / f"{part}{suffix}"
            (model / f"{part}{suffix}").write_bytes(source.read_bytes())
        found = colmap.ColmapFrames({"photo": folder_path / "view.png"}, model)
        finite(found.read("photo").points.rows)

    def read_tum(path: Path) -> None:
        root = folder_path / "tum"
        root.mkdir(exist_ok=True)
        (root / "rgb.txt").write_bytes(path.read_bytes())
        (root / "depth.txt").write_text("1.5 ../view-depth.png\n")
        (root / "view.png").write_bytes((folder_path / "view.png").read_bytes())
        formats.write_depth_png(folder_path / "view-depth.png", np.full((12, 16), 2.0), 5000)
        found = slam.TumFolder(root)
        finite(found.read(found.names[0]).points.rows)

    def read_confidence(path: Path) -> None:
        sigma = confidence.read_confidence(path)
        depth = np.full(sigma.shape, 2.0)
        finite(confidence.to_points(depth, sigma, (12, 16), "depth").rows)

    def read_transforms(path: Path) -> None:
        found = nerfstudio.NerfFrames(path)
        points = found.read(found.names[0]).points
        finite([] if points is None else points.rows)

    kinds = {
        "drive.bag": read_bag(bags.Topics("/c/image", "/points")),
        "packed.bag": read_bag(bags.Topics("/c/image", "/points")),
        "drive.mcap": read_bag(bags.Topics("/c/compressed", "/c/depth", "/c/camera_info")),
        "packed.mcap": read_bag(bags.Topics("/c/image", "/points")),
        "drive.db3": read_bag(bags.Topics("/c/image", "/points")),
        "transforms.json": read_transforms,
        "rgb.txt": read_tum,
        "poses.txt": lambda path: finite(trajectories.read_trajectory(path).poses),
        "trust.png": read_confidence,
        "cloud.las": lambda path: finite(clouds.read_cloud(path)),
        "cloud.laz": lambda path: finite(clouds.read_cloud(path)),
        "cloud.e57": lambda path: finite(clouds.read_cloud(path)),
    }
    return kinds | dict.fromkeys([*parts, *binary], read_colmap)


class Files:
    """Damaged files, and what reads them."""

    def __init__(self, folder_path: Path) -> None:
        self.folder = folder_path
        self.readers = write_seeds(folder_path) | write_recordings(folder_path)
        self.contents = {name: (folder_path / name).read_bytes() for name in self.readers}

    def case(self, rng: random.Random, names: Sequence[str] | None = None) -> Callable[[], object]:
        """One damaged file, of some kinds or of all."""
        if names is None:
            names = [name for name in self.readers if name != "model.safetensors"]
            names = ["model.safetensors"] if rng.random() < 0.02 else names
        name = rng.choice(names)
        path = self.folder / f"damaged-{name}"
        content = self.contents[name]
        if name == "model.safetensors":
            head = damage(rng, content[:4000])
            path.write_bytes(head + content[4000:])
        else:
            path.write_bytes(damage(rng, content))
        return lambda: self.readers[name](path)


def damage_cloud_message(rng: random.Random) -> SimpleNamespace:
    """A PointCloud2 whose numbers contradict each other."""
    points = np.linspace(1, 2, 40, dtype=np.float32).reshape(10, 4)
    odd = [0, 1, 3, 7, 8, 15, 16, 17, 40, 10**6, 2**31, 2**32 - 1]
    fields = [
        SimpleNamespace(name=name, offset=4 * i, datatype=7, count=1)
        for i, name in enumerate(("x", "y", "z", "intensity"))
    ]
    message = SimpleNamespace(
        height=1, width=10, point_step=16, row_step=160, is_bigendian=False, fields=fields,
        data=points.tobytes(),
    )  # fmt: skip
    for _ in range(rng.choice([1, 1, 2, 3])):
        one = rng.choice([message, *fields])
        name = rng.choice([n for n in vars(one) if n not in ("fields", "data", "is_bigendian")])
        setattr(one, name, rng.choice("xyzw") if name == "name" else rng.choice(odd))
    message.data = message.data[: rng.choice([0, 1, 100, 160, 160, 160])]
    return message


def damage_image_message(rng: random.Random) -> SimpleNamespace:
    """An Image whose numbers contradict each other, of any encoding."""
    odd = [0, 1, 2, 7, 48, 49, 10**6, 2**32 - 1]
    kinds = [*messages.COLOURS, *messages.BAYER, *messages.DEPTH_ENCODINGS, "yuv422", ""]
    message = SimpleNamespace(
        height=12, width=16, step=48, is_bigendian=rng.randrange(2), encoding=rng.choice(kinds)
    )
    if rng.random() < 0.7:
        setattr(message, rng.choice(["height", "width", "step"]), rng.choice(odd))
    message.data = rng.randbytes(rng.choice([0, 1, 575, 576, 4000]))
    return message


def damaged_messages(each: int, seed: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Messages of ROS with fields that contradict each other."""
    readers = {
        "cloud message": (damage_cloud_message, messages.to_cloud),
        "image message": (damage_image_message, messages.to_image),
        "depth message": (damage_image_message, messages.to_depth),
    }
    for name, (make, read) in readers.items():
        for number in range(each):
            message = make(random.Random(seed * 10**9 + number))
            yield name, lambda read=read, message=message: finite(read(message))


def recordings(
    folder_path: Path, each: int, seed: int, most_seconds: float, only: Sequence[str] = ()
) -> tuple[Counter[str], list[str]]:
    """Damage every kind of file of images or points `each` times, and messages of ROS."""
    wanted = ("photo", "depth", "rows", "cloud", "camera", "pose", "scale", "film")
    seeds = {
        name: read for name, read in write_seeds(folder_path).items() if name.startswith(wanted)
    }
    readers = seeds | write_recordings(folder_path)
    readers = {name: read for name, read in readers.items() if not only or name in only}
    counts: Counter[str] = Counter()
    defects = []
    for number, (name, case) in enumerate(damaged_messages(each, seed)):
        try:
            ended = judge(case, f"{name} {seed}-{number % each}")
        except Defect as defect:
            defects.append(str(defect))
            ended = "DEFECT"
        counts[f"{name}: {ended}"] += 1
    for name, reader in readers.items():
        content = (folder_path / name).read_bytes()
        path = folder_path / f"damaged-{name}"
        for number in range(each):
            signal.setitimer(signal.ITIMER_VIRTUAL, most_seconds)
            path.write_bytes(damage(random.Random(seed * 10**9 + number), content))
            try:
                ended = judge(lambda read=reader, path=path: read(path), f"{name} {seed}-{number}")
            except Defect as defect:
                defects.append(str(defect))
                ended = "DEFECT"
            counts[f"{name}: {ended}"] += 1
    return counts, defects


def campaign(
    folder_path: Path,
    cases: int,
    seed: int,
    peak: Callable[[], float],
    most_seconds: float,
) -> tuple[Counter[str], list[str], float]:
    """Run cases of all kinds.

    Gives how they ended, the defects, and the largest memory before the first of them.
    """
    torch.manual_seed(0)
    files, model = Files(folder_path), make_model()
    image = np.random.default_rng(1).integers(256, size=(*SIZE, 3), dtype=np.uint8)
    model.complete(image, [[1, 2, 3.0]])
    load(folder_path / "model.safetensors")
    before = peak()
    counts: Counter[str] = Counter()
    defects: list[str] = []
    kinds: dict[str, Callable[[random.Random], Callable[[], object]]] = {
        "files": files.case,
        "tensors": tensor_case,
        "arrays": lambda rng: array_case(rng, model, image),
    }
    for number in range(cases):
        kind = ("files", "files", "tensors", "tensors", "arrays")[number % 5]
        case = kinds[kind](random.Random(seed * 10**9 + number))
        start = time.process_time()
        try:
            ended = judge(case, f"case {seed}-{number}, {kind}")
            seconds = time.process_time() - start
            if seconds > most_seconds:
                raise Defect(f"case {seed}-{number}, {kind}: took {seconds:.0f} s")
        except Defect as defect:
            defects.append(str(defect))
            ended = "DEFECT"
        counts[f"{kind}: {ended}"] += 1
    return counts, defects, before
