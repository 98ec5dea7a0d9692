# SPDX-License-Identifier: Apache-2.0
"""Whole-map uncertainty on frames of NYU: calibration of distances and regions, and next points.

Tables: what samples cost; coverage of the 90 % intervals of distances between random pixels and of
the mean depth of random rectangles, with the joint posterior and as if pixels were independent; the
nearest depth of random rectangles; and the error after measuring chosen, random and evenly spread
pixels.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import deepbasis
from deepbasis import Completion, joint, latent
from deepbasis.data.sample import Sample
from deepbasis.data.sources import Source, split_validation, subsample
from deepbasis.model import Completer, Scene
from deepbasis.patterns import parse

Array = npt.NDArray[np.float64]

LEVEL = 0.9
POINTS, NEAREST_POINTS = ("500", "50", "12"), ("300", "50", "12")
PAIRS, REGIONS = 1000, 500
# Sides of the random rectangles, as shares of those of the image.
SIDES = (0.04, 0.5)
# Pixels between near pairs, at most.
NEAR = 10
NEXT = (5, 10, 20)
# Validation frames of the pretrained models.
VALIDATION = 64
# Numbers of random and evenly spread points between which the number for the same error is
# interpolated.
CURVE = (3, 4, 5, 7, 10, 14, 20, 28, 40, 57)
# Draws of the mean of a region as if its pixels were independent; its interval is narrow.
FEW_DRAWS = 64


def rows_at(frame: Sample, places: npt.NDArray[Any]) -> Array:
    """Measurements at the places u v, or at the nearest pixels that have one."""
    depth = frame.depth[0].numpy()
    row, column = np.nonzero(depth > 0)
    near = [int(((column - u) ** 2 + (row - v) ** 2).argmin()) for u, v in places]
    return np.stack([column[near], row[near], depth[row[near], column[near]]], 1).astype(float)


def draw_independent(out: Completion, chosen: npt.NDArray[np.bool_], draws: int) -> torch.Tensor:
    """Depths of some pixels with the marginals of the prediction, each for itself."""
    where = torch.from_numpy(chosen)
    mean, var = torch.from_numpy(out.latent_mean)[where], torch.from_numpy(out.latent_var)[where]
    normal = torch.randn(draws, len(mean), generator=torch.Generator().manual_seed(0))
    return latent.to_depth(mean + out.error_distribution.at(where).from_normal(normal, var))


def contains(found: joint.Quantity, true: float) -> bool:
    """Whether the interval does."""
    return found.low <= true <= found.high


def check_pairs(
    out: Completion, frame: Sample, count: int, rng: np.random.Generator, reach: float
) -> Iterator[tuple[bool, bool, float]]:
    """For pairs of pixels at most `reach` apart in rows and columns: whether the joint interval
    contains the true distance, whether the independent one does, and the width of the first.
    """
    depth = frame.depth[0].numpy()
    row, column = np.nonzero(depth > 0)
    rays = np.linalg.inv(frame.intrinsics.numpy()) @ np.stack([column, row, np.ones(len(row))])
    places = rays.T * depth[row, column, None]
    for _ in range(count):
        a = rng.integers(len(row))
        near = np.maximum(abs(row - row[a]), abs(column - column[a])) <= reach
        near[a] = False
        b = rng.choice(near.nonzero()[0])
        ends = (column[a], row[a]), (column[b], row[b])
        found = out.distance(*ends, frame.intrinsics, level=LEVEL)
        drawn = []
        for i in (a, b):
            chosen = np.zeros(depth.shape, dtype=bool)
            chosen[row[i], column[i]] = True
            drawn.append(draw_independent(out, chosen, joint.DRAWS))
        # The two draws of a single pixel have the same seed.
        mix = torch.randperm(joint.DRAWS, generator=torch.Generator().manual_seed(1))
        one, other = (torch.from_numpy(rays[:, i]) for i in (a, b))
        apart = drawn[0].double() * one - drawn[1][mix].double() * other
        alone = joint.Quantity.of(apart.norm(dim=-1), LEVEL)
        true = float(np.linalg.norm(places[a] - places[b]))
        yield contains(found, true), contains(alone, true), (found.high - found.low) / true


def draw_regions(
    depth: npt.NDArray[Any], count: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.bool_]]:
    """Random rectangles, where there is a ground truth."""
    for _ in range(count):
        mask = np.zeros(depth.shape, dtype=bool)
        while not mask.any():
            lines = []
            for n in depth.shape:
                side = max(int(n * np.exp(rng.uniform(*np.log(SIDES)))), 2)
                first = rng.integers(n - side + 1)
                lines.append(slice(first, first + side))
            mask[tuple(lines)] = depth[tuple(lines)] > 0
        yield mask


def check_regions(
    out: Completion, frame: Sample, count: int, rng: np.random.Generator
) -> Iterator[tuple[bool, bool, float]]:
    """For each region whether the two intervals contain the mean depth, and the joint's width."""
    depth = frame.depth[0].numpy()
    for mask in draw_regions(depth, count, rng):
        true = float(depth[mask].mean())
        found = out.size(mask, frame.intrinsics, level=LEVEL).depth
        alone = joint.Quantity.of(draw_independent(out, mask, FEW_DRAWS).mean(1), LEVEL)
        yield contains(found, true), contains(alone, true), (found.high - found.low) / true


