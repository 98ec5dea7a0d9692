# SPDX-License-Identifier: Apache-2.0
"""`deepbasis export`."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from deepbasis.options import options


@options
@dataclass(frozen=True)
class Export:
    """Write a model as two ONNX graphs, for use without Python: its network and its fit.

    NAME.onnx takes an image of any size; NAME-fit.onnx takes what it returns and the points, and
    returns depth with error bars.
    """

    model: Positional[str]
    """Name of a pretrained model, a model file, or a training folder."""
    out: Path
    """File to write, NAME.onnx."""
    max_points: int = 500
    """Maximum number of points of an image; fewer are padded with zeros."""

    def run(self) -> None:
        """Write both graphs."""
        from deepbasis.data.files import find_folder
        from deepbasis.model import load
        from deepbasis.portable.to_onnx import export

        if self.out.suffix.lower() != ".onnx":
            raise ValueError(f"--out {self.out} does not end in .onnx")
        find_folder(self.out.parent, "create it first")
        fit = self.out.with_name(f"{self.out.stem}-fit.onnx")
        export(load(self.model), self.out, fit, self.max_points)
        for path, what in ((self.out, "network"), (fit, f"fit of up to {self.max_points} points")):
            print(f"{path}: {what}, {path.stat().st_size / 1e6:.1f} MB")
