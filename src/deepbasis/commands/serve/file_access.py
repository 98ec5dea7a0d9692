# SPDX-License-Identifier: Apache-2.0
"""The page reads and writes files as `deepbasis complete` does."""

import math
from pathlib import Path, PurePath

import numpy as np
from PIL import Image
from torch import Tensor

from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.inputs import (
    Frame,
    Loaded,
    find_frames,
    load,
    read_ground_truth,
    read_sparse,
)
from deepbasis.commands.complete.outputs import write
from deepbasis.commands.complete.plan import Planned, name_files
from deepbasis.data.video import VIDEOS, Video
from deepbasis.page.sequence import FrameSource, SequenceFrame
from deepbasis.page.session import Picture
from deepbasis.points import Points
from deepbasis.result import Completion
from deepbasis.shapes import Float

# What can be saved, by the key of the command's own list of files.
KINDS = ("depth.npy", "depth.png", "std.npy", "std.png", "figure", "cloud", "json")


# Pixels of a frame of a video, at most: larger ones are reduced by a whole number.
VIDEO_PIXELS = 400_000


class CommandLineFiles:
    """Readers and writers of `deepbasis complete`."""

    def read_points(self, path: Path, picture: Picture, depth_scale: float | None) -> Points:
        """Measured points of an image, in any form."""
        settings = Complete((), path.parent, depth_scale=depth_scale)
        return read_sparse(path, _frame(picture), picture.image, picture.camera, settings)

    def read_truth(
        self, path: Path, picture: Picture, depth_scale: float | None
    ) -> Float[np.ndarray, "h w"]:
        """A depth map of the image's size."""
        settings = Complete((), path.parent, ground_truth_scale=depth_scale)
        return read_ground_truth(path, _frame(picture), picture.image, settings)

    def open_sequence(
        self, folder: Path, depth_scale: float | None, truth_scale: float | None
    ) -> FrameSource:
        """Frames in the folder `frames`, with points and ground truth in `points` and `truth`."""
        return SequenceFiles(folder, depth_scale, truth_scale)

    def write(self, folder: Path, kind: str, picture: Picture, answer: Completion) -> Path:
        """Write one of the files that `deepbasis complete` writes."""
        if kind not in KINDS:
            raise ValueError(f"there is no file {kind[:40]!r} to save; choose {', '.join(KINDS)}")
        settings = Complete((), folder, figure=kind == "figure", cloud=kind == "cloud")
        frame = _frame(picture)
        planned = Planned(frame, name_files(frame.name, settings), {})
        loaded = Loaded(frame, picture.image, None, picture.camera, picture.truth)
        write(planned, loaded, answer, None, settings)
        return planned.files[kind]


class SequenceFiles:
    """Frames of a folder or of a video, as `deepbasis complete --sequence` finds them."""

    def __init__(self, folder: Path, depth_scale: float | None, truth_scale: float | None) -> None:
        images = sorted((folder / "frames").glob("*"))
        if not images:
            raise ValueError("there are no frames; drop images, or a video")
        self.video = Video(images[0]) if images[0].suffix.lower() in VIDEOS else None
        if self.video is not None and len(images) > 1:
            raise ValueError("a video is a sequence by itself; drop it without other frames")
        sparse, truth = (
            path if path.is_dir() else None for path in (folder / "points", folder / "truth")
        )
        self.settings = Complete(
            (folder / "frames",) if self.video is None else (images[0],), folder / "out",
            sparse=sparse, ground_truth=truth, sequence=True, depth_scale=depth_scale,
            ground_truth_scale=truth_scale,
        )  # fmt: skip
        self.frames = find_frames(self.settings)
        self.names = tuple(frame.name for frame in self.frames)
        self.measured = frozenset(i for i, frame in enumerate(self.frames) if frame.sparse)
        self.is_video, self.reduced = self.video is not None, 1
        if self.video is not None:
            height, width = self.video.read(0).shape[:2]
            self.reduced = math.ceil(math.sqrt(height * width / VIDEO_PIXELS))

    def read(self, number: int, camera: Float[Tensor, "3 3"] | None) -> SequenceFrame:
        """Read a frame."""
        frame = self.frames[number]._replace(missing="")  # not every frame has a ground truth
        if self.video is not None:
            image = Image.fromarray(self.video.read(number)).reduce(self.reduced)
            return SequenceFrame(frame.name, np.array(image), np.zeros((0, 3)), None)
        loaded = load(frame._replace(sparse=None), self.settings)
        rows = np.zeros((0, 3))
        if frame.sparse is not None:
            points = read_sparse(frame.sparse, frame, loaded.image, camera, self.settings)
            height, width = loaded.image.shape[:2]
            rows = points.inside((height, width)).rows
        return SequenceFrame(frame.name, loaded.image, rows, loaded.ground_truth)


def _frame(picture: Picture) -> Frame:
    name = PurePath(picture.name)
    return Frame(name.stem, Path(name), None, None, None)
