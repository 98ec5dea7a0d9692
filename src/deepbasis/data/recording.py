# SPDX-License-Identifier: Apache-2.0
"""Recordings: bags, SLAM folders and other collections that hold images with measured depth."""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from deepbasis.points import Points
from deepbasis.shapes import Float, UInt8

# Seconds that an image and its points may be apart, as in the tools of TUM RGB-D.
TOLERANCE = 0.02
NANOSECONDS = 10**9


class Recorded(NamedTuple):
    """One frame of a recording."""

    image: UInt8[np.ndarray, "h w 3"]
    points: Points | None
    camera: Float[Tensor, "3 3"] | None
    time: int | None = None
    """Nanoseconds."""
    frame_id: str = "camera"


@runtime_checkable
class Recording(Protocol):
    """Frames by name, read one at a time."""

    names: list[str]
    about: str
    """What was found, as a sentence for the user."""

    def files(self, name: str) -> list[Path]:
        """Files that a frame depends on."""
        ...

    def read(self, name: str) -> Recorded:
        """Read a frame."""
        ...


def nearest(times: Sequence[int], asked: int) -> int:
    """Index of the time nearest to the one asked for; `times` is sorted and not empty."""
    right = bisect_left(times, asked)
    near = [i for i in (right - 1, right) if 0 <= i < len(times)]
    return min(near, key=lambda i: abs(times[i] - asked))


def pair(
    images: Sequence[int], points: Sequence[int], tolerance: float, where: str
) -> dict[int, int]:
    """For each image the measurement nearest in time, as indices; images without one within the
    tolerance are left out.

    Args:
        images, points: times in nanoseconds, sorted.
        tolerance: in seconds.
        where: what the times are of, for a message.
    """
    if not images or not points:
        raise ValueError(f"{where} holds {len(images)} images and {len(points)} measurements")
    found = {i: nearest(points, time) for i, time in enumerate(images)}
    off = {i: abs(points[j] - images[i]) / NANOSECONDS for i, j in found.items()}
    kept = {i: j for i, j in found.items() if off[i] <= tolerance}
    if not kept:
        raise ValueError(
            f"{where}: no measurement is within {tolerance:g} s of an image; the nearest pair is "
            f"{min(off.values()):.4g} s apart, so pass a larger --tolerance if that is near enough"
        )
    return kept


def pose_of(translation: Sequence[float], quaternion: Sequence[float]) -> Float[Tensor, "4 4"]:
    """A rigid transform from a translation and a quaternion x y z w, which is normalised."""
    x, y, z, w = torch.tensor(quaternion, dtype=torch.float64)
    norm = (x * x + y * y + z * z + w * w).sqrt()
    moved = torch.tensor(translation, dtype=torch.float64)
    if not (norm > 0 and norm.isfinite() and moved.isfinite().all()):
        raise ValueError(f"{list(quaternion)} at {list(translation)} is not a valid pose")
    x, y, z, w = x / norm, y / norm, z / norm, w / norm
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = torch.stack(
        [
            torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]),
            torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]),
            torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]),
        ]
    )
    pose[:3, 3] = moved
    return pose
