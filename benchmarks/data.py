# SPDX-License-Identifier: Apache-2.0
"""Frames per second: rendering worlds, and loading them from a folder with points drawn."""

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from torch.utils.data import DataLoader

from deepbasis.data.folder import Folder
from deepbasis.data.with_points import WithPoints
from deepbasis.data.worlds import Worlds
from deepbasis.data.worlds.export import export
from deepbasis.patterns import parse

FRAMES = 96
BATCH = 4


def rate(frames: Iterable[object], skip: int, size: int = 1) -> float:
    """Frames per second after the first few, which start the workers."""
    start, seen = 0.0, 0
    for number, _ in enumerate(frames, 1):
        if number == skip:
            start = time.perf_counter()
        seen = number - skip
    return seen * size / (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    print("frames per second        1 worker  2 workers")
    with tempfile.TemporaryDirectory() as folder:
        for world in ("rooms", "roads"):
            speed = []
            for workers in (1, 2):
                out = Path(folder) / f"{world}{workers}"
                speed.append(rate(export(Worlds(world, FRAMES), out, workers), 8))
            print(f"render {world:<10} {speed[0]:14.1f} {speed[1]:10.1f}")
        for word in ("5%", "lidar64", "features500"):
            frames = WithPoints(Folder(Path(folder) / "rooms2"), parse(word), training=True)
            speed = [
                rate(DataLoader(frames, BATCH, num_workers=workers), 4, BATCH)  # type: ignore[arg-type]
                for workers in (1, 2)
            ]
            print(f"load rooms, {word:<12} {speed[0]:7.1f} {speed[1]:10.1f}")


if __name__ == "__main__":
    main()
