# SPDX-License-Identifier: Apache-2.0
"""Accuracy, coverage and what is found when some of the points are wrong.

    python benchmarks/wrong_points.py indoor --data nyu --root nyu --frames 30

Kinds of wrong points: `x2.5` and `/2.5` of the right depth; `random` from 0.5 to 10 m; `object`,
the points of one object moved away by half its depth; `through`, the depth of the surface behind,
as a sensor beside the camera sees it past an edge (fewer where there are not enough edges). MAE is
relative to that of the same frames with right points and `robust=False`; so is CPU time, the
network's included. `found` is the share of the points off by more than 25 % that are named, `false`
that of the right points that are named.

    python benchmarks/wrong_points.py indoor --figure docs/wrong-points.jpg

draws the packaged rooms with wrong points instead, and prints what was found in them.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

import deepbasis
from deepbasis import plots
from deepbasis.data.packaged import packaged
from deepbasis.data.sample import Frames
from deepbasis.data.sources import SOURCES, Source, split_validation, subsample
from deepbasis.data.with_points import WithPoints
from deepbasis.model import Scene
from deepbasis.patterns import parse

Rows = np.ndarray
Kind = Callable[[Rows, Rows, int, np.random.Generator], Rows]
# A point is wrong if its depth is off by more than this.
LARGE = 0.25
# Validation frames of the pretrained models.
VALIDATION = 64


def times(factor: float) -> Kind:
    """Multiply the depth of some points."""

    def change(rows: Rows, depth: Rows, count: int, rng: np.random.Generator) -> Rows:
        rows[rng.permutation(len(rows))[:count], 2] *= factor
        return rows

    return change


def at_random(rows: Rows, depth: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Give some points any depth."""
    rows[rng.permutation(len(rows))[:count], 2] = rng.uniform(0.5, 10, count)
    return rows


