# SPDX-License-Identifier: Apache-2.0
"""Sequences against single frames: flicker, error and coverage on a video with ground truth.

    python benchmarks/stream.py --root FOLDER --intrinsics 258.7 258.3 159.3 127.7

FOLDER holds rgb/NAME.jpg and depth/NAME.png in millimetres, consecutive frames by name, such as a
sequence of TUM RGB-D. Flicker is the mean absolute change of log depth of the same places from one
frame to the next, less that of the ground truth. Where a pixel is in the next frame follows from
the camera's motion, which is estimated from tracks and from the ground truth; with --poses, points
are carried over by the same motion.

    python benchmarks/stream.py --learn

prints the evidence of the points of each frame, given those of the frames before it, for several
values of the two shares of the variance that are new in a frame: SCALE_CHANGE and SHAPE_CHANGE of
`deepbasis.stream`. Frames are those of rendered rooms.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

import deepbasis
from deepbasis import fit, stream
from deepbasis.data.worlds import render_walk
from deepbasis.model import Completer
from deepbasis.points import to_points
from deepbasis.result import Completion
from deepbasis.stream import KNOWN_SCALE, Stream
from deepbasis.tracking import lattice, to_grey, track

Array = npt.NDArray[Any]

# Pixels of each frame whose depth is compared with the next frame's.
COMPARED = 4000
# Depths that differ by more than this share are of two surfaces.
SAME_SURFACE = 0.03
LEVEL = 0.9
# Shares that --learn tries.
SCALE_CHANGES, SHAPE_CHANGES = (0.0003, 0.001, 0.003, 0.01, 0.03), (0.01, 0.03, 0.06, 0.12, 0.25)


class Recorded(NamedTuple):
    """A frame with its ground truth."""

    image: Array
    depth: Array
    camera: Array
    pose: Array | None = None


def read_frames(root: Path, intrinsics: list[float]) -> Iterator[Recorded]:
    """Frames of a folder, in order."""
    fx, fy, cx, cy = intrinsics
    camera = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    for path in sorted((root / "rgb").iterdir()):
        depth = np.asarray(Image.open(root / "depth" / f"{path.stem}.png")) / 1000
        yield Recorded(np.array(Image.open(path).convert("RGB")), depth, camera)


def render_frames(index: int, seconds: float, rate: float = 10.0) -> Iterator[Recorded]:
    """Frames of a rendered room."""
    for frame in render_walk(7, index, (240, 320), seconds, rate):
        fx, fy, cx, cy = frame.intrinsics
        camera = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
        yield Recorded(frame.image, frame.depth, camera, frame.pose)


def lift(frame: Recorded, places: Array) -> Array:
    """Points in the camera's frame at rows and columns, NaN where depth is unknown."""
    row, column = places.round().astype(int).T
    depth = frame.depth[row, column].astype(float)
    rays = np.linalg.solve(frame.camera, np.stack([column, row, np.ones(len(row))]))
    return (rays * np.where(depth > 0, depth, np.nan)).T


def grey(frame: Recorded) -> torch.Tensor:
    return to_grey(torch.from_numpy(frame.image.copy()).permute(2, 0, 1)[None])


def find_motion(one: Recorded, other: Recorded) -> Array | None:
    """Transform of points from one camera's frame to the next one's, from tracks and depth."""
    if one.pose is not None and other.pose is not None:
        return np.linalg.solve(other.pose, one.pose)
    height, width = one.depth.shape
    tracks = track(grey(one), grey(other), lattice((height, width), 1200))
    size = np.array(one.depth.shape) - 1
    a = lift(one, tracks.before.numpy().clip(0, size))
    b = lift(other, tracks.after.numpy().clip(0, size))
    good = np.isfinite(a).all(1) & np.isfinite(b).all(1)
    a, b = a[good], b[good]
    if len(a) < 30:
        return None
    draw = np.random.default_rng(0)
    best, votes = np.eye(4), 0
    for _ in range(300):
        some = draw.choice(len(a), 3, replace=False)
        pose = procrustes(a[some], b[some], np.ones(3))
        near = agree(pose, a, b)
        if near.sum() > votes:
            best, votes = pose, int(near.sum())
    if votes < 20:
        return None
    for _ in range(10):
        best = procrustes(a, b, agree(best, a, b).astype(float))
    return best


