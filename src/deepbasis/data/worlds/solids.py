# SPDX-License-Identifier: Apache-2.0
"""Solid shapes as triangles. Metres; x right, y forward, z up; a shape stands on z = 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Corner = Sequence[float]


@dataclass(frozen=True)
class Shape:
    """Triangles with a normal and a texture coordinate (in metres) at each corner."""

    corners: Array  # t 3 3
    normals: Array  # t 3 3
    uv: Array  # t 3 2

    def __add__(self, other: "Shape") -> "Shape":
        return Shape(
            np.concatenate([self.corners, other.corners]),
            np.concatenate([self.normals, other.normals]),
            np.concatenate([self.uv, other.uv]),
        )

    def moved(self, x: float = 0, y: float = 0, z: float = 0) -> "Shape":
        """Shift."""
        return Shape(self.corners + np.array([x, y, z]), self.normals, self.uv)

    def turned(self, angle: float, axis: str = "z") -> "Shape":
        """Rotate by an angle in radians about an axis through the origin."""
        c, s = np.cos(angle), np.sin(angle)
        i, j = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
        rotation = np.eye(3)
        rotation[i, i] = rotation[j, j] = c
        rotation[i, j], rotation[j, i] = -s, s
        return Shape(self.corners @ rotation.T, self.normals @ rotation.T, self.uv)

    def scaled(self, x: float, y: float, z: float) -> "Shape":
        """Stretch along the axes."""
        factor = np.array([x, y, z])
        normals = self.normals / factor
        normals /= np.linalg.norm(normals, axis=-1, keepdims=True) + 1e-9
        return Shape(self.corners * factor, normals, self.uv)


def sheet(points: Array | Sequence[Any]) -> Shape:
    """A smooth surface through a grid of points, n x m x 3."""
    p = np.asarray(points, dtype=float)
    across, along = np.gradient(p, axis=1), np.gradient(p, axis=0)
    normal = np.cross(across, along)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True) + 1e-9
    u = np.cumsum(np.linalg.norm(np.diff(p, axis=1, prepend=p[:, :1]), axis=-1), 1)
    v = np.cumsum(np.linalg.norm(np.diff(p, axis=0, prepend=p[:1]), axis=-1), 0)
    everything = np.concatenate([p, normal, u[..., None], v[..., None]], -1)
    a, b = everything[:-1, :-1], everything[:-1, 1:]
    c, d = everything[1:, 1:], everything[1:, :-1]
    t = np.stack([np.stack([a, b, c], -2), np.stack([a, c, d], -2)]).reshape(-1, 3, 8)
    flat = np.cross(t[:, 1, :3] - t[:, 0, :3], t[:, 2, :3] - t[:, 0, :3])
    flat /= np.linalg.norm(flat, axis=-1, keepdims=True) + 1e-12
    pole = (
        np.linalg.norm(t[..., 3:6], axis=-1, keepdims=True) < 0.5
    )  # where the grid comes together
    return Shape(t[..., :3], np.where(pole, flat[:, None], t[..., 3:6]), t[..., 6:])


def quad(a: Corner, b: Corner, c: Corner, d: Corner) -> Shape:
    """A flat four-cornered face, corners in order around it."""
    p = np.array([a, b, c, d], dtype=float)
    normal = np.cross(p[2] - p[0], p[3] - p[1])
    normal /= np.linalg.norm(normal) + 1e-9
    u, v = np.linalg.norm(p[1] - p[0]), np.linalg.norm(p[3] - p[0])
    uv = np.array([[0, 0], [u, 0], [u, v], [0, v]])
    order = [[0, 1, 2], [0, 2, 3]]
    return Shape(p[order], np.broadcast_to(normal, (2, 3, 3)), uv[order])


def _unit_box() -> tuple[Array, Array, Array]:
    """Corners, normals and, for each face, which axes its texture follows."""
    lower = [(-0.5, -0.5, 0), (0.5, -0.5, 0), (0.5, 0.5, 0), (-0.5, 0.5, 0)]
    upper = [(x, y, 1) for x, y, _ in lower]
    sides = [quad(lower[i], lower[i - 3], upper[i - 3], upper[i]) for i in range(4)]
    whole = joined([*sides, quad(*upper), quad(*lower[::-1])])
    axes = np.repeat([[0, 2], [1, 2], [0, 2], [1, 2], [0, 1], [0, 1]], 2, axis=0)
    return whole.corners, whole.normals, np.broadcast_to(axes[:, None], (12, 3, 2))


def box(width: float, depth: float, height: float) -> Shape:
    """Centred on the origin in x and y."""
    corners, normals, axes = UNIT_BOX
    scaled = corners * np.array([width, depth, height])
    return Shape(scaled, normals, np.take_along_axis(scaled, axes, -1))


def lathe(profile: Sequence[tuple[float, float]], sides: int = 16) -> Shape:
    """A surface of revolution about z, from pairs of radius and height."""
    angle = np.linspace(0, 2 * np.pi, sides + 1)
    radius, height = np.array(profile, dtype=float).T
    x, y = radius[:, None] * np.cos(angle), radius[:, None] * np.sin(angle)
    return sheet(np.stack([x, y, np.broadcast_to(height[:, None], x.shape)], -1))


def cylinder(radius: float, height: float, sides: int = 16) -> Shape:
    """Standing on the ground, with its two ends."""
    unit = _unit_cylinder(sides).scaled(radius, radius, height)
    return Shape(unit.corners, unit.normals, unit.uv * np.array([radius, height]))


@cache
def _unit_cylinder(sides: int) -> Shape:
    """Its sharp edges come from building side and ends apart."""
    ends = [lathe([(0, z), (1, z)], sides) for z in (0.0, 1.0)]
    return joined([lathe([(1, 0), (1, 1)], sides), *ends])


def sphere(radius: float, sides: int = 16) -> Shape:
    """Standing on the ground."""
    unit = _unit_sphere(sides)
    return Shape(unit.corners * radius, unit.normals, unit.uv * radius)


@cache
def _unit_sphere(sides: int) -> Shape:
    angle = np.linspace(-np.pi / 2, np.pi / 2, sides // 2 + 1)
    return lathe([(np.cos(a), 1 + np.sin(a)) for a in angle], sides)


def prism(outline: Sequence[tuple[float, float]], depth: float) -> Shape:
    """A convex outline in x and z, drawn out along y, centred."""
    front = [(x, -depth / 2, z) for x, z in outline]
    back = [(x, depth / 2, z) for x, z in outline]
    n = len(outline)
    sides = [quad(front[i], front[(i + 1) % n], back[(i + 1) % n], back[i]) for i in range(n)]
    ends = [
        quad(face[0], face[i], face[i + 1], face[i + 1])
        for face in (front, back)
        for i in range(1, n - 1)
    ]
    return joined([*sides, *ends])


def joined(shapes: Sequence[Shape]) -> Shape:
    """All of them as one."""
    return Shape(
        *(
            np.concatenate([getattr(s, name) for s in shapes])
            for name in ("corners", "normals", "uv")
        )
    )


UNIT_BOX = _unit_box()
