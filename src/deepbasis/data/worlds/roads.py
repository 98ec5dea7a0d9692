# SPDX-License-Identifier: Apache-2.0
"""Driving scenes, in the variants of Virtual KITTI 2: other light, weather and camera.

The street runs along y, from behind the camera to the horizon; it is built straight and then bent.
A variant changes nothing of the scene itself.
"""

from dataclasses import dataclass, replace
from math import pi, radians, tan

import numpy as np

from deepbasis.data.worlds.furniture import Piece, Rng
from deepbasis.data.worlds.roadside import building, car, hedge, muted, pole, tree
from deepbasis.data.worlds.scene import Light, Reach, RenderCamera, RenderScene
from deepbasis.data.worlds.solids import Shape, joined, quad, sheet
from deepbasis.data.worlds.textures import Material

REACH = Reach(nearest=1.0, farthest=80.0, typical=5.0)
# How far the street is built, behind and ahead of the camera.
BEHIND, AHEAD = -15.0, 130.0


@dataclass(frozen=True)
class Variant:
    """Light, weather and camera."""

    sun: float = 2.2
    height: float = 55.0
    """Of the sun, degrees above the horizon."""
    side: float = 40.0
    """Of the sun, degrees to the left of straight ahead."""
    warmth: float = 1.0
    sky: tuple[float, float, float] = (0.35, 0.55, 0.95)
    ambient: float = 0.42
    fog: float = 0.0
    rain: bool = False
    turn: float = 0.0
    """Of the camera, degrees to the left."""


VARIANTS = {
    "clone": Variant(),
    "morning": Variant(sun=1.8, height=20, side=75, warmth=0.75, ambient=0.3),
    "overcast": Variant(sun=0.0, sky=(0.85, 0.88, 0.9), ambient=0.95),
    "sunset": Variant(
        sun=1.8, height=10, side=-50, warmth=0.5, sky=(0.9, 0.55, 0.35), ambient=0.25
    ),
    "fog": Variant(sun=0.1, sky=(0.8, 0.82, 0.85), ambient=0.8, fog=0.03),
    "rain": Variant(sun=0.0, sky=(0.45, 0.47, 0.5), ambient=0.45, fog=0.008, rain=True),
    "15-deg-left": Variant(turn=15.0),
    "15-deg-right": Variant(turn=-15.0),
    "30-deg-left": Variant(turn=30.0),
    "30-deg-right": Variant(turn=-30.0),
}


@dataclass(frozen=True)
class Street:
    """A built street: shapes without light, and where its camera drives."""

    scene: RenderScene
    camera: RenderCamera
    bend: float


def slab(x0: float, x1: float, z: float) -> Shape:
    """A strip of ground along the whole street."""
    x, y = np.meshgrid(sorted((x0, x1)), np.linspace(BEHIND, AHEAD, 60))
    return sheet(np.stack([x, y, np.full_like(x, z)], -1))


def kerb(x: float, z: float) -> Shape:
    """The upright side of a pavement."""
    bottom, y = np.zeros(60), np.linspace(BEHIND, AHEAD, 60)
    return sheet(
        np.stack([np.stack([bottom + x, y, bottom], -1), np.stack([bottom + x, y, bottom + z], -1)])
    )


def put(scene: RenderScene, piece: Piece, x: float, y: float, turn: float = 0.0) -> None:
    """Place a piece in the street."""
    for shape, look in piece:
        scene.add(shape.turned(turn).moved(x, y), look)


def lay_ground(scene: RenderScene, rng: Rng, half: float, walk: float, lanes: int) -> None:
    """Road with its markings, kerbs, pavements and what lies beyond."""
    grey = rng.uniform(0.06, 0.16)
    asphalt = Material(
        "asphalt", (grey,) * 3, (grey * 1.7,) * 3, 0.8, 0.05, 0.0, int(rng.integers(2**31))
    )
    scene.add(slab(-half, half, 0.0), asphalt)
    stone = muted(rng)
    joint = (stone[0] * 0.7, stone[1] * 0.7, stone[2] * 0.7)
    kind = str(rng.choice(["tiles", "asphalt", "bricks"]))
    pavement = Material(kind, stone, joint, 0.8, 0.0, 0.0, int(rng.integers(2**31)))
    grass = Material(
        "leaves", (0.05, 0.09, 0.03), (0.1, 0.16, 0.05), 1.0, 0.0, 0.0, int(rng.integers(2**31))
    )
    for side in (-1, 1):
        scene.add(kerb(side * half, 0.13), Material("plain", (0.35, 0.34, 0.33)))
        scene.add(slab(side * half, side * (half + walk), 0.13), pavement)
        scene.add(slab(side * (half + walk), side * 120, 0.1), grass)
    white = Material("mottled", (0.65, 0.65, 0.62), (0.5, 0.5, 0.48), 0.5)
    for lane in range(1, lanes):
        x = -half + lane * 2 * half / lanes
        dashes = [
            quad(
                (x - 0.07, y, 0.01),
                (x + 0.07, y, 0.01),
                (x + 0.07, y + 3, 0.01),
                (x - 0.07, y + 3, 0.01),
            )
            for y in np.arange(BEHIND + rng.uniform(0, 6), AHEAD, 7.5)
        ]
        scene.add(joined(dashes), white)
    if rng.random() < 0.5:
        for x in (-half + 0.25, half - 0.25):
            scene.add(slab(x - 0.06, x + 0.06, 0.01), white)
    if rng.random() < 0.4:
        y = rng.uniform(8, 40)
        bars = [
            quad((x, y, 0.012), (x + 0.5, y, 0.012), (x + 0.5, y + 3, 0.012), (x, y + 3, 0.012))
            for x in np.arange(-half + 0.4, half - 0.5, 1.0)
        ]
        scene.add(joined(bars), white)