def agree(pose: Array, a: Array, b: Array) -> Array:
    """Which points are where the motion takes them."""
    return np.linalg.norm(a @ pose[:3, :3].T + pose[:3, 3] - b, axis=1) < 0.02 * b[:, 2]


def procrustes(a: Array, b: Array, weight: Array) -> Array:
    """The rigid transform from a to b of least squares."""
    share = weight / weight.sum()
    ca, cb = share @ a, share @ b
    u, _, vt = np.linalg.svd((a - ca).T @ ((b - cb) * share[:, None]))
    flip = np.diag([1, 1, np.sign(np.linalg.det(vt.T @ u.T))])
    pose = np.eye(4)
    pose[:3, :3] = vt.T @ flip @ u.T
    pose[:3, 3] = cb - pose[:3, :3] @ ca
    return pose


def correspond(one: Recorded, other: Recorded, pose: Array | None) -> tuple[Array, Array] | None:
    """Pixels of the same places of the scene, as rows and columns, in two frames."""
    if pose is None:
        return None
    height, width = one.depth.shape
    before = lattice((height, width), COMPARED).numpy().astype(int)
    places = lift(one, before) @ pose[:3, :3].T + pose[:3, 3]
    with np.errstate(invalid="ignore", divide="ignore"):
        seen = places @ other.camera.T
        after = (seen[:, 1::-1] / seen[:, 2:]).round()
        inside = (places[:, 2] > 0) & (after >= 0).all(1) & (after < [height, width]).all(1)
    before, after, places = before[inside], after[inside].astype(int), places[inside]
    there = other.depth[after[:, 0], after[:, 1]]
    same = np.abs(there / places[:, 2] - 1) < SAME_SURFACE
    return before[same], after[same]


@dataclass
class Score:
    """Results of one way to complete a sequence."""

    errors: list[float] = field(default_factory=list)
    covered: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    last: Array | None = None

    def add(
        self, out: Completion, frame: Recorded, pairs: tuple[Array, Array] | None, before: Array
    ) -> None:
        """Score a frame; `before` is the depth of the last one in truth."""
        known = frame.depth > 0
        self.errors.append(float(np.abs(out.depth - frame.depth)[known].mean()))
        low, high = out.interval(LEVEL)
        inside = (low <= frame.depth) & (frame.depth <= high)
        self.covered.append(float(inside[known].mean()))
        if pairs is not None and self.last is not None:
            a, b = (tuple(x.T) for x in pairs)
            change = out.latent_mean[b] - self.last[a]
            true = np.log(frame.depth[b]) - np.log(before[a])
            self.changes.append(float(np.abs(change).mean() - np.abs(true).mean()))
            self.relative.append(float(np.abs(change - true).mean()))
        self.last = out.latent_mean


def draw_points(frame: Recorded, count: int, seed: int) -> Array | None:
    """Rows u v metres at random pixels with ground truth."""
    if count == 0:
        return None
    row, column = np.nonzero(frame.depth > 0)
    some = np.random.default_rng(seed).choice(len(row), count, replace=False)
    return np.stack([column[some], row[some], frame.depth[row[some], column[some]]], 1)


def measure(
    model: Completer, frames: Iterator[Recorded], counts: tuple[str, ...], *, poses: bool = False
) -> dict[tuple[str, str], Score]:
    """Complete a sequence frame by frame and as a stream, for some numbers of points a frame.

    A number may be "1st": one point in the first frame only.
    """
    scores: dict[tuple[str, str], Score] = defaultdict(Score)
    streams = {count: Stream(model.network.fit) for count in counts}
    posed: dict[str, Stream] = {}
    last: Recorded | None = None
    pose: Array = np.eye(4)
    for number, frame in enumerate(frames):
        motion = None if last is None else find_motion(last, frame)
        pairs = None if last is None else correspond(last, frame, motion)
        pose = np.eye(4) if motion is None else pose @ np.linalg.inv(motion)
        before = frame.depth if last is None else last.depth
        scene = model.prepare(frame.image)
        single: dict[int, Completion] = {}
        for count in counts:
            wanted = int(number == 0) if count == "1st" else int(count)
            points = draw_points(frame, wanted, number)
            if wanted not in single:
                single[wanted] = scene.complete(points)
            scores[count, "frame by frame"].add(single[wanted], frame, pairs, before)
            scores[count, "stream"].add(streams[count].add(scene, points), frame, pairs, before)
            if poses:
                if number == 0 or motion is None:  # the camera's place is lost
                    posed[count] = Stream(model.network.fit, intrinsics=frame.camera)
                out = posed[count].add(scene, points, pose)
                scores[count, "stream, poses"].add(out, frame, pairs, before)
        last = frame
    return scores


