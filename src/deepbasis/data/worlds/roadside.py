# SPDX-License-Identifier: Apache-2.0
"""Objects in a street. Each piece is a list of (shape, material) on z = 0 around the origin."""

from dataclasses import dataclass
from functools import cache
from math import pi

import numpy as np

from deepbasis.data.worlds.furniture import Piece, Rng, colour
from deepbasis.data.worlds.solids import Shape, box, cylinder, joined, lathe, prism, sheet, sphere
from deepbasis.data.worlds.textures import Material, noise


def paint(
    rng: Rng,
    texture: str = "plain",
    low: float = 0.1,
    high: float = 0.7,
    scale: float = 1.0,
    gloss: float = 0.0,
) -> Material:
    """A material in a random colour and a darker one."""
    first = colour(rng, low, high)
    red, green, blue = (0.6 * c for c in first)
    return Material(texture, first, (red, green, blue), scale, gloss, 0.0, int(rng.integers(2**31)))


@dataclass(frozen=True)
class CarModel:
    """A kind of car: length, width and height in metres, and its shape in shares of them."""

    length: float
    width: float
    height: float
    waist: float
    """Height of the bonnet."""
    cabin: tuple[float, float, float, float]
    """From its foot at the back over the roof to its foot in front, in half lengths."""


CAR_MODELS = (
    CarModel(4.0, 1.75, 1.5, 0.52, (-0.92, -0.75, 0.05, 0.4)),  # hatchback
    CarModel(4.6, 1.8, 1.42, 0.52, (-0.7, -0.4, 0.1, 0.45)),  # saloon
    CarModel(5.2, 1.95, 2.2, 0.42, (-0.99, -0.97, 0.55, 0.75)),  # van
    CarModel(8.0, 2.4, 3.2, 0.42, (-1.0, -1.0, 0.6, 0.65)),  # lorry
)
HOW_OFTEN = (0.4, 0.35, 0.18, 0.07)
GLASS = Material("plain", (0.03, 0.035, 0.04), gloss=0.9)


def car(rng: Rng) -> Piece:
    """One of a few models, along y, its front ahead."""
    model = CAR_MODELS[int(rng.choice(len(CAR_MODELS), p=HOW_OFTEN))]
    size = rng.uniform(0.92, 1.08, 3)
    length, width, height = size * [model.length, model.width, model.height]
    half, waist = length / 2, model.waist * height
    lower = [(-half, 0.3), (half, 0.3), (half, waist * 0.75), (half * 0.5, waist), (-half, waist)]
    back, rear, front, foot = (share * half for share in model.cabin)
    upper = [(back, waist), (foot, waist), (front, height), (rear, height)]
    panes = [(0.93 * x, z + (0.03 if z == waist else -0.1)) for x, z in upper]
    screen = box(0.02, width * 0.7, height - waist - 0.15).turned(-0.5, "y")
    pieces: Piece = [
        (
            prism(lower, width) + prism(upper, width * 0.86),
            paint(rng, "plain", 0.03, 0.8, 3.0, 0.6),
        ),
        (prism(panes, width * 0.875), GLASS),
        (screen.moved(foot * 0.8, 0, waist + 0.05), GLASS),
        *fittings(half, width, waist),
    ]
    return [(shape.turned(pi / 2), look) for shape, look in pieces]


def fittings(half: float, width: float, waist: float) -> Piece:
    """Wheels, lights and number plates of a car along x."""
    ends = [(x, y) for x in (-1, 1) for y in (-1, 1)]
    wheel = cylinder(0.32, 0.22).turned(pi / 2, "x")
    wheels = [wheel.moved(x * half * 0.62, y * width / 2 + 0.1, 0.32) for x, y in ends]
    lamps = [box(0.06, 0.3, 0.14).moved(x * half, y * width * 0.36, waist * 0.72) for x, y in ends]
    tail = [box(0.07, 0.22, 0.16).moved(-half, y * width * 0.4, waist * 0.75) for y in (-1, 1)]
    plates = [box(0.06, 0.5, 0.12).moved(x * half, 0, 0.5) for x in (-1, 1)]
    return [
        (joined(wheels), Material("plain", (0.03, 0.03, 0.03))),
        (joined(lamps), Material("plain", (0.7, 0.7, 0.65), gloss=0.5)),
        (joined(tail), Material("plain", (0.4, 0.02, 0.02), gloss=0.5)),
        (joined(plates), Material("plain", (0.7, 0.7, 0.6))),
    ]


def tree(rng: Rng) -> Piece:
    """A trunk, some boughs, and a crown of lumpy balls, or a cypress."""
    h = rng.uniform(3, 9)
    bark = Material("mottled", (0.12, 0.09, 0.06), (0.06, 0.045, 0.03), 0.3)
    green = rng.uniform(0.08, 0.25)
    leaf = Material(
        "leaves",
        (green * 0.45, green * 0.8, green * 0.2),
        (green * 0.9, green * 1.4, green * 0.4),
        rng.uniform(0.5, 1.5),
        0.0,
        0.0,
        int(rng.integers(2**31)),
    )
    trunk = lathe([(h * 0.035, 0), (h * 0.022, h * 0.5), (0.01, h * 0.8)], 8)
    if rng.random() < 0.2:
        return [
            (trunk, bark),
            (lumpy(rng, 0.5).scaled(h * 0.18, h * 0.18, h * 0.95).moved(z=h * 0.05), leaf),
        ]
    crown = joined(
        [
            lumpy(rng, rng.uniform(0.14, 0.24) * h).moved(
                rng.normal(0, 0.13) * h, rng.normal(0, 0.13) * h, h * rng.uniform(0.38, 0.68)
            )
            for _ in range(int(rng.integers(5, 11)))
        ]
    )
    return [(trunk, bark), (crown, leaf)]


