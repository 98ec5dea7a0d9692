# SPDX-License-Identifier: Apache-2.0
"""Furniture and clutter, built from parts. Each piece is a list of (shape, material).

A piece stands on z = 0 around the origin and faces -y, its back at y = +depth / 2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepbasis.data.worlds.solids import Shape, box, cylinder, joined, lathe, sheet, sphere
from deepbasis.data.worlds.textures import Material

Piece = list[tuple[Shape, Material]]
Rng = np.random.Generator


@dataclass(frozen=True)
class Prop:
    """A piece with its footprint, and the height and size of the top that can carry things."""

    piece: Piece
    width: float
    depth: float
    top: float | None = None


def colour(rng: Rng, low: float = 0.04, high: float = 0.75) -> tuple[float, float, float]:
    """A random colour: mostly greys and browns, sometimes a bright one."""
    grey = rng.uniform(low, high)
    warmth = rng.normal(0.08, 0.1) * np.array([1, 0.1, -1])
    vivid = rng.choice([0.02, 0.06, 0.3], p=[0.5, 0.35, 0.15])
    red, green, blue = np.clip(grey * (1 + warmth + rng.normal(0, vivid, 3)), 0.02, 0.85)
    return float(red), float(green), float(blue)


def material(
    rng: Rng, *textures: str, scale: float = 0.3, gloss: float = 0.0, low: float = 0.04
) -> Material:
    """One of these textures in two shades of a random colour."""
    first = np.array(colour(rng, low))
    shade = rng.uniform(0.4, 0.8) if rng.random() < 0.5 else rng.uniform(1.2, 1.8)
    red, green, blue = np.clip(first * shade + rng.normal(0, 0.02, 3), 0.02, 0.85)
    return Material(
        str(rng.choice(textures)),
        tuple(first.tolist()),
        (float(red), float(green), float(blue)),
        scale * rng.uniform(0.6, 1.6),
        gloss * rng.uniform(0, 1),
        0.0,
        int(rng.integers(2**31)),
    )


def wood(rng: Rng) -> Material:
    """Furniture wood: light, dark, or painted."""
    tone = rng.uniform(0.08, 0.6)
    light = (tone, tone * rng.uniform(0.55, 0.8), tone * rng.uniform(0.25, 0.6))
    dark = (light[0] * 0.55, light[1] * 0.5, light[2] * 0.5)
    kind = "wood" if rng.random() < 0.75 else "plain"
    return Material(kind, light, dark, rng.uniform(0.15, 0.5), 0.15, 0.0, int(rng.integers(2**31)))


def legs(width: float, depth: float, height: float, thick: float) -> Shape:
    """Four of them, at the corners."""
    x, y = width / 2 - thick, depth / 2 - thick
    return joined([box(thick, thick, height).moved(i * x, j * y) for i in (-1, 1) for j in (-1, 1)])


def table(rng: Rng) -> Prop:
    """A dining table, a desk or a coffee table."""
    w, d = rng.uniform(0.7, 1.8), rng.uniform(0.5, 0.95)
    h = rng.choice([rng.uniform(0.68, 0.78), rng.uniform(0.35, 0.5)])
    surface = wood(rng)
    other = surface if rng.random() < 0.6 else material(rng, "plain", gloss=0.4)
    round_top = rng.random() < 0.2
    top = cylinder(d * 0.7, 0.03, 28) if round_top else box(w, d, rng.uniform(0.02, 0.05))
    w, d = (1.4 * d, 1.4 * d) if round_top else (w, d)
    under = cylinder(0.05, h) if round_top else legs(w, d, h, rng.uniform(0.03, 0.08))
    return Prop([(top.moved(z=h), surface), (under, other)], w, d, h + 0.04)


def chair(rng: Rng) -> Prop:
    """With or without arms, wooden or upholstered."""
    w, d, h = rng.uniform(0.4, 0.5), rng.uniform(0.4, 0.5), rng.uniform(0.42, 0.48)
    frame, cover = wood(rng), material(rng, "plain", "carpet", "checks", "stripes", scale=0.05)
    back_height = rng.uniform(0.35, 0.6)
    back = box(w, 0.03, back_height * 0.6).moved(y=d / 2, z=h + back_height * 0.4)
    posts = joined([box(0.03, 0.03, back_height).moved(x, d / 2, h) for x in (-w / 2.2, w / 2.2)])
    seat = box(w, d, rng.uniform(0.03, 0.08)).moved(z=h)
    return Prop([(seat, cover), (back, cover), (posts, frame), (legs(w, d, h, 0.035), frame)], w, d)


def sofa(rng: Rng) -> Prop:
    """Seats, back, arms and a cushion or two."""
    seats = int(rng.integers(1, 4))
    w, d = 0.65 * seats + 0.35, rng.uniform(0.8, 0.95)
    cover = material(rng, "carpet", "plain", "mottled", "checks", "stripes", scale=0.08)
    base = box(w, d, 0.25).moved(z=0.08) + box(w, 0.2, 0.55).moved(y=d / 2 - 0.1, z=0.3)
    arms = joined([box(0.16, d, 0.5).moved(x * (w / 2 - 0.08), 0, 0.1) for x in (-1, 1)])
    cushions = joined(
        [
            sphere(0.5).scaled(0.62, d * 0.75, 0.18).moved((i - (seats - 1) / 2) * 0.65, -0.08, 0.3)
            for i in range(seats)
        ]
    )
    pillow = (
        sphere(0.22).scaled(1, 0.4, 0.9).turned(0.3, "x").moved(rng.uniform(-0.3, 0.3), 0.15, 0.42)
    )
    return Prop(
        [
            (base + arms, cover),
            (cushions, cover),
            (pillow, material(rng, "stripes", "picture", "checks", scale=0.1)),
        ],
        w,
        d,
    )


def bed(rng: Rng) -> Prop:
    """Frame, mattress, blanket and pillows."""
    w, d = rng.choice([0.95, 1.4, 1.7]), 2.0
    frame, linen = wood(rng), material(rng, "plain", "mottled")
    blanket = material(rng, "stripes", "checks", "mottled", "picture", scale=0.3)
    x, y = np.meshgrid(
        np.linspace(-w / 2 - 0.03, w / 2 + 0.03, 12), np.linspace(-d / 2, d * 0.2, 12)
    )
    z = 0.56 + 0.02 * rng.normal(size=x.shape)
    z[:, [0, -1]] -= 0.25
    pillows = joined(
        [
            sphere(0.25).scaled(1.1, 0.8, 0.3).moved(x0, d / 2 - 0.3, 0.52)
            for x0 in ((-w / 4, w / 4) if w > 1.2 else (0.0,))
        ]
    )
    body = box(w, d, 0.3) + box(w + 0.06, 0.05, rng.uniform(0.7, 1.1)).moved(y=d / 2)
    return Prop(
        [
            (body, frame),
            (box(w, d, 0.22).moved(z=0.3), linen),
            (pillows, linen),
            (sheet(np.stack([x, y, z], -1)), blanket),
        ],
        w,
        d + 0.1,
    )


def shelf(rng: Rng) -> Prop:
    """Boards between two sides, filled with books and things."""
    w, d, h = rng.uniform(0.6, 1.2), rng.uniform(0.25, 0.35), rng.uniform(0.9, 2.1)
    frame = wood(rng)
    count = max(2, int(h / rng.uniform(0.3, 0.42)))
    levels = np.linspace(0.04, h - 0.02, count + 1)
    boards = joined([box(w, d, 0.025).moved(z=z) for z in levels])
    sides = joined([box(0.025, d, h).moved(x * w / 2) for x in (-1, 1)])
    back = box(w, 0.01, h).moved(y=d / 2)
    piece: Piece = [(boards + sides, frame), (back, frame)]
    for z, gap in zip(levels[:-1], np.diff(levels), strict=True):
        piece += books(rng, w - 0.06, d, gap - 0.05, z + 0.025)
    return Prop(piece, w, d, h + 0.01)


def books(rng: Rng, width: float, depth: float, room: float, z: float) -> Piece:
    """A row of books, in a few colours, that may end before the board does."""
    covers = [material(rng, "plain", "stripes", scale=0.1) for _ in range(4)]
    found: list[list[Shape]] = [[] for _ in covers]
    x, end = -width / 2, width / 2 - rng.choice([0.0, 0.3 * width, 0.7 * width])
    while x < end:
        thick, tall = rng.uniform(0.015, 0.06), room * rng.uniform(0.55, 0.98)
        deep = depth * rng.uniform(0.5, 0.9)
        book = box(thick * 0.94, deep, tall).moved(x + thick / 2, depth / 2 - deep / 2 - 0.02, z)
        found[int(rng.integers(4))].append(book)
        x += thick
    return [(joined(some), cover) for some, cover in zip(found, covers, strict=True) if some]


def cabinet(rng: Rng) -> Prop:
    """A wardrobe, a chest of drawers, a fridge or a kitchen unit."""
    w, d = rng.uniform(0.5, 1.6), rng.uniform(0.4, 0.65)
    h = rng.choice([rng.uniform(0.7, 0.95), rng.uniform(1.6, 2.1)])
    body = wood(rng) if rng.random() < 0.6 else material(rng, "plain", gloss=0.5)
    columns, rows = max(1, round(w / 0.5)), int(rng.integers(1, 5)) if h < 1 else 1
    doors, knobs = [], []
    for i in range(columns):
        for j in range(rows):
            x, cell, tall = -w / 2 + (i + 0.5) * w / columns, w / columns, (h - 0.1) / rows
            z = 0.08 + j * tall
            doors.append(box(cell * 0.95, 0.02, tall * 0.94).moved(x, -d / 2 - 0.01, z))
            knobs.append(
                sphere(0.018, 8).moved(
                    x + cell * rng.choice([-0.35, 0.35]), -d / 2 - 0.04, z + tall / 2
                )
            )
    metal = Material("plain", (0.5, 0.5, 0.5), gloss=0.8)
    return Prop(
        [
            (box(w, d, h), body),
            (joined(doors), wood(rng) if rng.random() < 0.3 else body),
            (joined(knobs), metal),
        ],
        w,
        d,
        h + 0.005,
    )


def lamp(rng: Rng) -> Prop:
    """A floor lamp; its shade glows."""
    h = rng.uniform(1.2, 1.7)
    stand = cylinder(0.14, 0.03) + cylinder(0.015, h, 8)
    r = rng.uniform(0.12, 0.22)
    shade = lathe([(r, 0), (r * rng.uniform(0.5, 0.95), 0.28)]).moved(z=h - 0.05)
    glow = Material("plain", (0.9, 0.8, 0.6), glow=rng.choice([0.0, 1.2]))
    return Prop([(stand, material(rng, "plain", gloss=0.6)), (shade, glow)], 0.35, 0.35)


def plant(rng: Rng) -> Prop:
    """A pot with leaves."""
    h = rng.uniform(0.5, 1.5)
    pot = lathe([(0.0, 0), (0.11, 0), (0.16, 0.28), (0.14, 0.28), (0.0, 0.25)])
    leaves = [
        sphere(0.5)
        .scaled(rng.uniform(0.1, 0.2), 0.02, rng.uniform(0.25, 0.5))
        .turned(rng.uniform(0.1, 1.0), "x")
        .turned(rng.uniform(0, 6.3))
        .moved(z=0.2 + h * rng.uniform(0, 0.6))
        for _ in range(int(rng.integers(8, 22)))
    ]
    green = Material(
        "leaves", (0.04, 0.15, 0.03), (0.15, 0.32, 0.08), 0.2, 0.1, 0.0, int(rng.integers(2**31))
    )
    return Prop([(pot, material(rng, "plain", "mottled")), (joined(leaves), green)], 0.5, 0.5)


def monitor(rng: Rng) -> Prop:
    """A screen on a foot, off or on."""
    w, h = rng.uniform(0.35, 0.65), rng.uniform(0.25, 0.38)
    dark = Material("plain", (0.02, 0.02, 0.02), gloss=0.6)
    on = rng.random() < 0.5
    screen = Material("picture", scale=0.3, glow=0.8, seed=int(rng.integers(2**31))) if on else dark
    foot = box(0.2, 0.15, 0.015) + box(0.04, 0.02, 0.12)
    panel = box(w * 0.94, 0.004, h * 0.92).moved(y=-0.02, z=0.1 + 0.04 * h)
    return Prop([(foot + box(w, 0.03, h).moved(z=0.1), dark), (panel, screen)], w, 0.2)


def clutter(rng: Rng) -> Prop:
    """A box, a ball, a can, a vase, a bowl, or a pile of books."""
    s = rng.uniform(0.05, 0.2)
    look = material(
        rng, "plain", "stripes", "checks", "mottled", "picture", "marble", scale=0.08, gloss=0.5
    )
    kind = int(rng.integers(6))
    if kind == 5:
        stack = [
            box(rng.uniform(0.14, 0.2), rng.uniform(0.2, 0.28), 0.03)
            .turned(rng.normal(0, 0.15))
            .moved(z=0.03 * i)
            for i in range(int(rng.integers(1, 6)))
        ]
        return Prop([(b, material(rng, "plain", "stripes", scale=0.1)) for b in stack], 0.25, 0.3)
    shape = [
        lambda: box(s * rng.uniform(0.6, 2), s * rng.uniform(0.6, 1.5), s * rng.uniform(0.4, 2)),
        lambda: sphere(s * 0.7),
        lambda: cylinder(s * 0.35, s * rng.uniform(0.8, 2)),
        lambda: lathe(
            [
                (0, 0),
                (s * 0.4, 0),
                (s * rng.uniform(0.4, 0.8), s),
                (s * 0.25, 1.6 * s),
                (s * 0.35, 1.9 * s),
            ]
        ),
        lambda: lathe(
            [(0, 0), (s * 0.4, 0), (s, s * 0.5), (s * 0.96, s * 0.5), (0.0, s * 0.1)], 24
        ),
    ][kind]()
    return Prop([(shape, look)], 2 * s, 2 * s)


BY_THE_WALL: list[Callable[[Rng], Prop]] = [sofa, bed, shelf, shelf, cabinet, cabinet, table]
IN_THE_ROOM: list[Callable[[Rng], Prop]] = [table, table, chair, chair, chair, plant, lamp, sofa]
