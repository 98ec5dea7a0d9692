# SPDX-License-Identifier: Apache-2.0
"""Familiarity and coverage without points, on scenes that a model knows and on others.

    python benchmarks/unfamiliar.py indoor --known nyu --folders tum realsense
    python benchmarks/unfamiliar.py indoor --known nyu --folders tum realsense --sizes
    python benchmarks/unfamiliar.py indoor --known nyu --draws 8 --points 500 50

`--known` is NYU Depth V2, of which the test frames are used; folders hold rgb/ and depth/ in
millimetres. Rooms with other cameras, and roads, are rendered. For each set: the share of frames
with a warning, and the coverage of the 90 % interval without points. With `--sizes`: the error in
large images, if the network sees them as they are and if they are reduced for it; frames of folders
are enlarged. With `--draws`: how much the coverage of one frame varies over draws of its points.
"""

import argparse
import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from PIL import Image

import deepbasis
from deepbasis.calibrate.measure import coverage_spread
from deepbasis.data.folder import Folder
from deepbasis.data.sample import Frames, Sample, make_intrinsics
from deepbasis.data.sources import Source, subsample
from deepbasis.data.worlds import TRIES, Worlds, first_free_view, rooms, take
from deepbasis.data.worlds.render import Tracer
from deepbasis.patterns import parse
from deepbasis.result import UNFAMILIAR

SIZE, SEED = (240, 320), 77
ANGLES = (35, 60, 80, 95)
# Field of view and rows of large images, and their numbers of points.
LARGE, COUNTS = ((60, 480), (60, 720), (95, 480)), ("0", "50", "500", "5%")


def render_rooms(degrees: int, count: int, height: int = SIZE[0]) -> Iterator[Sample]:
    """Rooms seen by a camera of this horizontal field of view."""
    size = (height, height * SIZE[1] // SIZE[0])
    focal = 1 / (2 * np.tan(np.radians(degrees) / 2))
    for index in range(count):
        rng = np.random.default_rng([1, SEED, degrees, index])
        room = rooms.make_room(rng)
        views = (replace(rooms.hold_camera(room, rng), focal=focal) for _ in range(TRIES))
        frame = take(*first_free_view(Tracer(room.scene), views, size, rng, rooms.REACH), rng)
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


def enlarge(sample: Sample) -> Sample:
    """A frame of twice the height and width."""
    image = F.interpolate(sample.image[None].float(), scale_factor=2, mode="bicubic")
    depth = F.interpolate(sample.depth[None], scale_factor=2)[0]
    pixels = image[0].round().clamp(0, 255).to(torch.uint8)
    return Sample(sample.name, pixels, depth, torch.zeros_like(depth), sample.intrinsics)


def show_sizes(model: deepbasis.Completer, name: str, frames: Iterable[Sample]) -> None:
    """Print a row of the table of sizes for each number of points."""
    size, table = model.network.usual_size.size, []
    for sample in frames:
        true, known = sample.depth[0].numpy(), sample.mask[0].numpy()
        for reduced in (False, True):
            model.network.usual_size.store(size=size if reduced else None)
            scene = model.prepare(sample.image.permute(1, 2, 0).numpy())
            for points in COUNTS:
                draw = torch.Generator().manual_seed(SEED)
                measured = parse(points)(sample.depth, sample.image, sample.intrinsics, draw)
                out = scene.complete(measured[0].numpy())
                low, high = out.interval(0.9)
                inside = ((low <= true) & (true <= high))[known].mean()
                table.append([np.abs(out.depth - true)[known].mean(), inside])
    found = np.array(table).reshape(-1, 2, len(COUNTS), 2).mean(0)
    for points, whole, part in zip(COUNTS, *found, strict=True):
        each = "".join(f"{mae:14.3f} {inside:10.1%}" for mae, inside in (whole, part))
        print(f"{name:<28} {points:>6}{each}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--known", type=Path, required=True, help="NYU Depth V2")
    parser.add_argument("--folders", nargs="*", type=Path, default=[])
    parser.add_argument("--frames", type=int, default=60, help="of each set")
    parser.add_argument("--sizes", action="store_true")
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
    if given.sizes:
        print("frames of                    points   as they are: MAE, coverage     reduced")
        for root in given.folders:
            frames = subsample(Folder(root, depth_scale=1000), given.frames)
            show_sizes(model, f"{root.name}, enlarged", (enlarge(one) for one in each(frames)))
        for degrees, height in LARGE:
            large = render_rooms(degrees, min(given.frames, 20), height)
            show_sizes(model, f"rooms, {degrees} degrees, {height} rows", large)
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
