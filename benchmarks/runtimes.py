# SPDX-License-Identifier: Apache-2.0
"""onnxruntime against Python: difference of depth and std, and CPU time on one thread.

    deepbasis export indoor --out indoor.onnx
    python benchmarks/runtimes.py indoor indoor.onnx

The image is a rendered room of 240 x 320 pixels, with points between the pixels.
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
    scene = model.prepare(image.transpose(1, 2, 0))
    maps = {"image": image[None]} | run(network, {"image": image[None]})
    print(f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}; CPU seconds")
    there = cpu_seconds(partial(run, network, {"image": image[None]}))
    ours = cpu_seconds(partial(model.prepare, image.transpose(1, 2, 0)))
    print(f"network: onnxruntime {there:.3f}, Python {ours:.3f}")
    print("points  log depth  std, relative  onnxruntime  Python")
    for count in COUNTS:
        draw = np.random.default_rng(count)
        at = draw.uniform([0, 0], [image.shape[2] - 1, image.shape[1] - 1], (count, 2))
        column, row = at.round().astype(int).T
        rows = np.column_stack([at, room.depth[0].numpy()[row, column]])
        rows = rows[rows[:, 2] > 0]
        points = np.zeros(wanted["points"], np.float32)
        points[: len(rows), :3] = rows
        given = {k: v for k, v in (maps | {"points": points}).items() if k in wanted}
        measured = rows if len(rows) else None
        out = scene.complete(measured, robust=False)
        found = run(fit, given)
        off = np.abs(np.log(found["depth"]) - np.log(out.depth)).max()
        spread = np.abs(found["std"] / out.std - 1).max()
        there = cpu_seconds(partial(run, fit, given))
        ours = cpu_seconds(partial(scene.complete, measured, robust=False))
        print(f"{len(rows):6d} {off:10.6f} {spread:14.5f} {there:12.2f} {ours:7.2f}", flush=True)


if __name__ == "__main__":
    main()
