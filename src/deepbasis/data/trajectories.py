# SPDX-License-Identifier: Apache-2.0
"""Poses of a camera over time, in the format of TUM RGB-D.

    # timestamp tx ty tz qx qy qz qw
    1305031526.6713 0.1554 -1.1425 1.3593 -0.5721 0.6521 -0.3565 0.3452

One line a pose: seconds, position in metres, and a unit quaternion; from the camera's frame (x
right, y down, z forward) to the world's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deepbasis.data.files import find_file
from deepbasis.data.limits import read_text
from deepbasis.data.recording import NANOSECONDS, TOLERANCE, pose_of
from deepbasis.shapes import Float, Int

# Larger times are in nanoseconds, as some programs write them.
NOT_SECONDS = 1e14
# A quaternion's length may differ from 1 by this much.
SLACK = 1e-2
COLUMNS = "timestamp tx ty tz qx qy qz qw"


class Trajectory(NamedTuple):
    """Poses of a camera."""

    times: Float[np.ndarray, "n"]
    poses: Float[np.ndarray, "n 4 4"]

    def match(self, names: Sequence[str], path: Path) -> list[Float[np.ndarray, "4 4"]]:
        """The pose of each frame: in order if there are as many, or else by the frames' times.

        Args:
            names: of the frames; to be matched by time, these must be times in seconds.
            path: of the file, for messages.
        """
        if len(names) == len(self.times):
            return list(self.poses)
        try:
            wanted = np.array([float(name) for name in names])
        except ValueError:
            raise ValueError(
                f"{path} holds {len(self.times)} poses for {len(names)} frames; pass one for each "
                "frame, or name the frames by their time in seconds"
            ) from None
        nearest = self._nearest(wanted)
        far = ~(np.abs(self.times[nearest] - wanted) <= TOLERANCE)
        if far.any():
            raise ValueError(
                f"{path} holds no pose within {TOLERANCE:g} s of the frame "
                f"{names[int(far.argmax())]!r}, and {len(self.times)} poses for {len(names)} frames"
            )
        return list(self.poses[nearest])

    def _nearest(self, wanted: Float[np.ndarray, "m"]) -> Int[np.ndarray, "m"]:
        """Indices of the poses nearest in time; hours have too many for a table of all gaps."""
        order = self.times.argsort(kind="stable")
        ordered = self.times[order]
        after = np.searchsorted(ordered, wanted).clip(max=len(ordered) - 1)
        before = (after - 1).clip(min=0)
        earlier = np.abs(ordered[before] - wanted) <= np.abs(ordered[after] - wanted)
        return order[np.where(earlier, before, after)]


def read_trajectory(path: Path) -> Trajectory:
    """Read a file of poses."""
    rows = []
    for number, line in enumerate(read_text(find_file(path)).splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        try:
            row = [float(word) for word in words]
        except ValueError:
            row = []
        if len(row) != 8 or not np.isfinite(row).all():
            raise ValueError(f"{path}, line {number}, is not a pose; expected `{COLUMNS}`")
        if row[0] < 0:
            raise ValueError(f"{path}, line {number}: {words[0][:40]!r} is not a time in seconds")
        length = np.linalg.norm(row[4:])
        if abs(length - 1) > SLACK:
            raise ValueError(
                f"{path}, line {number}, is not a valid pose: its quaternion qx qy qz qw has "
                f"length {length:.3g}, not 1"
            )
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no pose; expected lines of `{COLUMNS}`")
    times = np.array([row[0] for row in rows])
    poses = np.stack([pose_of(row[1:4], row[4:]).numpy() for row in rows])
    return Trajectory(np.where(times > NOT_SECONDS, times / NANOSECONDS, times), poses)