def line_the_street(scene: RenderScene, rng: Rng, half: float, walk: float) -> None:
    """Houses, trees, hedges, poles and parked cars on both sides."""
    for side in (-1, 1):
        turn = 0.0 if side > 0 else pi
        y, urban = BEHIND, rng.uniform(0.2, 0.95)
        while y < AHEAD:
            if rng.random() < urban:
                piece, w = building(rng, rng.uniform(6, 12))
                put(
                    scene,
                    piece,
                    side * (half + walk + rng.choice([0.0, 2.0, 5.0])),
                    y + w / 2,
                    turn,
                )
                y += w + rng.choice([0.0, 0.0, rng.uniform(1, 8)])
            else:
                for _ in range(int(rng.integers(1, 5))):
                    put(
                        scene,
                        tree(rng),
                        side * (half + walk + rng.uniform(1, 12)),
                        y + rng.uniform(0, 9),
                    )
                if rng.random() < 0.4:
                    put(scene, hedge(rng, 9.0), side * (half + walk + 0.6), y)
                y += rng.uniform(6, 12)
        for y in np.arange(rng.uniform(2, 20), AHEAD, rng.uniform(14, 30)):
            put(scene, pole(rng), side * (half + 0.5), float(y), turn + pi)
        if rng.random() < 0.6:
            for y in np.arange(rng.uniform(5, 15), AHEAD, rng.uniform(9, 16)):
                put(scene, tree(rng), side * (half + walk * 0.7), float(y))
        y = rng.uniform(3, 15)
        while y < AHEAD and rng.random() < 0.9:
            put(scene, car(rng), side * (half - 1.1), y, pi if rng.random() < 0.3 else 0.0)
            y += rng.uniform(5.5, 9) if rng.random() < 0.7 else rng.uniform(10, 35)


def drive(scene: RenderScene, rng: Rng, half: float, lanes: int, own: float) -> None:
    """Moving cars in the lanes; those in front keep their distance."""
    for lane in range(lanes):
        x = -half + (lane + 0.5) * 2 * half / lanes
        if lanes == 1 or abs(x) > half - 2.0:
            x *= 0.6
        y = rng.uniform(9, 45) if abs(x - own) < 1 else rng.uniform(4, 30)
        while y < AHEAD:
            put(scene, car(rng), x, y, 0.0 if x > 0 else pi)
            y += rng.uniform(12, 70)


def make_street(rng: Rng) -> Street:
    """Make a street, with a camera on a car."""
    scene = RenderScene()
    lanes = int(rng.choice([2, 2, 3, 4]))
    parking = 2.2
    half, walk = lanes * 1.65 + parking * rng.choice([0.5, 1.0]), rng.uniform(1.5, 4)
    own = half / lanes * rng.uniform(0.3, 0.8)
    lay_ground(scene, rng, half, walk, lanes)
    line_the_street(scene, rng, half, walk)
    drive(scene, rng, half - parking * 0.5, lanes, own)
    hills = sheet(
        [
            [
                (x, 145 + 30 * np.cos(x / 60), z * (6 + 10 * abs(np.sin(x / 37))))
                for x in np.linspace(-200, 200, 40)
            ]
            for z in (-1, 1)
        ]
    )
    scene.add(hills, Material("leaves", (0.1, 0.14, 0.1), (0.16, 0.2, 0.14), 9.0))
    bend = rng.normal(0, 0.0015)
    scene.shapes = [curve(shape, bend) for shape in scene.shapes]
    camera = RenderCamera(
        (own, 0.0, rng.uniform(1.5, 1.8)),
        rng.normal(0, 0.02),
        rng.normal(-0.01, 0.01),
        rng.normal(0, 0.006),
        1 / (2 * tan(radians(rng.uniform(75, 85)) / 2)),
    )
    return Street(scene, camera, bend)


def curve(shape: Shape, bend: float) -> Shape:
    """Bend the street to the left or right."""
    corners = shape.corners.copy()
    corners[..., 0] += bend * corners[..., 1] * np.abs(corners[..., 1])
    return Shape(corners, shape.normals, shape.uv)


def along(street: Street, camera: RenderCamera, metres: float) -> RenderCamera:
    """The camera some metres farther down the bent street."""
    x, _, z = camera.position
    bent = street.bend * metres * abs(metres)
    heading = -np.arctan(2 * street.bend * metres)
    return replace(camera, position=(x + bent, metres, z), yaw=camera.yaw + heading)


def under(street: Street, variant: Variant) -> tuple[RenderScene, RenderCamera]:
    """The street in a variant's light and weather, and its camera."""
    level, scene = variant.ambient, street.scene
    tint = np.array(variant.sky) / np.mean(variant.sky)
    red, green, blue = level * (0.6 + 0.4 * tint)
    scene = replace(scene, ambient=(red, green, blue), sky=variant.sky, fog=variant.fog, lights=[])
    if variant.sun > 0:
        up, left = radians(variant.height), radians(variant.side)
        way = np.array([-np.sin(left) * np.cos(up), np.cos(left) * np.cos(up), np.sin(up)])
        sun = variant.sun * np.array([1.1, (1 + variant.warmth) / 2, variant.warmth])
        scene.lights = [Light(tuple(500 * way), tuple(sun), 4.0, falloff=False)]
    if variant.rain:
        scene.materials = [replace(m, gloss=max(m.gloss, 0.2)) for m in scene.materials]
    return scene, replace(street.camera, yaw=street.camera.yaw + radians(variant.turn))
