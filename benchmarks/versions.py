# SPDX-License-Identifier: Apache-2.0
"""Speed of `complete` with the model `indoor`, and that of another revision beside it in one run.

A packaged room, 320x240 pixels. A prepared scene is completed from other points each time, and
then once more with one point more. Each version runs in a process of its own with one thread, and
the processes take turns. Times are CPU times, so that a busy machine affects them less. The last
line is the largest memory of each process while it runs `complete`, with Python, PyTorch and the
model. With `--against`, the revision is checked out to a temporary git worktree. Example:

    python benchmarks/versions.py --against 3334108   # version 0.1
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent.parent
POINTS = (0, 500, 3840)


def answer() -> None:
    """Time what each line of the input names, in the version that is imported; for a child."""
    import numpy as np
    import torch
    from PIL import Image

    from deepbasis.model import load

    torch.set_num_threads(1)
    folder = HERE / "src" / "deepbasis" / "samples" / "rooms"
    image = np.array(Image.open(next((folder / "rgb").iterdir())).resize((320, 240)))
    depth = Image.open(next((folder / "depth").iterdir())).resize(
        (320, 240), Image.Resampling.NEAREST
    )
    metres = np.asarray(depth, np.float64) / float((folder / "scale.txt").read_text())
    model = load("indoor")
    rng, measured = np.random.default_rng(0), np.flatnonzero(metres > 0)
    first = rng.permutation(measured)
    scene: Any = None
    last: Any = None
    for line in sys.stdin:
        what, count = line.rsplit(maxsplit=1)
        if what == "memory":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(json.dumps(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)), flush=True)
            continue
        at = first[: int(count)]
        if what == "scene":
            scene = model.prepare(image)
            scene.complete(np.stack([at % 320, at // 320, metres.flat[at]], 1))
            at = last = rng.choice(measured, int(count), replace=False)
        elif what == "one more":
            at = np.append(last, rng.choice(np.setdiff1d(measured, last)))
        v, u = np.divmod(at, 320)
        points = np.stack([u, v, metres[v, u]], 1)
        complete = partial(model.complete, image) if what == "complete" else scene.complete
        start = time.process_time()
        out = complete(points)
        assert out.depth.shape == out.std.shape
        print(json.dumps(1e3 * (time.process_time() - start)), flush=True)


class Version:
    """A process that runs the code of one folder."""

    def __init__(self, root: Path) -> None:
        path = os.pathsep.join(str(root / folder) for folder in ("src", "models/src"))
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, what: str, points: int = 0) -> float:
        """Milliseconds of one call, or MB of `memory`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {points}\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))


def compare(new: Version, old: Version | None, rounds: int) -> None:
    """Print the table."""
    whats = ("complete", "scene", "one more")
    calls = {(what, points): new for what in whats[:1] for points in POINTS}
    calls |= {(what, points): new for points in POINTS for what in whats[1:]}
    taken: dict[Any, list[float]] = {}
    memory: list[float] = []
    for turn in range(rounds + 1):
        for (what, points), version in calls.items():
            if what == "scene" and not memory:
                memory = [one.ask("memory") for one in (new, old) if one]
            pairs = [("new", version)]
            if old is not None and what == "complete":
                pairs.append(("old", old))
            for name, one in pairs:
                ms = one.ask(what, points)
                if turn:  # the first is to warm up
                    taken.setdefault((name, what, points), []).append(ms)
    print("CPU milliseconds of one thread, median; 320x240, `indoor`")
    print("points | complete | scene.complete  / complete | one point more  / complete"
          + (" | --against  ratio" if old else ""))  # fmt: skip
    for points in POINTS:
        whole, scene, more = (median(taken["new", what, points]) for what in whats)
        line = f"{points:6d} | {whole:8.1f} | {scene:14.1f} {scene / whole:11.2f}"
        line += f" | {more:14.1f} {more / whole:11.2f}"
        if old is not None:
            other = median(taken["old", "complete", points])
            line += f" | {other:9.1f} {whole / other:6.2f}"
        print(line)
    names = ("this version", "--against")
    peaks = ", ".join(f"{name} {one:.0f}" for name, one in zip(names, memory, strict=False))
    print(f"peak memory during `complete` (MB): {peaks}")


def main() -> None:
    """Run the versions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", help="a git revision")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        answer()
        return
    if options.against is None:
        compare(Version(HERE), None, options.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), options.against], check=True)
        try:
            compare(Version(HERE), Version(tree), options.rounds)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    main()
