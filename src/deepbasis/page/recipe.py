# SPDX-License-Identifier: Apache-2.0
"""The command line and the Python that do what the page does."""

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from torch import Tensor

from deepbasis.shapes import Float

# Points up to this number are written into the Python; others are read from their file.
WRITTEN = 12


@dataclass(frozen=True)
class SequenceRecipe:
    """A sequence up to the frame that is shown."""

    names: tuple[str, ...]
    number: int
    is_video: bool
    reduced: int
    has_points: bool
    """Whether any frame has some."""


@dataclass(frozen=True)
class Recipe:
    """What was completed, by the names of its files."""

    image: str
    """File of the image; of a sequence, its folder or its video."""
    sample: str | None
    """Name of a packaged sample."""
    model: str
    rows: Float[np.ndarray, "n columns"]
    camera: Float[Tensor, "3 3"] | None = None
    sequence: SequenceRecipe | None = None

    @property
    def command(self) -> str:
        """For a folder with image, points and camera as the page saves them."""
        points = name_points(self.image)
        words, note = ["deepbasis", "complete", self.image], ""
        if self.sequence is None:
            words += ["--sparse", points] if len(self.rows) else []
        else:
            words += ["--sequence"]
            words += ["--sparse", PurePath(points).stem] if self.sequence.has_points else []
            if self.sequence.reduced > 1:
                note = f"# reduce the video {self.sequence.reduced} times first, as the page did\n"
        words += ["--intrinsics", name_camera(self.image)] if self.camera is not None else []
        words += ["--model", self.model, "--out", "result"]
        return note + shlex.join(words)

    @property
    def python(self) -> str:
        """A script that prints the depth at the first point, or at the top left."""
        lines = self._completion if self.sequence is None else self._stream(self.sequence)
        u, v = (int(np.floor(x + 0.5)) for x in self.rows[0, :2]) if len(self.rows) else (0, 0)
        at = f"[{v}, {u}]"
        said = f'print(f"{{out.depth{at}:.2f}} m, 90 %: {{low{at}:.2f}} to {{high{at}:.2f}}")'
        return "\n".join([*lines, "low, high = out.interval(0.9)", said, ""])

    @property
    def _completion(self) -> list[str]:
        lines, image = [], repr(self.image)
        if self.sample is not None:
            lines = ["from deepbasis.data.packaged import packaged"]
            image = f'packaged("{self.sample}s").images["000000"]'
        if len(self.rows) > WRITTEN:
            lines = ["import numpy as np", *lines]
        lines = ["import deepbasis", *lines, "", *self._points, *self._camera]
        lines += [f"model = deepbasis.load({self.model!r})"]
        if self.camera is None:
            return [*lines, f"out = model.complete({image}, points)"]
        return [*lines, f"scene = model.prepare({image}, camera)", "out = scene.complete(points)"]

    @property
    def _points(self) -> list[str]:
        if not len(self.rows):
            return ["points = None"]
        if len(self.rows) <= WRITTEN:
            rows = [f"    [{', '.join(f'{x:.10g}' for x in row)}]," for row in self.rows]
            return ["points = [  # column, row, metres", *rows, "]"]
        return [f'points = np.loadtxt({name_points(self.image)!r}, delimiter=",", skiprows=1)']

    @property
    def _camera(self) -> list[str]:
        if self.camera is None:
            return []
        rows = [f"    [{', '.join(f'{float(x):.10g}' for x in row)}]," for row in self.camera]
        return ["camera = [  # in pixels", *rows, "]"]

    def _stream(self, sequence: SequenceRecipe) -> list[str]:
        count, stem = sequence.number + 1, PurePath(self.image).stem
        imports = ["from pathlib import Path", ""]
        imports += ["import numpy as np"] if sequence.has_points or sequence.reduced > 1 else []
        if sequence.is_video:
            image = "video.read(i)"
            if sequence.reduced > 1:
                imports += ["from PIL import Image"]
                image = f"np.asarray(Image.fromarray(video.read(i)).reduce({sequence.reduced}))"
            imports += ["", "import deepbasis", "from deepbasis.data.video import Video"]
            source, name = f"video = Video(Path({self.image!r}))", f'f"{stem}-{{i:06d}}"'
        else:
            imports += ["", "import deepbasis"]
            key = ""
            if sorted(sequence.names) != list(sequence.names):
                key = ', key=lambda path: int("".join(filter(str.isdigit, path.stem)))'
            source = f"images = sorted(Path({self.image!r}).iterdir(){key})"
            image, name = "images[i]", "images[i].stem"
        lines = [*imports, "", source]
        if sequence.has_points:
            lines += [
                "points = {",
                '    path.stem: np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)',
                f"    for path in Path({PurePath(name_points(self.image)).stem!r}).iterdir()",
                "}",
            ]
            image = f"({image}, points.get({name}))"
        camera = ", intrinsics=camera" if self.camera is not None else ""
        text = "\n".join([*lines, *self._camera, f"model = deepbasis.load({self.model!r})"])
        return [
            *re.sub(r"\n{3,}", "\n\n", text).split("\n"),
            f"frames = ({image} for i in range({count}))",
            f"*_, out = model.stream(frames{camera})",
        ]


def name_points(image: str) -> str:
    """Name of the file of an image's points."""
    return f"{PurePath(image).stem}-points.csv"


def name_camera(image: str) -> str:
    """Name of the file of an image's camera."""
    return f"{PurePath(image).stem}-camera.txt"
