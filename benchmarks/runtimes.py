# SPDX-License-Identifier: Apache-2.0
"""onnxruntime against Python: difference of depth and std, and CPU time on one thread.

    deepbasis export indoor --out indoor.onnx
    python benchmarks/runtimes.py indoor indoor.onnx

The image is a rendered room of 120 x 160 pixels, with points between the pixels.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from deepbasis import load
from deepbasis.data.packaged import packaged
from deepbasis.data.sample import halve

COUNTS = (0, 1, 50, 500)
REPEATS = 3


def cpu_seconds(work: Callable[[], object]) -> float:
    """Least CPU time of a few runs, after one to warm up."""
    work()
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def run(graph: Any, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs of a graph by name."""
    names = [output.name for output in graph.get_outputs()]
    return dict(zip(names, graph.run(names, given), strict=True))


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = Path(sys.argv[2])
    network, fit = (
        onnxruntime.InferenceSession(name, options)
        for name in (path, path.with_name(f"{path.stem}-fit.onnx"))
    )
    wanted = {x.name: x.shape for x in fit.get_inputs()}
    model, room = load(sys.argv[1]), halve(packaged("rooms")[2])
    image = (room.image if room.image.dtype == torch.uint8 else (255 * room.image).byte()).numpy()
    depth = room.depth[0].numpy()
    scene = model.prepare(image.transpose(1, 2, 0))
    maps = {"image": image[None]} | run(network, {"image": image[None]})
    print(f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}; CPU seconds")
    there = cpu_seconds(partial(run, network, {"image": image[None]}))
    ours = cpu_seconds(partial(model.prepare, image.transpose(1, 2, 0)))
    print(f"network: onnxruntime {there:.3f}, Python {ours:.3f}\n")
    print("| Points | Log depth | Std, relative | Upper bound of the 90 % interval, relative "
          "| onnxruntime (s) | Python (s) |\n|---|---:|---:|---:|---:|---:|")  # fmt: skip
    for count in COUNTS:
        draw = np.random.default_rng(count)
        row, column = np.nonzero(depth)
        some = draw.permutation(len(row))[:count]  # one point in a pixel
        row, column = row[some], column[some]
        off_centre = draw.uniform(-0.4, 0.4, (2, count))
        rows = np.column_stack([*(np.stack([column, row]) + off_centre), depth[row, column]])
        rows[:, :2] = rows[:, :2].clip(0, np.array(depth.shape[::-1]) - 1)
        points = np.zeros(wanted["points"], np.float32)
        points[: len(rows), :3] = rows
        given = {k: v for k, v in (maps | {"points": points}).items() if k in wanted}
        measured = rows if len(rows) else None
        out = scene.complete(measured, robust=False)
        found = run(fit, given)
        off = np.abs(np.log(found["depth"]) - np.log(out.depth)).max()
        spread = np.abs(found["std"] / out.std - 1).max()
        bound = np.abs(found["high90"] / out.interval(0.9)[1] - 1).max()
        there = cpu_seconds(partial(run, fit, given))
        ours = cpu_seconds(partial(scene.complete, measured, robust=False))
        print(
            f"| {len(rows)} | {off:.6f} | {spread:.5f} | {bound:.6f} | {there:.2f} | {ours:.2f} |"
        )


if __name__ == "__main__":
    main()
