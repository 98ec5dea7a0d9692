# SPDX-License-Identifier: Apache-2.0
"""What the check without ground truth says of good and of corrupt points, and noisy points.

    python benchmarks/check.py verdicts indoor --data nyu --root nyu --frames 10
    python benchmarks/check.py rescale outdoor --data kitti --root kitti --points sensor
    python benchmarks/check.py noise indoor --data nyu --root nyu --frames 10

`verdicts`: how often points are contradicted, and how often their cause is named. `rescale`:
coverage of the 90 % interval of the ground truth, and of the held-out points, before and after
conformal intervals of each frame. `noise`: MAE and coverage if depths are multiplied by
exp(noise), with and without telling sigma.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from wrong_points import open_frames

import deepbasis
from deepbasis.data.sources import SOURCES
from deepbasis.data.with_points import WithPoints
from deepbasis.model import Scene
from deepbasis.patterns import parse
from deepbasis.self_check import check

Rows = np.ndarray
Frame = tuple[Scene, Rows, Rows]
LEVEL = 0.9
NOISES = (0.01, 0.05, 0.2)


def each_frame(given: argparse.Namespace, points: str) -> Iterator[Frame]:
    """The scene, its ground truth and its points."""
    pattern = None if points == "sensor" else parse(points)
    model, frames = deepbasis.load(given.model), WithPoints(open_frames(given), pattern)
    for i in range(len(frames)):
        sample = frames[i]
        sparse = sample.sparse[0].numpy()
        v, u = np.nonzero(sparse)
        rows = np.stack([u, v, sparse[v, u]], 1).astype(np.float64)
        yield model.prepare(sample.image), sample.depth[0].numpy(), rows


def contaminate(rows: Rows, share: float = 0.1) -> Rows:
    """Multiply some depths."""
    wrong = rows.copy()
    wrong[np.random.default_rng(0).permutation(len(rows))[: round(share * len(rows))], 2] *= 2.5
    return wrong


def zoom(rows: Rows, width: int, height: int) -> Rows:
    """Points of a camera of a longer lens."""
    centre = np.array([(width - 1) / 2, (height - 1) / 2, 0])
    return (rows - centre) * [1.25, 1.25, 1] + centre


# What is done to the points of an image of a width and height, and a word of the cause.
CORRUPTIONS: dict[str, tuple[Callable[[Rows, int, int], Rows], str]] = {
    "good": (lambda rows, w, h: rows, ""),
    "u and v swapped": (lambda rows, w, h: rows[:, [1, 0, 2]], "swapped"),
    "u mirrored": (lambda rows, w, h: rows * [-1, 1, 1] + [w - 1, 0, 0], "mirrored"),
    "v mirrored": (lambda rows, w, h: rows * [1, -1, 1] + [0, h - 1, 0], "mirrored"),
    "shifted by 20 pixels": (lambda rows, w, h: rows + np.array([20, 0, 0]), "shifted"),
    "depth x 4": (lambda rows, w, h: rows * [1, 1, 4], "too large"),
    "10 % wrong": (lambda rows, w, h: contaminate(rows), "look wrong"),
    "zoomed by 1.25": (zoom, "intrinsics"),
}  # fmt: skip


def inside(rows: Rows, width: int, height: int) -> Rows:
    """Points that are in the image."""
    kept = (rows[:, :2] >= 0).all(1) & (rows[:, 0] <= width - 1) & (rows[:, 1] <= height - 1)
    return rows[kept]


def verdicts(given: argparse.Namespace) -> None:
    """Print how often each kind of points is contradicted."""
    print("| Points | Corruption | Contradicted | Cause named | Too few to tell |")
    print("|---|---|---:|---:|---:|")
    for points in given.points:
        found: dict[str, list[tuple[bool, bool, bool]]] = {}
        before: Rows | None = None
        for scene, depth, rows in each_frame(given, points):
            height, width = depth.shape
            cases = {name: one(rows, width, height) for name, (one, _) in CORRUPTIONS.items()}
            if before is not None:
                cases["of another image"] = before
            before = rows
            for name, moved in cases.items():
                report = check(scene, scene.complete(inside(moved, width, height)))
                word = CORRUPTIONS.get(name, (None, "another image or camera"))[1]
                contradicted = report.verdict == "contradicted"
                named = contradicted and word != "" and word in (report.cause or "")
                few = report.verdict == "too few points to tell"
                found.setdefault(name, []).append((contradicted, named, few))
                if given.verbose:
                    print(f"{name}: {report.statement}", flush=True)
        for name, rows_of in found.items():
            shares = " | ".join(f"{share:.0%}" for share in np.mean(rows_of, 0))
            print(f"| {points} | {name} | {shares} |", flush=True)


def rescale(given: argparse.Namespace) -> None:
    """Print coverage before and after conformal intervals."""
    print("| Points | Frames | Before | After | Held out, before | Held out, after |")
    print("|---|---:|---:|---:|---:|---:|")
    for points in given.points:
        found = []
        for scene, depth, rows in each_frame(given, points):
            answer = scene.complete(rows)
            report = check(scene, answer)
            table = report.table()
            after = answer.with_conformal(table)
            own, std = report.half[2], report.half[1]
            wide = table.half_width(own, std, report.distance, LEVEL)
            held = [(np.abs(report.error) <= half).mean() for half in (own, wide)]
            found.append([covered(answer, depth), covered(after, depth), *held])
            if given.verbose:
                print(" ".join(f"{x:.1%}" for x in found[-1]), flush=True)
        shares = " | ".join(f"{share:.1%}" for share in np.mean(found, 0))
        print(f"| {points} | {len(found)} | {shares} |", flush=True)


def covered(answer: deepbasis.Completion, depth: Rows) -> float:
    """Share of the ground truth inside the interval."""
    low, high = answer.interval(LEVEL)
    return float(((low <= depth) & (depth <= high))[depth > 0].mean())


def noise(given: argparse.Namespace) -> None:
    """Print MAE and coverage from noisy points."""
    print("| Points | Noise | MAE | Coverage | MAE, sigma given | Coverage, sigma given |")
    print("|---|---:|---:|---:|---:|---:|")
    for points in given.points:
        found: dict[float, list[list[float]]] = {}
        for i, (scene, depth, rows) in enumerate(each_frame(given, points)):
            for level in NOISES:
                drawn = np.random.default_rng(i).normal(size=len(rows))
                noisy = rows * np.stack([*np.ones((2, len(rows))), np.exp(level * drawn)], 1)
                told = np.column_stack([noisy, level * noisy[:, 2]])
                numbers = []
                for given_rows in (noisy, told):
                    answer = scene.complete(given_rows)
                    error = np.abs(answer.depth - depth)[depth > 0].mean()
                    numbers += [float(error), covered(answer, depth)]
                found.setdefault(level, []).append(numbers)
        for level, rows_of in found.items():
            a, b, c, d = np.mean(rows_of, 0)
            print(f"| {points} | {level:.0%} | {a:.4f} | {b:.1%} | {c:.4f} | {d:.1%} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"verdicts": verdicts, "rescale": rescale, "noise": noise}
    parser.add_argument("part", choices=parts)
    parser.add_argument("model")
    parser.add_argument("--data", choices=SOURCES, default="nyu")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--points", nargs="+", default=["500"])
    parser.add_argument("--validation", action="store_true", help="use validation frames")
    parser.add_argument("--verbose", action="store_true", help="print each frame, too")
    given = parser.parse_args()
    parts[given.part](given)


if __name__ == "__main__":
    main()
