# SPDX-License-Identifier: Apache-2.0
"""A room without its furniture: floor, ceiling, and walls with doors and windows in them."""

from dataclasses import dataclass, field

import numpy as np

from deepbasis.data.worlds import furniture
from deepbasis.data.worlds.furniture import Prop, Rng, colour, material, wood
from deepbasis.data.worlds.scene import Light, RenderScene
from deepbasis.data.worlds.solids import Shape, box, cylinder, joined, quad, sheet
from deepbasis.data.worlds.textures import Material

# From x to x and from z to z, along a wall.
Hole = tuple[float, float, float, float]


@dataclass
class Room:
    """A box of width x depth x height with the floor's corner at the origin."""

    width: float
    depth: float
    height: float
    scene: RenderScene = field(default_factory=RenderScene)
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Footprints that are in use: x and y from, x and y to."""
    openings: list[tuple[int, float, float]] = field(default_factory=list)
    """Doors and windows: in which wall, and from where to where along it."""

    def free(self, x: float, y: float, w: float, d: float) -> bool:
        """Whether a footprint lies in the room and touches no other."""
        a, b, c, e = x - w / 2, y - d / 2, x + w / 2, y + d / 2
        inside = a > 0 and b > 0 and c < self.width and e < self.depth
        return inside and all(c < p or a > r or e < q or b > s for p, q, r, s in self.taken)

    def place(self, item: Prop, x: float, y: float, turn: float, z: float = 0.0) -> None:
        """Place a piece."""
        for shape, look in item.piece:
            self.scene.add(shape.turned(turn).moved(x, y, z), look)


def to_wall(room: Room, side: int, shape: Shape) -> Shape:
    """Move what was made for a wall along x (inside at y < 0) to the front, right, back or left."""
    w, d = room.width, room.depth
    turn, x, y = [(np.pi, w, 0.0), (-np.pi / 2, w, d), (0.0, 0.0, d), (np.pi / 2, 0.0, 0.0)][side]
    return shape.turned(turn).moved(x, y)


def make_shell(room: Room, rng: Rng) -> None:
    """Floor, ceiling and walls, with doors and windows in them."""
    w, d, h = room.width, room.depth, room.height
    floor = (
        wood(rng)
        if rng.random() < 0.5
        else material(rng, "tiles", "carpet", "checks", "marble", scale=0.5, gloss=0.3)
    )
    room.scene.add(quad((0, 0, 0), (w, 0, 0), (w, d, 0), (0, d, 0)), floor)
    ceiling = Material("plain", (rng.uniform(0.5, 0.85),) * 3, (0.5, 0.5, 0.5))
    room.scene.add(quad((0, 0, h), (w, 0, h), (w, d, h), (0, d, h)), ceiling)
    base = wallpaper(rng)
    skirting = wood(rng)
    for side in range(4):
        look = base if rng.random() < 0.75 else wallpaper(rng)
        length = w if side % 2 == 0 else d
        hole = make_opening(room, side, length, rng)
        room.scene.add(to_wall(room, side, wall_with_hole(length, h, hole)), look)
        if hole is None or hole[2] > 0.2:
            strip = box(length, 0.02, 0.08).moved(length / 2, -0.01)
            room.scene.add(to_wall(room, side, strip), skirting)


def wallpaper(rng: Rng) -> Material:
    """Mostly paint; sometimes paper, brick or tiles."""
    kinds = ["plain", "mottled", "stripes", "bricks", "tiles"]
    kind = str(rng.choice(kinds, p=[0.65, 0.12, 0.08, 0.07, 0.08]))
    first = colour(rng, 0.25, 0.8)
    red, green, blue = (c * rng.uniform(0.75, 0.95) for c in first)
    return Material(
        kind, first, (red, green, blue), rng.uniform(0.2, 0.6), 0.0, 0.0, int(rng.integers(2**31))
    )


def wall_with_hole(length: float, height: float, hole: Hole | None) -> Shape:
    """A wall along x, with a hole from x0 to x1 and z0 to z1."""

    def panel(x0: float, x1: float, z0: float, z1: float) -> Shape:
        face = quad((x0, 0, z0), (x1, 0, z0), (x1, 0, z1), (x0, 0, z1))
        return Shape(face.corners, face.normals, face.uv + np.array([x0, z0]))

    if hole is None:
        return panel(0, length, 0, height)
    x0, x1, z0, z1 = hole
    panels = [(0, x0, 0, height), (x1, length, 0, height), (x0, x1, 0, z0), (x0, x1, z1, height)]
    return joined([panel(*p) for p in panels if p[1] > p[0] and p[3] > p[2]])


def make_opening(room: Room, side: int, length: float, rng: Rng) -> Hole | None:
    """A door, a window or nothing in one wall, with what is behind it."""
    kind = rng.choice(["door", "open door", "window", "window", "none", "none"])
    if kind == "none" or length < 2:
        return None
    wide = rng.uniform(0.75, 0.95) if "door" in kind else rng.uniform(0.8, min(2.2, length - 0.6))
    x0 = rng.uniform(0.2, length - wide - 0.2)
    x1 = x0 + wide
    z0, z1 = (0.0, 2.02) if "door" in kind else (rng.uniform(0.7, 1.0), rng.uniform(1.8, 2.2))
    room.openings.append((side, x0, x1))
    frame = wood(rng)
    t = 0.07
    posts = [(x0, z0, t, z1 - z0), (x1, z0, t, z1 - z0), ((x0 + x1) / 2, z1, wide + t, t)]
    if kind == "window":
        posts += [((x0 + x1) / 2, z0 - t, wide + 2 * t, t), ((x0 + x1) / 2, z0, 0.04, z1 - z0)]
    trim = joined([box(a, 0.12, b).moved(x, 0.02, z) for x, z, a, b in posts])
    room.scene.add(to_wall(room, side, trim), frame)
    if kind == "door":
        leaf = box(wide, 0.04, z1).moved((x0 + x1) / 2, 0.05)
        room.scene.add(to_wall(room, side, leaf), wood(rng))
        knob = cylinder(0.02, 0.06, 8).turned(np.pi / 2, "x").moved(x1 - 0.08, 0.0, 1.0)
        room.scene.add(to_wall(room, side, knob), Material("plain", (0.6, 0.55, 0.4), gloss=0.8))
        return None
    (make_next_room if kind == "open door" else make_outside)(room, side, (x0, x1, z0, z1), rng)
    return x0, x1, z0, z1


def make_next_room(room: Room, side: int, hole: Hole, rng: Rng) -> None:
    """A corridor or a room behind a doorway, with something in it."""
    x0, x1, _, _ = hole
    deep, left, right, h = (
        rng.uniform(1.5, 4),
        x0 - rng.uniform(0.3, 2),
        x1 + rng.uniform(0.3, 2),
        2.5,
    )
    look, floor = material(rng, "plain", "stripes", scale=0.4), wood(rng)
    faces = [
        quad((left, deep, 0), (right, deep, 0), (right, deep, h), (left, deep, h)),
        quad((left, 0, 0), (left, deep, 0), (left, deep, h), (left, 0, h)),
        quad((right, 0, 0), (right, deep, 0), (right, deep, h), (right, 0, h)),
        quad((left, 0, h), (right, 0, h), (right, deep, h), (left, deep, h)),
    ]
    room.scene.add(to_wall(room, side, joined(faces)), look)
    ground = quad((left, 0, 0), (right, 0, 0), (right, deep, 0), (left, deep, 0))
    room.scene.add(to_wall(room, side, ground), floor)
    item = furniture.IN_THE_ROOM[int(rng.integers(len(furniture.IN_THE_ROOM)))](rng)
    for shape, piece_look in item.piece:
        spot = shape.moved(rng.uniform(x0, x1), deep - item.depth / 2 - 0.1)
        room.scene.add(to_wall(room, side, spot), piece_look)
    lamp = to_wall(room, side, box(0.01, 0.01, 0.01).moved((x0 + x1) / 2, deep / 2, 2.3)).corners[
        0, 0
    ]
    room.scene.lights.append(Light(tuple(lamp), (rng.uniform(0.4, 1.6),) * 3, 0.15))


def make_outside(room: Room, side: int, hole: Hole, rng: Rng) -> None:
    """Daylight through a window: a facade across the street, or only sky; perhaps curtains."""
    x0, x1, z0, z1 = hole
    if rng.random() < 0.6:
        far = rng.uniform(3, 9)
        wall = quad(
            (x0 - 9, far, -4), (x1 + 9, far, -4), (x1 + 9, far, rng.uniform(1, 7)), (x0 - 9, far, 5)
        )
        look = Material(
            "facade",
            colour(rng, 0.2, 0.6),
            (0.1, 0.12, 0.15),
            2.0,
            0.0,
            0.5,
            int(rng.integers(2**31)),
        )
        room.scene.add(to_wall(room, side, wall), look)
    if rng.random() < 0.5:
        cloth = material(rng, "plain", "stripes", "checks", "mottled", scale=0.15)
        for a, b in ((x0 - 0.2, x0 + 0.25), (x1 - 0.25, x1 + 0.2)):
            u, v = np.meshgrid(
                np.linspace(a, b, 24), np.linspace(max(0.05, z0 - 0.6), z1 + 0.12, 4)
            )
            wave = -0.1 + 0.03 * np.sin((u - a) * rng.uniform(50, 80))
            room.scene.add(to_wall(room, side, sheet(np.stack([u, wave, v], -1))), cloth)
    centre = to_wall(
        room, side, box(0.01, 0.01, 0.01).moved((x0 + x1) / 2, 0.15, (z0 + z1) / 2)
    ).corners[0, 0]
    bright = rng.uniform(1.0, 4.0) * (x1 - x0) * (z1 - z0)
    room.scene.lights.append(Light(tuple(centre), (0.9 * bright, bright, 1.1 * bright), 0.5))
