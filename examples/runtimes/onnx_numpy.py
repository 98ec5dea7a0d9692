# SPDX-License-Identifier: Apache-2.0
"""Depth with an error bar by onnxruntime and numpy alone: no torch, no deepbasis.

    deepbasis export indoor --out indoor.onnx
    python onnx_numpy.py indoor.onnx photo.jpg points.csv

points.csv has rows of `u v metres [sigma]`, at most one a pixel. Depth and std are saved as .npy.
"""

import re
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


def read_points(path, size):
    """Rows of a file; each is checked, since a wrong one would spoil the results silently."""
    lines = [" ".join(line.split()) for line in path.read_text().replace(",", " ").splitlines()]
    lines = [line for line in lines if line]
    begin = bool(lines and re.fullmatch("#? ?u v (metres|depth|z)( sigma| std)?", lines[0]))
    try:
        rows = np.array([line.split() for line in lines[begin:]], float)
    except ValueError:
        rows = np.zeros(0)
    if rows.ndim != 2 or rows.shape[1] not in (3, 4):
        sys.exit(f"{path} does not hold rows of `u v metres [sigma]`; separate by spaces or commas")
    pixel = np.floor(rows[:, :2] + 0.5)
    first = np.unique(pixel, axis=0, return_index=True)[1]
    for what, good in {
        "has no positive depth": (rows[:, 2] > 0) & np.isfinite(rows).all(1),
        "has a negative sigma": (rows[:, 3:] >= 0).all(1),
        "is outside the image": ((pixel >= 0) & (pixel < size[::-1])).all(1),
        "is on the pixel of another; keep the nearest": np.isin(np.arange(len(rows)), first),
    }.items():
        if not good.all():
            sys.exit(f"{path}: point {good.argmin() + 1} {what}")
    return rows


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    model = Model(sys.argv[1])
    image = np.asarray(Image.open(sys.argv[2]).convert("RGB"))
    rows = read_points(Path(sys.argv[3]), image.shape[:2])
    if len(rows) > model.most:  # use some, evenly spaced in the file
        print(f"{model.most} of {len(rows)} points are used: export with a larger --max-points")
        rows = rows[np.linspace(0, len(rows) - 1, model.most).astype(int)]
    out = model.complete(model.prepare(image), rows)
    for name in ("depth", "std"):
        np.save(f"{Path(sys.argv[2]).stem}-{name}.npy", out[name])
    print(f"{len(rows)} points: depth {out['depth'].mean():.2f} m, std {out['std'].mean():.2f} m")
