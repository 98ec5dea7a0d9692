# SPDX-License-Identifier: Apache-2.0
"""`deepbasis models`."""

from dataclasses import dataclass
from typing import NamedTuple

from deepbasis.options import options


class Bundled(NamedTuple):
    """A bundled model in one line; its card, `weights/NAME.md`, tells the rest."""

    name: str
    purpose: str
    data: str
    """What it was trained on."""
    mae: str
    """Mean absolute error at 500 points in metres, and where."""
    terms: str


BUNDLED = (
    Bundled("indoor", "rooms, 0.5 to 10 m", "NYU Depth V2", "0.065 m on NYU", "research only"),
    Bundled("outdoor", "streets, 2 to 80 m", "KITTI", "1.065 m on KITTI", "no commercial use"),
    Bundled("open", "rooms", "rendered scenes", "0.091 m on NYU", "Apache-2.0"),
)


@options
@dataclass(frozen=True)
class Models:
    """List the bundled models, and the size of the networks that `deepbasis train` makes."""

    size: tuple[int, int] = (240, 320)
    """Height and width of the image in pixels for which operations are counted."""

    def run(self) -> None:
        """Print both tables."""
        if min(self.size) < 1:
            raise ValueError(f"--size {self.size[0]} {self.size[1]} is not the size of an image")
        from deepbasis.model import WEIGHTS
        from deepbasis.nets.cost import table

        rows = [("model", "for", "trained on", "size", "MAE at 500 points", "terms")]
        for one in BUNDLED:
            megabytes = (WEIGHTS / f"{one.name}.safetensors").stat().st_size / 1e6
            rows.append((*one[:3], f"{megabytes:.0f} MB", *one[3:]))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(map(str.ljust, row, widths)).rstrip())
        print(f"\n{table(self.size)}")
