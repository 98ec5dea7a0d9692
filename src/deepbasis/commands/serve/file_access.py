# SPDX-License-Identifier: Apache-2.0
"""The page reads and writes files as `deepbasis complete` does."""

from pathlib import Path, PurePath

import numpy as np

from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.inputs import Frame, Loaded, read_ground_truth, read_sparse
from deepbasis.commands.complete.outputs import write
from deepbasis.commands.complete.plan import Planned, name_files
from deepbasis.page.session import Picture
from deepbasis.points import Points
from deepbasis.result import Completion
from deepbasis.shapes import Float

# What can be saved, by the key of the command's own list of files.
KINDS = ("depth.npy", "depth.png", "std.npy", "std.png", "figure", "cloud", "json")


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


def _frame(picture: Picture) -> Frame:
    name = PurePath(picture.name)
    return Frame(name.stem, Path(name), None, None, None)
