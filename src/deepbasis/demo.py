# SPDX-License-Identifier: Apache-2.0
"""The built-in example: a room that no model was trained on, from 500, 50, 5 and no points."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deepbasis import metrics, model, patterns
from deepbasis.data.packaged import packaged
from deepbasis.data.sample import Sample
from deepbasis.plots import DEPTH_COLOURS, ERROR_COLOURS, rows_of, save, show_map, show_points
from deepbasis.pretrained import default_model
from deepbasis.result import Completion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = ("500", "50", "5", "0")
LEVEL = 0.9


@dataclass(frozen=True)
class Case:
    """A frame with some points, its completion, and the time that it took."""

    sample: Sample
    answer: Completion
    seconds: float

    @classmethod
    def of(cls, completer: model.Completer, frame: Sample, points: str, seed: int) -> "Case":
        """Draw points by a pattern, or take the frame's own for "sensor", and complete them."""
        draw = torch.Generator().manual_seed(seed)
        if points != "sensor":
            measured = patterns.parse(points)(frame.depth, frame.image, frame.intrinsics, draw)
            frame = frame._replace(sparse=measured)
        start = time.perf_counter()
        answer = completer.complete(frame.image.permute(1, 2, 0).numpy(), frame.sparse[0].numpy())
        return cls(frame, answer, time.perf_counter() - start)

    @cached_property
    def errors(self) -> tuple[float, float, float]:
        """MAE and RMSE in metres, and coverage of the interval."""
        true, depth = self.sample.depth[0], torch.from_numpy(self.answer.depth)
        low, high = (torch.from_numpy(bound) for bound in self.answer.interval(LEVEL))
        mae, rmse = float(metrics.mae(depth, true)), float(metrics.rmse(depth, true))
        return mae, rmse, float(metrics.coverage(low, high, true))


def run(out: Path, seed: int = 0) -> None:
    """Complete, print error, coverage and time, and write the picture."""
    name = default_model()
    room, completer = packaged("rooms")[0], model.load(name)
    Case.of(completer, room, "0", seed)  # the first call of all is slower than the others
    height, width = room.image.shape[1:]
    print(f"a rendered room, {height} x {width} pixels, completed by the model {name!r}")
    print(f"points       MAE      RMSE  coverage of {LEVEL:.0%} interval    time")
    cases = []
    for points in POINTS:
        case = Case.of(completer, room, points, seed)
        mae, rmse, coverage = case.errors
        print(
            f"{points:>6} {mae:7.3f} m {rmse:7.3f} m {coverage:24.1%} {case.seconds:7.2f} s",
            flush=True,
        )
        cases.append(case)
    save(draw(cases), out)
    print(f"picture: {out}")


def draw(cases: Sequence[Case], *, with_image: bool = True) -> "Figure":
    """For each case the image with its points, depth, std and error.

    The std and the error of a case share a scale.
    """
    from matplotlib.figure import Figure

    height, width = cases[0].sample.image.shape[1:]
    columns = 3 + with_image
    size = (3.3 * columns, (2.7 * height / width + 0.6) * len(cases))
    figure = Figure(figsize=size, layout="constrained")
    for case, axes in zip(cases, figure.subplots(len(cases), columns, squeeze=False), strict=True):
        true = torch.where(case.sample.mask, case.sample.depth, torch.nan)[0]
        near, far = true.nanquantile(torch.tensor([0.01, 0.99])).tolist()
        depth, std = (torch.from_numpy(x) for x in (case.answer.depth, case.answer.std))
        error = (depth - true).abs()
        largest = (0.0, max(float(x.nanquantile(0.98)) for x in (error, std)))
        mae, _, coverage = case.errors
        count = len(case.answer.points)
        if with_image:
            rows = rows_of(case.sample.sparse[0])
            show_points(axes[0], case.sample.image, rows, (near, far))
        title = "depth (m)" if with_image else f"depth (m) from {count} points"
        show_map(axes[-3], depth, title, DEPTH_COLOURS, (near, far))
        show_map(axes[-2], std, f"std (m); coverage {coverage:.0%}", ERROR_COLOURS, largest)
        show_map(axes[-1], error, f"error (m); mean {mae:.2f}", ERROR_COLOURS, largest)
    return figure