def lumpy(rng: Rng, radius: float) -> Shape:
    """A ball with dents, one of a few kinds, turned at random."""
    unit = _dented_ball(int(rng.integers(12))).turned(rng.uniform(0, 2 * pi))
    return Shape(unit.corners * radius, unit.normals, unit.uv * radius)


@cache
def _dented_ball(kind: int) -> Shape:
    theta, along = np.meshgrid(np.linspace(0, 2 * pi, 13), np.linspace(-pi / 2, pi / 2, 8))
    at = np.stack([theta.ravel(), along.ravel()], -1) * 2.5
    dents = noise(at, np.full(at.shape[0], kind, np.uint32)).reshape(theta.shape)
    dents[:, -1] = dents[:, 0]
    r = 0.65 + 0.7 * dents
    x, y = (r * np.cos(along) * f(theta) for f in (np.cos, np.sin))
    return sheet(np.stack([x, y, 1 + r * np.sin(along)], -1))


def pole(rng: Rng) -> Piece:
    """A street lamp, a sign, or traffic lights."""
    metal = Material("plain", (rng.uniform(0.1, 0.4),) * 3, gloss=0.3)
    kind = rng.choice(["lamp", "sign", "lights"])
    if kind == "lamp":
        h = rng.uniform(5, 8)
        arm = cylinder(0.05, 1.5, 8).turned(pi / 2, "y").moved(0, 0, h)
        return [(cylinder(0.09, h, 8) + arm + box(0.7, 0.25, 0.12).moved(1.5, 0, h - 0.1), metal)]
    h = rng.uniform(2.2, 3.2)
    post = cylinder(0.04, h, 8)
    if kind == "lights":
        bulbs = joined([sphere(0.1, 10).moved(0, -0.14, h + 0.1 + 0.3 * i) for i in range(3)])
        lit = Material("plain", (0.5, 0.1, 0.05), glow=0.8)
        return [
            (post + box(0.3, 0.25, 1.0).moved(z=h), Material("plain", (0.03, 0.03, 0.03))),
            (bulbs, lit),
        ]
    face = cylinder(rng.uniform(0.28, 0.4), 0.02, int(rng.choice([3, 4, 8, 24]))).turned(
        pi / 2, "x"
    )
    look = Material(
        "plain",
        tuple(rng.choice([(0.6, 0.05, 0.05), (0.05, 0.15, 0.5), (0.7, 0.6, 0.1), (0.8, 0.8, 0.8)])),
    )
    return [(post, metal), (face.moved(0, -0.05, h), look)]


def muted(rng: Rng) -> tuple[float, float, float]:
    """Plaster and stone."""
    grey = rng.uniform(0.15, 0.65)
    red, green, blue = np.clip(
        grey * (1 + np.array([0.15, 0.03, -0.15]) * rng.normal(0.5, 1)), 0.05, 0.8
    )
    return float(red), float(green), float(blue)


def building(rng: Rng, depth: float) -> tuple[Piece, float]:
    """A house front of some width; x = 0 is its face, the street is at x < 0."""
    w, h = rng.uniform(6, 18), rng.uniform(4, 16)
    wall = Material(
        "facade",
        muted(rng),
        (0.06, 0.07, 0.09),
        rng.uniform(2.2, 3.2),
        0.1,
        0.0,
        int(rng.integers(2**31)),
    )
    body = box(depth, w, h).moved(depth / 2)
    piece: Piece = [(body, wall)]
    base = box(0.15, w, rng.uniform(0.4, 1.0)).moved(-0.03)
    piece.append((base, paint(rng, "bricks", 0.1, 0.4)))
    if rng.random() < 0.6:
        roof = prism(
            [(-0.5, 0), (depth + 0.5, 0), (depth / 2, rng.uniform(1.5, 4))], w + 0.6
        ).moved(z=h)
        piece.append((roof, paint(rng, "tiles", 0.08, 0.3, 0.4)))
    if rng.random() < 0.5:
        balconies = joined(
            [box(1.2, w * 0.5, 1.0).moved(-0.5, 0, z) for z in np.arange(3, h - 1.5, 3)] or [base]
        )
        piece.append((balconies, paint(rng)))
    return piece, w


def hedge(rng: Rng, length: float) -> Piece:
    """A hedge or a fence along y."""
    h = rng.uniform(0.8, 2.0)
    if rng.random() < 0.5:
        return [
            (
                box(0.7, length, h).moved(y=length / 2),
                Material("leaves", (0.03, 0.08, 0.02), (0.1, 0.18, 0.05), 0.5),
            )
        ]
    posts = joined([box(0.05, 0.12, h).moved(y=y) for y in np.arange(0, length, 0.25)])
    rails = joined([box(0.04, length, 0.06).moved(y=length / 2, z=z) for z in (0.25 * h, 0.8 * h)])
    return [(posts + rails, paint(rng))]
