# SPDX-License-Identifier: Apache-2.0
"""`deepbasis render`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from deepbasis.options import options


@options
@dataclass(frozen=True)
class Render:
    """Render frames of a procedural world, with exact depth, into a folder.

    It can be stopped at any time; the same command then resumes.
    """

    world: Positional[Literal["rooms", "roads"]]
    """rooms (indoor, to 10 m) or roads (driving, to 80 m)."""
    out: Path
    """Folder to write rgb/, depth/ and intrinsics/ to."""
    count: int = 100
    """Number of frames in total, including those that are already in the folder."""
    seed: int = 0
    """Seed of the world: another seed gives other frames."""
    variant: str = "clone"
    """Light, weather or camera direction of roads: clone (the original), morning, overcast, sunset,
    fog, rain, 15-deg-left, 15-deg-right, 30-deg-left or 30-deg-right."""
    size: tuple[int, int] | None = None
    """Height and width in pixels (default: 240 320 for rooms and 160 512 for roads)."""
    workers: int = 1
    """Processes to render with."""

    def run(self) -> None:
        """Render what is missing."""
        if self.count < 1 or self.workers < 1:
            raise ValueError(
                f"--count {self.count} and --workers {self.workers} must be at least 1"
            )
        from rich.progress import track

        from deepbasis.data.worlds import Worlds
        from deepbasis.data.worlds.export import export

        frames = Worlds(self.world, self.count, self.seed, self.variant, self.size)
        written = export(frames, self.out, self.workers)
        for _ in track(written, f"rendering {self.world}", total=self.count):
            pass
        print(f"{self.count} frames of {self.world} in {self.out}")
