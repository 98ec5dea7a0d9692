# SPDX-License-Identifier: Apache-2.0
"""Transforms between the frames of a robot, as the topics /tf_static and /tf give them.

A transform is named by (parent, child), and takes points of the child to the parent.
"""

from array import array
from collections import deque
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from deepbasis.data.recording import NANOSECONDS
from deepbasis.shapes import Float

# Frames that a message lists.
LISTED = 12
# Transforms whose numbers differ by less are the same.
SAME = 1e-6

Names = tuple[str, str]


class Transforms:
    """Transforms that never change and, if they are kept, those that do, with their times.

    Args:
        moving: keep those that change; else they are forgotten.
        tolerance: seconds that a time may lie before the first or after the last of them.
    """

    def __init__(self, *, moving: bool = False, tolerance: float = 0.0) -> None:
        self.static: dict[Names, Tensor] = {}
        self.changing: set[Names] = set()
        self.moving, self.tolerance = moving, tolerance
        # Packed, since a long bag holds millions of them.
        self._times: dict[Names, array[int]] = {}
        self._poses: dict[Names, array[float]] = {}

    def add(self, names: Names, pose: Float[Tensor, "4 4"], time: int | None = None) -> None:
        """Add a transform; without a time, in nanoseconds, it is static, whatever came before."""
        before = self.static.setdefault(names, pose)
        self.static[names] = pose
        if time is None:
            return
        if not torch.allclose(before, pose, atol=SAME):
            self.changing.add(names)
        if self.moving:
            self._times.setdefault(names, array("q")).append(time)
            self._poses.setdefault(names, array("d")).extend(pose.flatten().tolist())

    def at(self, time: int) -> dict[Names, Float[Tensor, "4 4"]]:
        """All transforms that are known at a time in nanoseconds."""
        found = {names: pose for names, pose in self.static.items() if names not in self.changing}
        for names in self.changing & self._times.keys():
            times = np.array(self._times[names])
            if times.min() - time <= self.tolerance * NANOSECONDS >= time - times.max():
                poses = np.array(self._poses[names]).reshape(-1, 4, 4)
                found[names] = torch.from_numpy(interpolate(times, poses, time))
        return found


def interpolate(
    times: np.ndarray, poses: Float[np.ndarray, "n 4 4"], time: int
) -> Float[np.ndarray, "4 4"]:
    """A pose between the two nearest in time, or the first or last of all."""
    from scipy.spatial.transform import Rotation, Slerp

    order = times.argsort(kind="stable")
    after = int(np.searchsorted(times[order], time).clip(1, len(times) - 1))
    near = order[[after - 1, after]]
    start, end = times[near].tolist()
    share = min(max((time - start) / max(end - start, 1), 0.0), 1.0)
    found = (1 - share) * poses[near[0]] + share * poses[near[1]]
    found[:3, :3] = Slerp([0, 1], Rotation.from_matrix(poses[near, :3, :3]))(share).as_matrix()
    return found


def find_transform(
    transforms: Mapping[Names, Float[Tensor, "4 4"]],
    start: str,
    end: str,
    what: str = "static transform",
) -> Float[Tensor, "4 4"]:
    """The transform that takes points of frame `start` to frame `end`; a message says that there is
    no `what`.
    """
    steps: dict[str, dict[str, Tensor]] = {}
    for (parent, child), pose in transforms.items():
        steps.setdefault(child, {})[parent] = pose
        steps.setdefault(parent, {})[child] = torch.linalg.inv(pose)
    reached = {start: torch.eye(4, dtype=torch.float64)}
    waiting = deque([start])
    while waiting and end not in reached:
        here = waiting.popleft()
        for there, pose in steps.get(here, {}).items():
            if there not in reached:
                reached[there] = pose @ reached[here]
                waiting.append(there)
    if end not in reached:
        known = ", ".join(sorted(steps)[:LISTED]) or "none"
        raise ValueError(
            f"no {what} leads from the points' frame {start!r} to the image's {end!r} "
            f"(frames with transforms: {known})"
        )
    return reached[end]