@torch.no_grad()
def learn(model: Completer, rooms: int, seconds: float) -> None:
    """Evidence of rendered sequences, 20 points a frame, by the shares that are new in a frame."""
    layer = model.network.fit
    noise, prior = layer.error_model().noise.value, Stream(layer).prior
    own, known = (fit.Hyperprior(x, noise) for x in (layer.prior.alpha.value, KNOWN_SCALE))
    sequences = []
    for room in range(rooms):
        sequence = []
        for number, frame in enumerate(render_frames(room, seconds)):
            scene = model.prepare(frame.image)
            points = to_points(draw_points(frame, 20, number), scene.pyramid.size)
            whitened = scene.fit(points).posterior.points
            v, u = lattice(scene.pyramid.size, 300).mT[:, None]
            sequence.append((whitened.phi[0], whitened.z[0], scene.pyramid.at(v, u)[0].mean(0)))
        sequences.append(sequence)
    print(f"log evidence of {sum(map(len, sequences)) - rooms} frames; rows: new share of the mean")
    print("log depth, columns: of the rest")
    print("        " + "".join(f"{shape:9g}" for shape in SHAPE_CHANGES))
    for scale in SCALE_CHANGES:
        totals = []
        for shape in SHAPE_CHANGES:
            stream.SCALE_CHANGE, stream.SHAPE_CHANGE = scale, shape
            total = 0.0
            for sequence in sequences:
                post = None
                for phi, z, bases in sequence:
                    if post is None:
                        post = fit.evidence(phi, z, prior, hyperprior=own)
                        continue
                    last = fit.Prior(post.mean, stream.symmetric(post.cov))
                    start = stream.widen(last, prior, bases)
                    post = fit.evidence(phi, z, start, hyperprior=known)
                    total += float(post.log_evidence)
            totals.append(total)
        print(f"{scale:8g}" + "".join(f"{total:9.1f}" for total in totals), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="folder of a sequence; rendered rooms without it")
    parser.add_argument("--intrinsics", type=float, nargs=4, default=[258.7, 258.3, 159.3, 127.7])
    parser.add_argument("--model", default="indoor")
    parser.add_argument("--points", nargs="*", default=["20", "0", "1st"])
    parser.add_argument("--rooms", type=int, default=4, help="rendered sequences")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a rendered sequence")
    parser.add_argument("--poses", action="store_true", help="also with the camera's motion")
    parser.add_argument("--learn", action="store_true", help="print evidences instead")
    chosen = parser.parse_args()
    model = deepbasis.load(chosen.model)
    if chosen.learn:
        learn(model, chosen.rooms, chosen.seconds)
        return
    totals: dict[tuple[str, str], Score] = defaultdict(Score)
    sequences = (
        [read_frames(chosen.root, chosen.intrinsics)]
        if chosen.root
        else [render_frames(i, chosen.seconds) for i in range(chosen.rooms)]
    )
    for frames in sequences:
        for key, score in measure(model, frames, tuple(chosen.points), poses=chosen.poses).items():
            # Of one point in the first frame the effect on the next 100 is of interest.
            part = slice(1, 101) if key[0] == "1st" else slice(None)
            for name in ("errors", "covered", "changes", "relative"):
                getattr(totals[key], name).extend(getattr(score, name)[part])
    print(
        f"points a frame | method         | frames | MAE (m) | coverage of {LEVEL:.0%} | ", end=""
    )
    print("flicker (%) | change of the error (%)")
    for (count, method), score in totals.items():
        print(
            f"{count:>14} | {method:14} | {len(score.errors):6d} | {np.mean(score.errors):7.3f} | "
            f"{np.mean(score.covered):15.1%} | {100 * np.mean(score.changes):11.2f} | "
            f"{100 * np.mean(score.relative):6.2f}"
        )


if __name__ == "__main__":
    main()
