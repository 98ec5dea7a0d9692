# SPDX-License-Identifier: Apache-2.0
"""Familiarity and coverage without points, on scenes that a model knows and on others.

    python benchmarks/unfamiliar.py indoor --known nyu --folders tum realsense
    python benchmarks/unfamiliar.py indoor --known nyu --draws 8 --points 500 50

`--known` is NYU Depth V2, of which the test frames are used; folders hold rgb/ and depth/ in
millimetres. Rooms with other cameras, and roads, are rendered. For each set: the share of frames
with a warning, and the coverage of the 90 % interval without points. With `--draws`: how much the
coverage of one frame varies over draws of its points.
"""

import argparse
import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from PIL import Image

import deepbasis
from deepbasis.calibrate.measure import coverage_spread
from deepbasis.data.folder import Folder
from deepbasis.data.sample import Frames, Sample, make_intrinsics
from deepbasis.data.sources import Source, subsample
from deepbasis.data.worlds import TRIES, Worlds, first_free_view, rooms, take
from deepbasis.data.worlds.render import Tracer
from deepbasis.result import UNFAMILIAR

SIZE, SEED = (240, 320), 77
ANGLES = (35, 60, 80, 95)


def render_rooms(degrees: int, count: int) -> Iterator[Sample]:
    """Rooms seen by a camera of this horizontal field of view."""
    focal = 1 / (2 * np.tan(np.radians(degrees) / 2))
    for index in range(count):
        rng = np.random.default_rng([1, SEED, degrees, index])
        room = rooms.make_room(rng)
        views = (replace(rooms.hold_camera(room, rng), focal=focal) for _ in range(TRIES))
        frame = take(*first_free_view(Tracer(room.scene), views, SIZE, rng, rooms.REACH), rng)
        image = torch.from_numpy(np.array(Image.open(io.BytesIO(frame.jpeg)))).permute(2, 0, 1)
        depth = torch.from_numpy(frame.depth)[None]
        camera = make_intrinsics(*frame.intrinsics)
        yield Sample(f"{degrees}-{index}", image, depth, torch.zeros_like(depth), camera)


def each(frames: Frames) -> Iterator[Sample]:
    """Frames one after the other."""
    return (frames[index] for index in range(len(frames)))


def measure(model: deepbasis.Completer, sample: Sample, *, camera: bool = False) -> list[float]:
    """Whether there is a warning, and coverage and absolute log error without points."""
    image = sample.image.permute(1, 2, 0).numpy()
    out = model.prepare(image, sample.intrinsics.numpy() if camera else None).complete()
    low, high = out.interval(0.9)
    true, known = sample.depth[0].numpy(), sample.mask[0].numpy()
    inside = ((low <= true) & (true <= high))[known].mean()
    off = np.abs(out.latent_mean[known] - np.log(true[known])).mean()
    warned = out.familiarity is not None and out.familiarity < UNFAMILIAR
    return [float(warned), float(inside), float(off)]


def show(name: str, rows: Iterable[list[float]]) -> None:
    """Print a row of the table."""
    table = np.array(list(rows))
    warned, coverage, off = table.mean(0)
    print(f"{name:<28} {len(table):6d} {warned:8.1%} {coverage:9.1%} {off:10.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--known", type=Path, required=True, help="NYU Depth V2")
    parser.add_argument("--folders", nargs="*", type=Path, default=[])
    parser.add_argument("--frames", type=int, default=60, help="of each set")
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--points", nargs="+", default=["500", "50"])
    given = parser.parse_args()
    model = deepbasis.load(given.model)
    known = Source("nyu", given.known).open("test")
    if given.draws:
        fabric = Fabric(accelerator="cpu", devices=1)
        found = coverage_spread(fabric, model.network, known, given.points, draws=given.draws)
        print("points   std over draws  std over frames  9 of 10 frames within")
        for points, row in found.items():
            over = f"{row['draws']:14.1%} {row['frames']:16.1%}"
            print(f"{points:<8} {over} {row['low']:12.1%} to {row['high']:.1%}")
        return
    print("frames of                     count   warned  coverage  log error")
    show("NYU, test", (measure(model, one) for one in each(subsample(known, given.frames))))
    for root in given.folders:
        frames = subsample(Folder(root, depth_scale=1000), given.frames)
        show(root.name, (measure(model, one) for one in each(frames)))
    for degrees in ANGLES:
        views = list(render_rooms(degrees, min(given.frames, 20)))
        show(f"rooms, {degrees} degrees", (measure(model, one) for one in views))
        told = (measure(model, one, camera=True) for one in views)
        show(f"rooms, {degrees} degrees, told", told)
    roads = Worlds("roads", given.frames, SEED)
    show("roads", (measure(model, one) for one in each(roads)))


if __name__ == "__main__":
    main()
