# SPDX-License-Identifier: Apache-2.0
"""Procedural surfaces: colour as a function of texture coordinates in metres."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deepbasis.data.worlds.solids import Array


@dataclass(frozen=True)
class Material:
    """What a surface looks like. Colours are linear, 0 to 1."""

    texture: str = "plain"
    colour: tuple[float, float, float] = (0.5, 0.5, 0.5)
    other: tuple[float, float, float] = (0.3, 0.3, 0.3)
    scale: float = 0.2
    """Size of the pattern, metres."""
    gloss: float = 0.0
    glow: float = 0.0
    seed: int = 0


class Palette:
    """The materials of a scene, ready to colour many points at once."""

    def __init__(self, materials: Sequence[Material]) -> None:
        def column(name: str) -> Array:
            return np.array([getattr(m, name) for m in materials], np.float32)

        self.colour, self.other = column("colour"), column("other")
        self.scale, self.gloss, self.glow = column("scale"), column("gloss"), column("glow")
        self.seed = np.array([m.seed for m in materials], np.uint32)
        self.texture = np.array([list(TEXTURES).index(m.texture) for m in materials])

    def albedo(self, material: Array, uv: Array) -> Array:
        """Colours, n x 3, of n points on these materials at these texture coordinates (metres)."""
        colours = np.zeros((len(uv), 3), np.float32)
        kind = self.texture[material]
        for index, texture in enumerate(TEXTURES.values()):
            at = np.flatnonzero(kind == index)
            if len(at):
                m = material[at]
                share = texture(uv[at] / self.scale[m, None], self.seed[m])
                if share.ndim == 1:
                    mixed = self.colour[m] + share[:, None] * (self.other[m] - self.colour[m])
                    share = mixed.clip(0, 1)
                colours[at] = share
        return colours


def hashed(i: Array, j: Array, seed: Array) -> Array:
    """Random numbers in 0..1 that belong to the cells (i, j) of a grid."""
    i, j = (np.asarray(k).astype(np.int32).view(np.uint32) for k in (i, j))
    h = i * np.uint32(374761393) + j * np.uint32(668265263)  # arrays wrap around, as wanted
    h = h + seed * np.uint32(2654435761)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(1274126177)
    h ^= h >> np.uint32(16)
    return h.astype(np.float32) / np.float32(2**32)


def per_cell(cell: Array, seed: Array) -> Array:
    """Random numbers in 0..1 for n cells, n x 2."""
    return hashed(cell[:, 0], cell[:, 1], seed)


def noise(uv: Array, seed: Array, octaves: int = 3) -> Array:
    """Smooth noise in 0..1, with finer and weaker noise on top."""
    total, weight = np.zeros(len(uv), np.float32), 0.0
    for octave in range(octaves):
        p = (uv * 2**octave).astype(np.float32)
        cell = np.floor(p)
        s, t = ((f := p - cell) * f * (3 - 2 * f)).T
        i, j = (cell.T[k] + np.array([[0, 1, 0, 1], [0, 0, 1, 1]])[k][:, None] for k in (0, 1))
        a, b, c, d = hashed(i, j, seed + np.uint32(octave))
        low, high = a + s * (b - a), c + s * (d - c)
        total += (low + t * (high - low)) / 2**octave
        weight += 1 / 2**octave
    return total / weight


def _plain(uv: Array, seed: Array) -> Array:
    return 0.15 * noise(uv, seed, 2)


def _mottled(uv: Array, seed: Array) -> Array:
    return noise(uv, seed, 4)


def _wood(uv: Array, seed: Array) -> Array:
    """Boards with a grain that runs along them."""
    board = np.floor(uv[:, 0] * 2)
    grain = noise(uv * [12, 0.6] + board[:, None] * 7.3, seed)
    gap = np.abs(uv[:, 0] * 2 - board - 0.5) > 0.48
    return np.clip(0.6 * grain + 0.35 * hashed(board, board, seed) + 0.4 * gap, 0, 1)


def _tiles(uv: Array, seed: Array) -> Array:
    cell = np.floor(uv)
    joint = (np.abs(uv - cell - 0.5) > 0.47).any(1)
    return np.where(joint, 1.0, 0.25 * per_cell(cell, seed) + 0.1 * noise(uv * 6, seed, 2))


def _bricks(uv: Array, seed: Array) -> Array:
    row = np.floor(uv[:, 1] * 3)
    shifted = np.stack([uv[:, 0] + 0.5 * (row % 2), uv[:, 1] * 3], -1)
    cell = np.floor(shifted)
    joint = (np.abs(shifted - cell - 0.5) > [0.47, 0.43]).any(1)
    return np.where(joint, 1.0, 0.4 * per_cell(cell, seed) + 0.15 * noise(uv * 9, seed, 2))


def _stripes(uv: Array, seed: Array) -> Array:
    band = np.floor(uv[:, 0] * 2)
    return np.where(band % 2 == 0, 0.1, 0.6 + 0.4 * hashed(band, band * 0, seed))


def _checks(uv: Array, seed: Array) -> Array:
    return 0.85 * (np.floor(uv).sum(1) % 2) + 0.15 * noise(uv * 5, seed, 2)


def _carpet(uv: Array, seed: Array) -> Array:
    return np.clip(0.5 * noise(uv, seed, 2) + 0.5 * noise(uv * 40, seed + np.uint32(9), 1), 0, 1)


def _marble(uv: Array, seed: Array) -> Array:
    return 0.5 + 0.5 * np.sin(6 * uv[:, 0] + 9 * noise(uv, seed, 4))


def _picture(uv: Array, seed: Array) -> Array:
    """Blobs of a few colours: a painting, a poster, a screen."""
    blob = np.floor(noise(uv * 1.7, seed, 3) * 6 + uv[:, 1]) % 5
    tint = np.stack([hashed(blob, np.full_like(blob, k), seed) for k in range(4)], -1)
    colours = tint[:, :1] * (0.6 + 0.4 * tint[:, 1:]) * 0.85
    return colours * (0.7 + 0.3 * noise(uv * 6, seed + np.uint32(1), 2))[:, None]


def _facade(uv: Array, seed: Array) -> Array:
    """Rows of windows in a wall; 1 is glass."""
    cell = np.floor(uv)
    inside = uv - cell
    window = (np.abs(inside - 0.5) < [0.28, 0.32]).all(1) & (cell[:, 1] >= 0)
    frame = window & (
        (np.abs(inside - 0.5) > [0.24, 0.28]).any(1) | (np.abs(inside[:, 0] - 0.5) < 0.02)
    )
    wall = 0.12 * noise(uv * 8, seed)
    return np.where(frame, 0.0, np.where(window, 0.75 + 0.25 * per_cell(cell, seed), wall))


def _asphalt(uv: Array, seed: Array) -> Array:
    return np.clip(0.45 * noise(uv, seed, 3) + 0.4 * noise(uv * 30, seed + np.uint32(5), 1), 0, 1)


def _leaves(uv: Array, seed: Array) -> Array:
    return np.clip(1.6 * noise(uv * 3, seed, 3) - 0.3, 0, 1)


# Each gives the share of the second colour, or the colour itself.
TEXTURES: dict[str, Callable[[Array, Array], Array]] = {
    "plain": _plain,
    "mottled": _mottled,
    "wood": _wood,
    "tiles": _tiles,
    "bricks": _bricks,
    "stripes": _stripes,
    "checks": _checks,
    "carpet": _carpet,
    "marble": _marble,
    "picture": _picture,
    "facade": _facade,
    "asphalt": _asphalt,
    "leaves": _leaves,
}
