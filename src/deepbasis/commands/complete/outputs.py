# SPDX-License-Identifier: Apache-2.0
"""Writing what was completed: maps, a point cloud, a figure, and a summary that is written last."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deepbasis import metrics
from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.inputs import Loaded
from deepbasis.commands.complete.plan import CHECK, Planned
from deepbasis.data.clouds import to_xyz, write_ply
from deepbasis.data.files import atomic_write
from deepbasis.data.formats import (
    KITTI,
    LARGEST,
    MILLIMETRES,
    TUM,
    write_depth_png,
    write_exr,
    write_npy,
)
from deepbasis.plots import DEPTH_COLOURS, ERROR_COLOURS, save, show_map, show_points
from deepbasis.result import Completion
from deepbasis.self_check import Check
from deepbasis.shapes import Float
from deepbasis.stream import LEFT_OUT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A share of outliers above which something is wrong with all points, and how many are listed.
MANY_OUTLIERS, LISTED = 0.1, 50
# Scales of 16-bit depth images: metres = value / scale.
CONVENTIONS = {"ros": MILLIMETRES, "kitti": KITTI, "tum": TUM}
# Ratio of width to height from which panels are stacked.
WIDE = 2.0


def write(
    planned: Planned,
    loaded: Loaded,
    answer: Completion,
    check: Check | None,
    settings: Complete,
) -> dict[str, Any]:
    """Write all files of a frame, each complete or not at all; returns the summary."""
    files = planned.files
    scales, lost = {}, {}
    for kind, values in maps_of(answer, settings).items():
        write_npy(files[f"{kind}.npy"], values)
        scales[kind], lost[kind] = _write_png(files[f"{kind}.png"], values, settings.png)
    if settings.cloud:
        _write_cloud(files["cloud"], loaded, answer)
    if settings.exr:
        write_exr(files["exr"], {"Z": answer.depth, "std": answer.std})
    if settings.figure:
        save(draw(loaded, answer), files["figure"])
    if check is not None:
        check.write(files["check"])
    else:  # an earlier one is of other points
        planned.summary.with_name(planned.frame.name + CHECK).unlink(missing_ok=True)
    summary = summarise(loaded, answer, check)
    summary |= {"png_scale": scales, "made_from": planned.made_from}
    if settings.png is not None and (most := max(lost.values())):
        largest = LARGEST / CONVENTIONS[settings.png]
        summary["warnings"].append(
            f"--png {settings.png} stores at most {largest:.3f} m, so {most} pixels beyond are 0, "
            "no measurement; the .npy files contain them"
        )
    with atomic_write(planned.summary) as file:
        file.write(json.dumps(summary, indent=1, allow_nan=False).encode())
    return summary


def maps_of(answer: Completion, settings: Complete) -> dict[str, Float[np.ndarray, "h w"]]:
    """Depth, std, and the bounds of intervals, by name."""
    maps = {"depth": answer.depth, "std": answer.std}
    for level in settings.interval:
        low, high = answer.interval(level)
        maps |= {f"low{100 * level:g}": low, f"high{100 * level:g}": high}
    return maps


def summarise(loaded: Loaded, answer: Completion, check: Check | None) -> dict[str, Any]:
    """What was decided; unknown numbers are null."""
    post, true = answer.posterior, loaded.ground_truth
    assert post is not None
    # A sequence drops wrong points before the fit.
    dropped = dict(answer.dropped)
    gone = dropped.pop(LEFT_OUT, 0)
    return {
        "image": loaded.frame.shown or str(loaded.frame.image),
        "size": list(answer.depth.shape),
        "points": len(answer.points) - int(answer.left_out.sum()),
        "dropped": dropped,
        "alpha": _number(post.alpha),
        "beta": _number(post.beta),
        "median_std": float(np.median(answer.std)),
        "noise_percent": answer.noise_percent if len(answer.points) else None,
        "steps": int(post.steps),
        "log_evidence": _number(post.log_evidence),
        "familiarity": answer.familiarity,
        "left_out": int(answer.left_out.sum()) + gone,
        "outliers": len(answer.outliers) + gone,
        "worst_outliers": [one._asdict() for one in answer.outliers[:LISTED]],
        "check": None if check is None else check.report(),
        "ground_truth": None if true is None else _compare(answer, true),
        "warnings": [*answer.warnings, *_doubts(answer)],
    }


def draw(loaded: Loaded, answer: Completion) -> "Figure":
    """Image with points, depth, std and, with a ground truth, the error on the scale of std.

    Panels of wide images stand below each other.
    """
    from matplotlib.figure import Figure

    depth, std = torch.from_numpy(answer.depth), torch.from_numpy(answer.std)
    image = torch.from_numpy(loaded.image).permute(2, 0, 1)
    bounds = (float(np.quantile(answer.depth, 0.01)), float(np.quantile(answer.depth, 0.99)))
    largest = (0.0, float(np.quantile(answer.std, 0.98)))
    panels = 3 if loaded.ground_truth is None else 4
    aspect = min(max(depth.shape[1] / depth.shape[0], 0.5), 5.0)
    rows, columns = (panels, 1) if aspect > WIDE else (1, panels)
    width = 9.0 if rows > 1 else 3 * aspect + 1
    height = 8.2 / aspect + 0.35 if rows > 1 else 3.0
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns).flat
    wrong = torch.tensor([(one.u, one.v) for one in answer.outliers]).view(-1, 2)
    show_points(axes[0], image, torch.from_numpy(answer.points), bounds, wrong)
    if loaded.ground_truth is not None:
        true = torch.from_numpy(loaded.ground_truth)
        error = torch.where(true > 0, (depth - true).abs(), torch.nan)
        show_map(axes[3], error, "error (m)", ERROR_COLOURS, largest)
    show_map(axes[1], depth, "depth (m)", DEPTH_COLOURS, bounds)
    show_map(axes[2], std, "std (m)", ERROR_COLOURS, largest)
    return figure


def _write_png(
    path: Path, values: Float[np.ndarray, "h w"], convention: str | None
) -> tuple[float, int]:
    """Write a 16-bit map; returns its scale and how many pixels do not fit.

    Without a convention it is millimetres if they fit, else KITTI's 256, cut off at 255.996 m: the
    .npy holds what is beyond. With one, what is beyond is no measurement.
    """
    if convention is not None:
        scale = CONVENTIONS[convention]
        beyond = values > LARGEST / scale
        write_depth_png(path, np.where(beyond, 0, values), scale)
        return scale, int(beyond.sum())
    largest = float(values.max(where=np.isfinite(values), initial=0))
    scale = MILLIMETRES if largest * MILLIMETRES <= LARGEST else KITTI
    write_depth_png(path, np.minimum(values, LARGEST / scale), scale)
    return scale, 0


def _write_cloud(path: Path, loaded: Loaded, answer: Completion) -> None:
    """Every pixel as a point in the camera's frame; `std` is that of its depth z, in metres."""
    assert loaded.camera is not None
    xyz, where = to_xyz(answer.depth, loaded.camera)
    write_ply(path, xyz, loaded.image[where], {"std": answer.std[where]})


def _compare(answer: Completion, true: Float[np.ndarray, "h w"]) -> dict[str, float]:
    depth, truth = torch.from_numpy(answer.depth), torch.from_numpy(true)
    low, high = (torch.from_numpy(bound) for bound in answer.interval(0.9))
    return {
        "pixels": int((truth > 0).sum()),
        "mae": float(metrics.mae(depth, truth)),
        "rmse": float(metrics.rmse(depth, truth)),
        "coverage90": float(metrics.coverage(low, high, truth)),
    }


def _doubts(answer: Completion) -> list[str]:
    wrong, points = len(answer.outliers), len(answer.points)
    if wrong <= MANY_OUTLIERS * points:
        return []
    return [
        f"{wrong} of {points} points contradict the others: check that image and points were taken "
        "at the same time, and the calibration"
    ]


def _number(value: Tensor) -> float | None:
    """A number as JSON has it; None if it is infinite."""
    return float(value) if value.isfinite() else None
