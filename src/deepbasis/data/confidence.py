# SPDX-License-Identifier: Apache-2.0
"""Depth images with a confidence for each pixel, as phones write them.

The LiDAR of an iPhone gives 192 x 256 depths for an image of 1440 x 1920 pixels, with a confidence
of 0 (low), 1 (medium) or 2 (high); some programs write these as 0, 54 and 255. Each depth becomes a
point at the centre of the pixels that it covers, with a standard deviation by its confidence: how
to fill the gaps is left to the model.
"""

from pathlib import Path

import numpy as np

from deepbasis.data.formats import open_picture
from deepbasis.points import Points
from deepbasis.shapes import Float

# Standard deviation relative to depth at low, medium and high confidence. Apple publishes none;
# these are assumptions on the safe side.
RELATIVE_SIGMA = (0.2, 0.05, 0.01)
LEVELS = {0: 0, 1: 1, 2: 2, 54: 1, 255: 2}
# Ratios of width and of height may differ by this share, for sizes that were rounded.
SLACK = 0.02


def read_confidence(path: Path) -> Float[np.ndarray, "h w"]:
    """Relative standard deviation of each pixel."""
    levels = np.array(open_picture(path))
    if levels.ndim != 2 or levels.dtype.kind not in "iu":
        raise ValueError(f"{path} is {list(levels.shape)}, not a grey image of confidences")
    if strange := set(np.unique(levels).tolist()) - LEVELS.keys():
        raise ValueError(
            f"{path} holds the confidence {min(strange)}; expected 0, 1 and 2, or 0, 54 and 255"
        )
    sigma = np.zeros(levels.shape)
    for level, rank in LEVELS.items():
        sigma[levels == level] = RELATIVE_SIGMA[rank]
    return sigma


def to_points(
    depth: Float[np.ndarray, "h w"],
    sigma: Float[np.ndarray, "h2 w2"],
    size: tuple[int, ...],
    name: str,
) -> Points:
    """Points of a depth image that may be smaller than its image, with relative sigmas."""
    along, down = size[1] / depth.shape[1], size[0] / depth.shape[0]
    if abs(along / down - 1) > SLACK or along < 1 - SLACK:
        raise ValueError(
            f"{name} is {depth.shape[0]} x {depth.shape[1]} pixels (height x width) for an image "
            f"of {size[0]} x {size[1]}; it may be smaller, with the same aspect ratio"
        )
    if sigma.shape != depth.shape:
        raise ValueError(
            f"{name} has {depth.shape[0]} x {depth.shape[1]} depths, but {sigma.shape[0]} x "
            f"{sigma.shape[1]} confidences"
        )
    row, column = np.nonzero(depth > 0)
    metres = depth[row, column].astype(np.float64)
    u, v = (column + 0.5) * along - 0.5, (row + 0.5) * down - 0.5
    return Points.from_rows(np.stack([u, v, metres, sigma[row, column] * metres], 1))
