# SPDX-License-Identifier: Apache-2.0
"""Cases of all kinds, one after the other; `benchmarks/campaign.py` watches this process.

`python worker.py SEED FIRST STEP LAST` runs the cases FIRST, FIRST + STEP, ... before LAST. It
prints a line of JSON before each case, with its number and kind, and one after it: how it ended,
and what it took.
"""

import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from calls import Calls
from cases import Defect, Files, array_case, judge, tensor_case

from models import make_model

# Files by what they hold, and how many of 100 cases each takes.
FILES = {
    "images": (6, ["photo.png", "photo.jpg"]),
    "depth maps (PNG, TIFF, PFM)": (8, ["depth.png", "depth.tif", "depth.pfm"]),
    "NPY and NPZ": (7, ["depth.npy", "depth.npz", "rows.npy"]),
    "tables of points (CSV)": (5, ["rows.csv"]),
    "clouds (PLY, PCD, XYZ, BIN)": (8, ["cloud.ply", "cloud.pcd", "cloud.xyz", "cloud.bin"]),
    "LAS, LAZ and E57": (3, ["cloud.las", "cloud.laz", "cloud.e57"]),
    "manifests": (2, ["frames.jsonl", "frames.parquet"]),
    "cameras and poses": (6, ["camera.txt", "camera.json", "pose.txt", "pose.json", "scale.txt"]),
    "trajectories and TUM lists": (4, ["poses.txt", "rgb.txt"]),
    "COLMAP": (6, [f"{part}.{end}" for part in ("cameras", "images", "points3D")
                   for end in ("txt", "bin")]),
    "transforms.json": (4, ["transforms.json"]),
    "bags (ROS 1, MCAP, SQLite)": (5, ["drive.bag", "drive.mcap", "drive.db3"]),
    "files of KITTI and NYU": (2, ["calib.txt", "split.json", "splits.mat"]),
    "confidence maps": (2, ["trust.png"]),
    "conformal tables": (2, ["table.json"]),
    "videos (MP4, AVI, MKV)": (2, ["film.mp4", "film.avi", "film.mkv"]),
    "models (safetensors) and encoders": (1, ["model.safetensors", "encoder.pth"]),
}  # fmt: skip
CALLS = {
    "`complete` and points": 5, "mathematics on tensors": 11, "`sample`, `distance`, ...": 5,
    "scenes, options and `--check`": 1, "`stream`": 2, "third-party networks": 1, "page": 2,
    "`deepbasis complete`": 0.5,
}  # fmt: skip


def schedule(seed: int, number: int) -> str:
    """The kind of a case."""
    weights = {kind: weight for kind, (weight, _) in FILES.items()} | CALLS
    return random.Random(seed * 10**9 + number).choices(list(weights), list(weights.values()))[0]


def peak() -> float:
    """Largest memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_kinds(folder: Path) -> dict[str, Callable[[random.Random], Callable[[], object]]]:
    """What makes a case of each kind."""
    files, model = Files(folder), make_model()
    calls = Calls(folder, model)
    own = (
        lambda rng: array_case(rng, model, calls.image), tensor_case, calls.joint, calls.scenes,
        calls.stream, calls.foreign, calls.page, calls.command,
    )  # fmt: skip
    kinds: dict[str, Callable[[random.Random], Callable[[], object]]] = {
        kind: lambda rng, names=names: files.case(rng, names) for kind, (_, names) in FILES.items()
    }
    return kinds | dict(zip(CALLS, own, strict=True))


def say(**line: object) -> None:
    """A line for who watches."""
    os.write(said, json.dumps(line).encode() + b"\n")


def run(seed: int, numbers: range) -> None:
    """Run cases."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        kinds = make_kinds(Path(folder))
        for number in numbers:
            kind = schedule(seed, number)
            say(number=number, kind=kind)
            # Another seed than that of the kind, which would determine what is drawn first.
            case = kinds[kind](random.Random(f"{seed}-{number}"))
            before, start, what = peak(), time.process_time(), ""
            try:
                ended = judge(case, f"case {seed}-{number}")
            except Defect as defect:
                ended, what = "else", str(defect)
            seconds, memory = time.process_time() - start, peak() - before
            say(number=number, kind=kind, ended=ended, what=what, seconds=round(seconds, 3),
                memory=round(memory, 1), peak=round(peak()))  # fmt: skip


if __name__ == "__main__":
    said = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not for who watches
    seed, first, step, last = map(int, sys.argv[1:])
    run(seed, range(first, last, step))
