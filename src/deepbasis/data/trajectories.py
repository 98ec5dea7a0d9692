# SPDX-License-Identifier: Apache-2.0
"""Poses of a camera over time, in the format of TUM RGB-D.

    # timestamp tx ty tz qx qy qz qw
    1305031526.6713 0.1554 -1.1425 1.3593 -0.5721 0.6521 -0.3565 0.3452

One line a pose: seconds, position in metres, and a unit quaternion; from the camera's frame (x
right, y down, z forward) to the world's.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deepbasis.data.files import find_file
from deepbasis.data.limits import read_text
from deepbasis.data.recording import NANOSECONDS, TOLERANCE, nearest, pose_of
from deepbasis.shapes import Float

# Larger times are in nanoseconds, as some programs write them.
NOT_SECONDS = 1e14
# A quaternion's length may differ from 1 by this much.
SLACK = 1e-2
COLUMNS = "timestamp tx ty tz qx qy qz qw"


class Trajectory(NamedTuple):
    """Poses of a camera."""

    times: Float[np.ndarray, "n"]
    poses: Float[np.ndarray, "n 4 4"]

    def by_time(self) -> tuple[list[int], Float[np.ndarray, "n 4 4"]]:
        """Times in nanoseconds, sorted, and the poses in this order."""
        order = self.times.argsort(kind="stable")
        return [round(time * NANOSECONDS) for time in self.times[order]], self.poses[order]

    def match(
        self, names: Sequence[str], path: Path, tolerance: float = TOLERANCE
    ) -> list[Float[np.ndarray, "4 4"]]:
        """The pose of each frame: by the frames' times, or else in order if there are as many.

        Args:
            names: of the frames; to be matched by time, these must be times in seconds. With a
                decimal point they are times for certain, and never matched in order.
            path: of the file, for messages.
            tolerance: seconds between a frame and its pose.
        """
        in_order = len(names) == len(self.times)
        try:
            wanted = [round(float(name) * NANOSECONDS) for name in names]
        except (ValueError, OverflowError):
            if in_order:
                return list(self.poses)
            raise ValueError(
                f"{path} holds {len(self.times)} poses for {len(names)} frames; pass one for each "
                "frame, or name the frames by their time in seconds"
            ) from None
        times, poses = self.by_time()
        found = [nearest(times, time) for time in wanted]
        off = [abs(times[i] - time) / NANOSECONDS for i, time in zip(found, wanted, strict=True)]
        far = [i for i, seconds in enumerate(off) if seconds > tolerance]
        if far and in_order and not any("." in name for name in names):
            return list(self.poses)
        ((repeated, count),) = Counter(times).most_common(1)
        if count > 1:
            raise ValueError(
                f"{path} holds {count} poses at {repeated / NANOSECONDS:.15g} s, so it is not "
                "clear which one is meant; correct the times, or leave one pose for each"
            )
        if far and not any("." in name for name in names):
            raise ValueError(
                f"{path} holds {len(times)} poses for {len(names)} frames, and none within "
                f"{tolerance:g} s of the frame {names[far[0]]!r}, if this is its time; pass one "
                "pose for each frame, or name the frames by their time in seconds"
            )
        if far:
            first = far[0]
            raise ValueError(
                f"{path} holds no pose within {tolerance:g} s of the frame {names[first]!r}: its "
                f"time is {wanted[first] / NANOSECONDS:.15g} s, and the nearest pose, of "
                f"{len(times)} for {len(names)} frames, is at "
                f"{times[found[first]] / NANOSECONDS:.15g} s; correct the times, or pass a larger "
                "--tolerance if that is near enough"
            )
        return list(poses[found])


def read_trajectory(path: Path | str) -> Trajectory:
    """Read a file of poses."""
    rows = []
    for number, line in enumerate(read_text(find_file(Path(path))).splitlines(), 1):
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