def an_object(rows: Rows, depth: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Move the points around a point that are at about its depth."""
    centre = rows[rng.integers(len(rows))]
    apart = np.hypot(*(rows[:, :2] - centre[:2]).T)
    alike = np.abs(np.log(rows[:, 2] / centre[2])) < 0.15
    chosen = np.argsort(np.where(alike, apart, np.inf), kind="stable")[:count]
    rows[chosen[alike[chosen]], 2] *= 1.5
    return rows


def through(rows: Rows, depth: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Near an edge, take the depth behind it."""
    behind = np.array([window(depth, row).max() for row in rows])
    seen = np.flatnonzero(behind > 1.3 * rows[:, 2])
    chosen = rng.permutation(seen)[:count]
    rows[chosen, 2] = behind[chosen]
    return rows


def window(depth: Rows, row: Rows, radius: int = 10) -> Rows:
    """Depths around a point."""
    u, v = row[:2].astype(int)
    part: Rows = depth[max(v - radius, 0) : v + radius + 1, max(u - radius, 0) : u + radius + 1]
    return part


KINDS: dict[str, Kind] = {
    "x2.5": times(2.5), "/2.5": times(0.4), "random": at_random, "object": an_object,
    "through": through,
}  # fmt: skip


class Measured(NamedTuple):
    """One completion: errors, counts of points, and seconds."""

    mae: float
    coverage: float
    large: int
    found: int
    right: int
    false: int
    seconds: float


def measure(scene: Scene, rows: Rows, right: Rows, depth: Rows, *, robust: bool) -> Measured:
    """Complete a scene from points, and compare with the ground truth."""
    scene = replace(scene, memory=None)  # or a completion would be quicker for the one before it
    start = time.process_time()
    out = scene.complete(rows, robust=robust)
    seconds = time.process_time() - start
    known, (low, high) = depth > 0, out.interval(0.9)
    inside = (low <= depth) & (depth <= high)
    off = np.abs(np.log(rows[:, 2] / right[:, 2]))
    named = {(one.u, one.v) for one in out.outliers}
    wrong = np.array([(u, v) in named for u, v in rows[:, :2]])
    large, same = off > np.log1p(LARGE), off == 0
    error = np.abs(out.depth - depth)[known].mean()
    return Measured(
        error, inside[known].mean(), large.sum(), (large & wrong).sum(), same.sum(),
        (same & wrong).sum(), seconds,
    )  # fmt: skip


def draw_examples(model: deepbasis.Completer, path: Path) -> None:
    """The packaged rooms with 300 points, of which 15 are 2.5 times too far and 15 anywhere."""
    rooms = packaged("rooms")
    figure = Figure(figsize=(16, 3 * len(rooms)), layout="constrained")
    for i, axes in enumerate(figure.subplots(len(rooms), 4)):
        sample, rng = rooms[i], np.random.default_rng(i)
        depth = sample.depth[0].numpy()
        v, u = np.nonzero(depth)
        rows = np.stack([u, v, depth[v, u]], 1)[rng.permutation(len(v))[:300]].astype(np.float64)
        rows[:15, 2] *= 2.5
        rows[15:30] = at_random(rows[15:30], depth, 15, rng)
        out = model.complete(sample.image, rows)
        wrong = {(one.u, one.v) for one in out.outliers}
        flagged = np.array([(u, v) in wrong for u, v in rows[:, :2]])
        error = torch.from_numpy(np.where(depth > 0, np.abs(out.depth - depth), 0))
        print(
            f"room {i}: {flagged[:30].sum()} of 30 wrong points and {flagged[30:].sum()} of 270 "
            f"right ones are left out; MAE {error.mean():.3f} m"
        )
        bounds = tuple(np.quantile(depth[depth > 0], [0.01, 0.99]).tolist())
        largest = 0.0, float(np.quantile(out.std, 0.98))
        points = torch.from_numpy(rows)
        plots.show_points(axes[0], sample.image, points, bounds, torch.tensor(sorted(wrong)))
        for ax, values, title, colours, limits in (
            (axes[1], torch.from_numpy(out.depth), "depth (m)", plots.DEPTH_COLOURS, bounds),
            (axes[2], torch.from_numpy(out.std), "std (m)", plots.ERROR_COLOURS, largest),
            (axes[3], error, "error (m)", plots.ERROR_COLOURS, largest),
        ):
            plots.show_map(ax, values, title, colours, limits)
    plots.save(figure, path)


def open_frames(given: argparse.Namespace) -> Frames:
    """Frames of the test split, or validation frames of the training split."""
    worlds = given.data in ("rooms", "roads")
    source = Source(given.data, given.root, given.frames if worlds else None)
    if not given.validation:
        return subsample(source.open("test"), given.frames)
    train = source.open("train")
    return subsample(train if worlds else split_validation(train, VALIDATION)[1], given.frames)


def run(model: deepbasis.Completer, frames: WithPoints, given: argparse.Namespace) -> None:
    """Print the rows of one number of points."""
    cases = [("none", 0.0), *((kind, share) for kind in given.kinds for share in given.shares)]
    clean, network = [], []
    found: dict[tuple[str, float, bool], list[Measured]] = {}
    for i in range(len(frames)):
        sample = frames[i]
        depth, sparse = sample.depth[0].numpy(), sample.sparse[0].numpy()
        start = time.process_time()
        scene = model.prepare(sample.image)
        network.append(time.process_time() - start)
        v, u = np.nonzero(sparse)
        right = np.stack([u, v, sparse[v, u]], 1).astype(np.float64)
        clean.append(measure(scene, right, right, depth, robust=False))
        for kind, share in cases:
            rows = right.copy()
            if kind in KINDS:
                count = max(round(share * len(rows)), 1)
                rows = KINDS[kind](rows, depth, count, np.random.default_rng(i))
            for robust in (False, True) if given.compare else (True,):
                one = measure(scene, rows, right, depth, robust=robust)
                found.setdefault((kind, share, robust), []).append(one)
    mae, before = np.mean([one.mae for one in clean]), np.median(network)
    before += np.median([one.seconds for one in clean])
    coverage = np.mean([one.coverage for one in clean])
    print(f"{frames.pattern} points, right, not robust: MAE {mae:.4f} m, coverage {coverage:.1%}")
    for kind, share in cases:
        mean = Measured(*np.mean(found[kind, share, True], axis=0))
        others = [x.mae for x in found.get((kind, share, False), [])]
        plain = f"{np.mean(others) / mae:.2f}" if others else ""
        seconds = np.median(network) + np.median([x.seconds for x in found[kind, share, True]])
        share_found = f"{mean.found / mean.large:.1%}" if mean.large else ""
        print(
            f"| {frames.pattern} | {kind} | {share:.0%} | {mean.mae / mae:.3f} | "
            f"{plain} | {mean.coverage:.1%} | {share_found} | "
            f"{mean.false / mean.right:.2%} | {seconds / before:.2f} |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", choices=SOURCES, default="nyu")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--points", nargs="+", default=["500", "50"])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--shares", nargs="*", type=float, default=[0.01, 0.05, 0.1, 0.3])
    parser.add_argument("--validation", action="store_true", help="use validation frames")
    parser.add_argument("--compare", action="store_true", help="also measure `robust=False`")
    parser.add_argument("--figure", type=Path, help="draw the packaged rooms to this file")
    given = parser.parse_args()
    model = deepbasis.load(given.model)
    if given.figure is not None:
        draw_examples(model, given.figure)
        return
    frames = open_frames(given)
    print(f"`{given.model}`, {len(frames)} frames of {given.data}")
    print("| Points | Kind | Wrong | MAE | MAE, not robust | Coverage | Found | False | Time |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for points in given.points:
        run(model, WithPoints(frames, parse(points)), given)


if __name__ == "__main__":
    main()
