# SPDX-License-Identifier: Apache-2.0
"""Scenes, lights and cameras. Metres and radians; x right, y forward, z up."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from deepbasis.data.worlds.solids import Array, Shape
from deepbasis.data.worlds.textures import Material


class Reach(NamedTuple):
    """Depths in metres: range of the virtual sensor, and smallest median of a usable view."""

    nearest: float
    farthest: float
    typical: float


@dataclass(frozen=True)
class Light:
    """A lamp (with a position and an extent) or, without falloff, the sun (a far position)."""

    position: tuple[float, float, float]
    colour: tuple[float, float, float]
    extent: float = 0.1
    falloff: bool = True


@dataclass(frozen=True)
class RenderCamera:
    """A pinhole camera; angles in radians: yaw to the left, pitch upward, roll clockwise."""

    position: tuple[float, float, float]
    yaw: float
    pitch: float
    roll: float
    focal: float
    """Focal length in units of the image's width."""

    def rays(self, rows: Array, columns: Array, size: tuple[int, int]) -> Array:
        """Directions of length 1 along the optical axis, so that distance along them is depth."""
        height, width = size
        x = (columns - (width - 1) / 2) / (self.focal * width)
        z = -(rows - (height - 1) / 2) / (self.focal * width)
        right, forward, up = self.rotation.T.astype(np.float32)
        rays: Array = np.outer(x, right) + forward + np.outer(z, up)
        return rays

    @property
    def rotation(self) -> Array:
        """Camera axes (right, forward, up) as columns."""
        (cy, cp, cr), (sy, sp, sr) = (
            f([self.yaw, self.pitch, self.roll]) for f in (np.cos, np.sin)
        )
        yaw = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
        pitch = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
        roll = np.array([[cr, 0, sr], [0, 1, 0], [-sr, 0, cr]])
        return yaw @ pitch @ roll


@dataclass
class RenderScene:
    """Shapes with their materials, and the light."""

    shapes: list[Shape] = field(default_factory=list)
    materials: list[Material] = field(default_factory=list)
    lights: list[Light] = field(default_factory=list)
    ambient: tuple[float, float, float] = (0.3, 0.3, 0.3)
    sky: tuple[float, float, float] = (0.6, 0.75, 1.0)
    fog: float = 0.0
    """Share of the sky's colour that is added per metre."""

    def add(self, shape: Shape, material: Material) -> None:
        """Put a shape into the scene."""
        self.shapes.append(shape)
        self.materials.append(material)