def complete_each(
    model: Completer, frames: list[Sample], points: str
) -> Iterator[tuple[Completion, Sample, np.random.Generator]]:
    """Each frame completed from random points, and a generator of its own."""
    for i, frame in enumerate(frames):
        draw = torch.Generator().manual_seed(i)
        sparse = parse(points)(frame.depth, frame.image, frame.intrinsics, draw)
        out = model.complete(frame.image.permute(1, 2, 0).numpy(), sparse[0].numpy())
        yield out, frame, np.random.default_rng(i)


def nearest(model: Completer, frames: list[Sample]) -> None:
    """Probability of anything closer than the nearest depth of a region, and its median."""
    print(f"nearest depth of {REGIONS} regions at each number of points: probability_closer at the")
    print("true one, mean (0.5 if calibrated), and shares of regions with less than 5 % and more")
    print("than 95 %; drawn one divided by the true one, median")
    print("points | mean  < 5 %  > 95 % | drawn / true")
    for word in NEAREST_POINTS:
        found = []
        for out, frame, rng in complete_each(model, frames, word):
            depth = frame.depth[0].numpy()
            for mask in draw_regions(depth, -(-REGIONS // len(frames)), rng):
                true = float(depth[mask].min())
                drawn = out.joint.nearest(mask)
                closer = float((drawn < true).double().mean())
                found.append((closer, float(drawn.median()) / true))
        at, ratio = np.array(found).T
        low, high = np.mean(at < 0.05), np.mean(at > 0.95)
        print(f"{word:>6} | {at.mean():.2f} {low:6.1%} {high:7.1%} | {np.median(ratio):.3f}")


def coverage(model: Completer, frames: list[Sample]) -> None:
    """Coverage of distances and of regions, joint and independent."""
    print(
        f"coverage of {LEVEL:.0%} intervals, {PAIRS} pairs and {REGIONS} regions at each number",
        end="",
    )
    print("; widths are medians, relative to the true value; near pairs are at most", end=" ")
    print(f"{NEAR} pixels apart in rows and columns")
    print("points |    distance: joint independent  width", end=" | ")
    print("near pairs: joint independent  width |     region: joint independent  width")
    for word in POINTS:
        rows: dict[str, list[tuple[bool, bool, float]]] = defaultdict(list)
        for out, frame, rng in complete_each(model, frames, word):
            pairs = -(-PAIRS // len(frames))
            rows["pairs"] += check_pairs(out, frame, pairs, rng, np.inf)
            rows["near pairs"] += check_pairs(out, frame, pairs, rng, NEAR)
            rows["regions"] += check_regions(out, frame, -(-REGIONS // len(frames)), rng)
        said = []
        for name in ("pairs", "near pairs", "regions"):
            both, alone, width = zip(*rows[name], strict=True)
            said.append(f"{np.mean(both):17.1%} {np.mean(alone):11.1%} {np.median(width):6.1%}")
        print(f"{word:>6} | {' | '.join(said)}", flush=True)


def evenly(count: int, size: tuple[int, int]) -> Array:
    """About a grid: `count` places u v in rows of nearly equal length."""
    height, width = size
    rows = max(round((count * height / width) ** 0.5), 1)
    lengths = [len(part) for part in np.array_split(np.arange(count), rows)]
    return np.array(
        [
            ((i + 0.5) * width / n, (j + 0.5) * height / rows)
            for j, n in enumerate(lengths)
            for i in range(n)
        ]
    )


def next_points(model: Completer, frames: list[Sample]) -> None:
    """MAE after chosen, random and evenly spread points, starting from none."""
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for i, frame in enumerate(frames):
        scene = model.prepare(frame.image.permute(1, 2, 0).numpy())
        depth = frame.depth[0].numpy()
        height, width = depth.shape
        rng = np.random.default_rng(i)
        known = np.stack(np.nonzero(depth > 0)[::-1], 1)
        any_order = known[rng.permutation(len(known))]
        planned = scene.complete().next_points(max(NEXT))
        asked = ask_again(scene, frame, max(NEXT))
        for count in CURVE:
            places: dict[str, npt.NDArray[Any]] = {"random": any_order[:count]}
            places["grid"] = evenly(count, (height, width))
            if count in NEXT:
                places |= {"planned": planned[:count], "asked again": asked[:count]}
            for name, some in places.items():
                out = scene.complete(rows_at(frame, some))
                errors[name, count].append(float(np.abs(out.depth - depth)[depth > 0].mean()))
    mean = {key: float(np.mean(values)) for key, values in errors.items()}
    print(f"MAE (m) after some points, {len(frames)} frames; chosen / random: points chosen by")
    print("asking again, divided by the random points that give the same MAE; / grid: likewise")
    print("points | planned  asked again   random     grid | chosen / random  chosen / grid")
    for count in NEXT:
        row = [mean[name, count] for name in ("planned", "asked again", "random", "grid")]
        said = f"{row[0]:7.3f} {row[1]:12.3f} {row[2]:8.3f} {row[3]:8.3f}"
        shares = [
            count / points_for(row[1], [mean[name, n] for n in CURVE])
            for name in ("random", "grid")
        ]
        print(f"{count:6d} | {said} | {shares[0]:15.2f} {shares[1]:14.2f}")


def points_for(error: float, curve: list[float]) -> float:
    """Number of points for an error, from the errors at the numbers of `CURVE`."""
    falling = np.minimum.accumulate(curve)
    return float(np.exp(np.interp(-error, -falling, np.log(CURVE))))


def ask_again(scene: Scene, frame: Sample, count: int) -> Array:
    """Measure the best pixel, complete, and ask for the next."""
    rows = np.zeros((0, 3))
    while len(rows) < count:
        rows = np.concatenate([rows, rows_at(frame, scene.complete(rows).next_points(1))])
    return rows[:, :2]


def speed(model: Completer, frame: Sample) -> None:
    """CPU seconds of a completion and of 16 samples, which take turns."""
    image = torch.nn.functional.interpolate(frame.image[None].float(), (240, 320))[0].byte()
    rng = np.random.default_rng(0)
    points = np.stack([rng.integers(0, n, 500) for n in (320, 240)] + [rng.uniform(2, 4, 500)], 1)
    pixels = image.permute(1, 2, 0).numpy()
    taken = []
    for _ in range(4):
        times = [time.process_time()]
        out = model.complete(pixels, points)
        times.append(time.process_time())
        out.sample(16, 0)
        taken.append(np.diff([*times, time.process_time()]))
    complete, sample = np.median(taken[1:], 0)
    print("320x240, 500 points, CPU time: ", end="")
    print(f"complete {complete:.3f} s, 16 samples {sample:.3f} s, ratio {sample / complete:.2f}")


def read_frames(root: Path, count: int, *, validation: bool) -> list[Sample]:
    """Evenly spaced frames of NYU's test split, or of those that the models were calibrated on."""
    source = Source("nyu", root)
    known = source.open("train" if validation else "test")
    frames = subsample(split_validation(known, VALIDATION)[1] if validation else known, count)
    return [frames[i] for i in range(len(frames))]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of NYU Depth V2")
    parser.add_argument("--model", default="indoor")
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--validation", action="store_true", help="use validation frames")
    parts = {"coverage": coverage, "nearest": nearest, "next": next_points}
    parser.add_argument("--only", choices=("speed", *parts), nargs="*")
    chosen = parser.parse_args()
    frames = read_frames(chosen.root, chosen.frames, validation=chosen.validation)
    model = deepbasis.load(chosen.model)
    wanted = chosen.only or ("speed", *parts)
    if "speed" in wanted:
        speed(model, frames[0])
    for name, show in parts.items():
        if name in wanted:
            show(model, frames)


if __name__ == "__main__":
    main()
