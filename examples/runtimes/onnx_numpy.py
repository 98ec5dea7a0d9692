# SPDX-License-Identifier: Apache-2.0
"""Depth with an error bar by onnxruntime and numpy alone: no torch, no deepbasis.

    deepbasis export indoor --out indoor.onnx
    python onnx_numpy.py indoor.onnx photo.jpg points.csv

points.csv has rows of `u v metres` or `u v metres sigma`. Depth and std are written as .npy files.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image


class Model:
    """The two graphs that `deepbasis export` writes."""

    def __init__(self, path):
        path = Path(path)
        self.network = onnxruntime.InferenceSession(path)
        self.fit = onnxruntime.InferenceSession(path.with_name(f"{path.stem}-fit.onnx"))
        self.most = next(x.shape[0] for x in self.fit.get_inputs() if x.name == "points")

    def prepare(self, rgb):
        """Run the network on an image [h, w, 3] of uint8; its maps by name."""
        image = np.ascontiguousarray(rgb.transpose(2, 0, 1)[None])
        return {"image": image} | run(self.network, {"image": image})

    def complete(self, maps, rows):
        """Depth, std, log_depth, variance, low90 and high90 from rows of `u v metres [sigma]`."""
        if len(rows) > self.most:
            raise ValueError(f"{len(rows)} points are more than the {self.most} of this graph")
        points = np.zeros((self.most, 4), np.float32)
        points[: len(rows), : np.shape(rows)[1]] = rows
        return run(self.fit, maps | {"points": points})


def run(session, values):
    """All outputs of a graph by name."""
    inputs = {one.name: values[one.name] for one in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    model = Model(sys.argv[1])
    lines = Path(sys.argv[3]).read_text().replace(",", " ").splitlines()
    rows = np.loadtxt([line for line in lines if not line[:1].isalpha()], ndmin=2)
    if len(rows) > model.most:  # use some, evenly spaced in the file
        print(f"{model.most} of {len(rows)} points are used: export with a larger --max-points")
        rows = rows[np.linspace(0, len(rows) - 1, model.most).astype(int)]
    out = model.complete(model.prepare(np.asarray(Image.open(sys.argv[2]).convert("RGB"))), rows)
    for name in ("depth", "std"):
        np.save(f"{Path(sys.argv[2]).stem}-{name}.npy", out[name])
    print(f"{len(rows)} points: depth {out['depth'].mean():.2f} m, std {out['std'].mean():.2f} m")
