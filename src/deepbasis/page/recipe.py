# SPDX-License-Identifier: Apache-2.0
"""The command line and the Python that do what the page does."""

import shlex
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from deepbasis.shapes import Float

# Points up to this number are written into the Python; others are read from their file.
WRITTEN = 12


@dataclass(frozen=True)
class Recipe:
    """What was completed, by the names of its files."""

    image: str
    sample: str | None
    """Name of a packaged sample."""
    model: str
    rows: Float[np.ndarray, "n columns"]

    @property
    def command(self) -> str:
        """For a folder with the image and the points as the page saves them."""
        words = ["deepbasis", "complete", self.image]
        words += ["--sparse", name_points(self.image)] if len(self.rows) else []
        words += ["--model", self.model, "--out", "result"]
        return shlex.join(words)

    @property
    def python(self) -> str:
        """A script that prints the depth at the first point, or in the middle."""
        lines = ["import deepbasis"]
        image = repr(self.image)
        if self.sample is not None:
            lines = [*lines, "from deepbasis.data.packaged import packaged"]
            image = f'packaged("{self.sample}s").images["000000"]'
        lines += ["", *self._points, f"model = deepbasis.load({self.model!r})"]
        lines += [f"out = model.complete({image}, points)", "low, high = out.interval(0.9)"]
        u, v = (int(np.floor(x + 0.5)) for x in self.rows[0, :2]) if len(self.rows) else (0, 0)
        at = f"[{v}, {u}]"
        lines += [
            f'print(f"{{out.depth{at}:.2f}} m, 90 %: {{low{at}:.2f}} to {{high{at}:.2f}}")',
            "",
        ]
        return "\n".join(lines)

    @property
    def _points(self) -> list[str]:
        if not len(self.rows):
            return ["points = None"]
        if len(self.rows) <= WRITTEN:
            rows = [f"    [{', '.join(f'{x:.10g}' for x in row)}]," for row in self.rows]
            return ["points = [  # column, row, metres", *rows, "]"]
        return [
            "import numpy as np", "",
            f'points = np.loadtxt({name_points(self.image)!r}, delimiter=",", skiprows=1)',
        ]  # fmt: skip


def name_points(image: str) -> str:
    """Name of the file of an image's points."""
    return f"{PurePath(image).stem}-points.csv"
