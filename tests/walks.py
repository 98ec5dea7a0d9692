# SPDX-License-Identifier: Apache-2.0
"""Rendered sequences, and points of their frames."""

from functools import cache

import numpy as np

import deepbasis
from deepbasis.data.worlds import render_walk

SIZE = (96, 128)


@cache
def room(index=0, seconds=1.0):
    """Consecutive frames of a rendered room."""
    return list(render_walk(11, index, SIZE, seconds))


@cache
def bundled(name):
    return deepbasis.load(name)


def draw_points(frame, count, seed):
    row, column = np.nonzero(frame.depth > 0)
    some = np.random.default_rng(seed).choice(len(row), count, replace=False)
    return np.stack([column[some], row[some], frame.depth[row[some], column[some]]], 1)


def camera(frame):
    fx, fy, cx, cy = frame.intrinsics
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
