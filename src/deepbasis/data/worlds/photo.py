# SPDX-License-Identifier: Apache-2.0
"""Camera effects: from linear light to an 8-bit image."""

import numpy as np
from scipy.ndimage import gaussian_filter

from deepbasis.data.worlds.solids import Array


def develop(
    image: Array,
    rng: np.random.Generator,
    *,
    exposure: float,
    grain: float,
    noise_rng: np.random.Generator | None = None,
) -> Array:
    """Convert a linear image to 8 bits like a simple camera.

    In a video, `rng` draws the same settings for all frames, and `noise_rng` the noise of each.
    """
    height, width = image.shape[:2]
    image = image * exposure / (np.quantile(image.mean(-1), 0.85) + 1e-6)
    image = image * rng.uniform(0.9, 1.1, 3).astype(np.float32)  # white balance
    y, x = np.indices((height, width), dtype=np.float32) / max(height, width)
    radius = (x - x.mean()) ** 2 + (y - y.mean()) ** 2
    image = image * (1 - rng.uniform(0, 0.8) * radius)[..., None]
    image = gaussian_filter(image, (blur := rng.uniform(0.2, 0.7), blur, 0))
    image = np.clip(image, 0, None) ** (1 / 2.2)
    image = image / (1 + np.clip(image - 0.8, 0, None))  # highlights roll off
    drawn = (noise_rng or rng).standard_normal(image.shape, np.float32)
    noise = grain * gaussian_filter(drawn, (0.5, 0.5, 0)) * 2
    return (np.clip(image + noise, 0, 1) * 255).round().astype(np.uint8)


def let_it_rain(image: Array, rng: np.random.Generator) -> Array:
    """Streaks of falling drops on a linear image."""
    height, width = image.shape[:2]
    streaks = np.zeros((height, width), np.float32)
    for _ in range(height * width // 160):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        streaks[y : y + int(rng.integers(3, height // 12 + 4)), x] += rng.uniform(0.05, 0.2)
    wet: Array = image * (1 - streaks[..., None]) + streaks[..., None] * image.mean() * 1.8
    return wet
