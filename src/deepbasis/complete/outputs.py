# SPDX-License-Identifier: Apache-2.0
"""Writing what was completed: maps, a point cloud, a figure, and a summary that is written last."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deepbasis import metrics
from deepbasis.complete.check import LEVELS, Check
from deepbasis.complete.config import Settings
from deepbasis.complete.inputs import Frame, Loaded
from deepbasis.completion import Completion
from deepbasis.data.clouds import write_ply
from deepbasis.data.files import whole
from deepbasis.data.formats import (
    KITTI,
    LARGEST,
    MILLIMETRES,
    to_sample,
    write_depth_png,
    write_npy,
)
from deepbasis.plots import save, show_map, show_points
from deepbasis.shapes import Float

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A share of outliers above which something is wrong with all points, and how many are listed.
MANY_OUTLIERS, LISTED = 0.1, 50


def write(
    loaded: Loaded, answer: Completion, check: Check | None, settings: Settings
) -> dict[str, Any]:
    """Write all files of a frame, each whole; returns the summary."""
    name, out = loaded.frame.name, settings.out
    maps = {"depth": answer.depth, "std": answer.std}
    for level in settings.interval:
        low, high = answer.interval(level)
        maps |= {f"low{100 * level:g}": low, f"high{100 * level:g}": high}
    scales = {}
    for kind, values in maps.items():
        write_npy(out / f"{name}-{kind}.npy", values)
        scales[kind] = _write_png(out / f"{name}-{kind}.png", values)
    if settings.cloud:
        _write_cloud(out / f"{name}.ply", loaded, answer)
    if settings.figure:
        save(draw(loaded, answer), out / f"{name}.png")
    summary = summarise(loaded, answer, check, settings)
    summary["png_scale"] = scales
    with whole(out / f"{name}.json") as file:
        file.write(json.dumps(summary, indent=1, allow_nan=False).encode())
    return summary


def is_done(frame: Frame, settings: Settings) -> bool:
    """Whether a frame has been completed, with the same settings."""
    path = settings.out / f"{frame.name}.json"
    try:
        done = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(done, dict) and done.get("settings") == _plain(settings)


def summarise(
    loaded: Loaded, answer: Completion, check: Check | None, settings: Settings
) -> dict[str, Any]:
    """What was decided, in the words of the documentation; numbers that are not known are null."""
    dropped = loaded.dropped | answer.dropped
    return {
        "image": str(loaded.frame.image),
        "size": list(answer.depth.shape),
        "points": len(answer.points),
        "dropped": dropped,
        "alpha": _finite(answer.alpha),
        "beta": _finite(answer.beta),
        "noise_percent": _finite(answer.noise_percent),
        "steps": answer.steps,
        "log_evidence": _finite(answer.log_evidence),
        "outliers": len(answer.outliers),
        "worst_outliers": [one._asdict() for one in answer.outliers[:LISTED]],
        "check": None if check is None else _report(check),
        "truth": None if loaded.truth is None else _compare(answer, loaded.truth),
        "warnings": [*answer.warnings, *_doubts(answer)],
        "settings": _plain(settings),
    }


def draw(loaded: Loaded, answer: Completion) -> "Figure":
    """Image with points, depth, std and, if the truth is known, the true error on std's scale."""
    from matplotlib.figure import Figure

    depth, std = torch.from_numpy(answer.depth), torch.from_numpy(answer.std)
    points = torch.from_numpy(answer.points)
    sparse = np.zeros(depth.shape, np.float32)
    sparse[points[:, 1].int(), points[:, 0].int()] = points[:, 2]
    near, far = np.quantile(answer.depth, [0.01, 0.99]).tolist()
    largest = (0.0, float(np.quantile(answer.std, 0.98)))
    panels = 3 if loaded.truth is None else 4
    width = 4.2 * min(max(depth.shape[1] / depth.shape[0], 0.7), 2.5) / 1.3
    figure = Figure(figsize=(panels * width, 3), layout="constrained")
    axes = figure.subplots(1, panels)
    show_points(axes[0], to_sample(loaded.frame.name, loaded.image, sparse=sparse), (near, far))
    if loaded.truth is not None:
        true = torch.from_numpy(loaded.truth)
        error = torch.where(true > 0, (depth - true).abs(), torch.nan)
        largest = (0.0, float(error.nanquantile(0.98)))
        show_map(axes[3], error, "true error (m)", "magma", largest)
    show_map(axes[1], depth, "depth (m)", "turbo", (near, far))
    show_map(axes[2], std, "std (m)", "magma", largest)
    return figure


def _write_png(path: Path, values: Float[np.ndarray, "h w"]) -> float:
    """Write a 16-bit map and return its scale: millimetres if they fit, else KITTI's 256.

    What does not fit even then is cut off at 255.996 m; the .npy holds it.
    """
    largest = float(values.max(where=np.isfinite(values), initial=0))
    scale = MILLIMETRES if largest * MILLIMETRES <= LARGEST else KITTI
    write_depth_png(path, np.minimum(values, LARGEST / scale), scale)
    return scale


def _write_cloud(path: Path, loaded: Loaded, answer: Completion) -> None:
    """Every pixel as a point in the camera's frame; `std` is that of its depth z, in metres."""
    assert loaded.camera is not None
    (fx, _, cx), (_, fy, cy), _ = loaded.camera.tolist()
    z, std = answer.depth.astype(np.float64), answer.std
    row, column = np.nonzero(np.isfinite(z) & np.isfinite(std))
    z = z[row, column]
    xyz = np.stack([(column - cx) / fx * z, (row - cy) / fy * z, z], 1).astype(np.float32)
    write_ply(path, xyz, loaded.image[row, column], {"std": std[row, column]})


def _report(check: Check) -> dict[str, Any]:
    levels = [f"{level:.4g}" for level in LEVELS]
    return {
        "held_back": len(check),
        "mae": check.mae,
        "rmse": check.rmse,
        "coverage": dict(zip(levels, check.coverage, strict=True)),
        "tolerance": dict(zip(levels, check.tolerance, strict=True)),
        "trusted": check.trusted,
        "factor": check.factor,
        "verdict": check.verdict,
    }


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
        f"{wrong} of {points} points contradict the others: are image and points of one moment, "
        "and the calibration right? --huber 1.345 keeps them from pulling"
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _plain(settings: Settings) -> dict[str, Any]:
    """Settings as JSON gives them back."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings), default=str))
    return plain
