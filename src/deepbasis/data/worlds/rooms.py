# SPDX-License-Identifier: Apache-2.0
"""Indoor scenes: a room, its furniture, its light, and a hand-held camera."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from deepbasis.data.worlds import furniture
from deepbasis.data.worlds.furniture import Prop, Rng, material, wood
from deepbasis.data.worlds.scene import Light, Reach, RenderCamera
from deepbasis.data.worlds.solids import Array, box, cylinder
from deepbasis.data.worlds.textures import Material
from deepbasis.data.worlds.walls import Room, make_shell, to_wall

REACH = Reach(nearest=0.4, farthest=10.0, typical=0.9)


def furnish(room: Room, rng: Rng) -> None:
    """Place objects along the walls, in the middle, on tables, on walls and on the floor."""
    for _ in range(int(rng.integers(3, 9))):
        item = furniture.BY_THE_WALL[int(rng.integers(len(furniture.BY_THE_WALL)))](rng)
        stand(room, item, int(rng.integers(4)), rng)
    for _ in range(int(rng.integers(1, 8))):
        item = furniture.IN_THE_ROOM[int(rng.integers(len(furniture.IN_THE_ROOM)))](rng)
        stand(room, item, None, rng)
    for _ in range(int(rng.integers(0, 8))):
        stand(room, furniture.clutter(rng), None, rng)
    for side in range(4):
        hang(room, side, rng)
    if rng.random() < 0.5:
        w, d = rng.uniform(0.8, 2.2), rng.uniform(0.8, 1.6)
        rug = box(w, d, 0.012).turned(rng.normal(0, 0.2))
        spot = rng.uniform(0.3, 0.7) * room.width, rng.uniform(0.3, 0.7) * room.depth
        room.scene.add(
            rug.moved(*spot), material(rng, "carpet", "stripes", "checks", "picture", scale=0.3)
        )


def stand(room: Room, item: Prop, side: int | None, rng: Rng) -> None:
    """Place a piece with its back to a wall, or anywhere; give up after ten tries."""
    for _ in range(10):
        turn = (
            rng.uniform(0, 2 * np.pi) if side is None else [np.pi, -np.pi / 2, 0, np.pi / 2][side]
        )
        c, s = abs(np.cos(turn)), abs(np.sin(turn))
        w, d = c * item.width + s * item.depth, s * item.width + c * item.depth
        if w > room.width or d > room.depth:
            continue
        x, y = rng.uniform(w / 2, room.width - w / 2), rng.uniform(d / 2, room.depth - d / 2)
        gap = 0.02
        if side is not None:
            x = [x, room.width - w / 2 - gap, x, w / 2 + gap][side]
            y = [d / 2 + gap, y, room.depth - d / 2 - gap, y][side]
        if room.free(x, y, w, d):
            room.taken.append((x - w / 2, y - d / 2, x + w / 2, y + d / 2))
            room.place(item, x, y, turn)
            if item.top is not None and item.top < 1.6:
                load(room, item, (x, y), turn, rng)
            return


def load(room: Room, item: Prop, at: tuple[float, float], turn: float, rng: Rng) -> None:
    """Place objects on top of a piece."""
    assert item.top is not None
    things = [furniture.clutter(rng) for _ in range(int(rng.integers(0, 7)))]
    if 0.6 < item.top < 0.9 and rng.random() < 0.5:
        things.append(furniture.monitor(rng))
    for thing in things:
        dx = rng.uniform(-0.4, 0.4) * max(0, item.width - thing.width)
        dy = rng.uniform(-0.4, 0.4) * max(0, item.depth - thing.depth)
        x = at[0] + np.cos(turn) * dx - np.sin(turn) * dy
        y = at[1] + np.sin(turn) * dx + np.cos(turn) * dy
        room.place(thing, x, y, turn + rng.normal(0, 0.4), item.top)


def hang(room: Room, side: int, rng: Rng) -> None:
    """Hang pictures on a wall."""
    length = room.width if side % 2 == 0 else room.depth
    for _ in range(int(rng.integers(0, 4))):
        w, h = rng.uniform(0.25, 1.0), rng.uniform(0.2, 0.8)
        x, z = rng.uniform(w / 2, length - w / 2), rng.uniform(1.2, 1.6)
        if any(wall == side and a - w / 2 < x < b + w / 2 for wall, a, b in room.openings):
            continue
        art = Material("picture", scale=rng.uniform(0.1, 0.5), seed=int(rng.integers(2**31)))
        room.scene.add(to_wall(room, side, box(w, 0.03, h).moved(x, -0.02, z)), wood(rng))
        face = box(w - 0.06, 0.005, h - 0.06).moved(x, -0.04, z + 0.03)
        room.scene.add(to_wall(room, side, face), art)


def light_up(room: Room, rng: Rng) -> None:
    """Add ceiling lamps, for two to four lights in all, and ambient light."""
    wanted = int(rng.integers(2, 5))
    del room.scene.lights[wanted - 1 :]
    for _ in range(max(1, wanted - len(room.scene.lights))):
        x, y = rng.uniform(0.2, 0.8) * room.width, rng.uniform(0.2, 0.8) * room.depth
        warm = rng.uniform(0.6, 1.0)
        bright = rng.uniform(1.0, 4.0)
        z = room.height - rng.uniform(0.08, 0.5)
        shade = cylinder(rng.uniform(0.08, 0.22), 0.06).moved(x, y, z + 0.02)
        room.scene.add(shade, Material("plain", (0.9, 0.85, 0.75), glow=2.0))
        room.scene.lights.append(
            Light((x, y, z - 0.05), (bright, bright * (1 + warm) / 2, bright * warm), 0.12)
        )
    level = rng.uniform(0.15, 0.45)
    room.scene.ambient = (level, level, level * rng.uniform(0.85, 1.1))
    room.scene.sky = (3.0, 3.2, 3.5)


def make_room(rng: Rng) -> Room:
    """Make a room with furniture and light."""
    room = Room(rng.uniform(2.4, 7.0), rng.uniform(2.4, 8.0), rng.uniform(2.3, 3.2))
    make_shell(room, rng)
    furnish(room, rng)
    light_up(room, rng)
    return room


def hold_camera(room: Room, rng: Rng) -> RenderCamera:
    """A hand-held camera near the edge of the room, looking across it."""
    x, y = rng.uniform(0.12, 0.88) * room.width, rng.uniform(0.1, 0.35) * room.depth
    if rng.random() < 0.5:
        y = room.depth - y
    target = np.array([rng.uniform(0.2, 0.8) * room.width, rng.uniform(0.3, 0.7) * room.depth])
    yaw = np.arctan2(*(np.array([x, y]) - target) * [1, -1]) + rng.normal(0, 0.25)
    return RenderCamera(
        (x, y, rng.uniform(0.9, 1.75)),
        yaw,
        rng.uniform(-0.5, 0.08),
        rng.normal(0, 0.04),
        1 / (2 * np.tan(rng.uniform(np.radians(52), np.radians(72)) / 2)),
    )


def walk(camera: RenderCamera, seconds: float, rate: float, rng: Rng) -> Iterator[RenderCamera]:
    """A hand-held camera that sways around a place and looks about, at `rate` frames a second.

    Each coordinate is a sum of two sines. The camera moves at about 0.2 m/s and turns by about
    15 degrees a second.
    """
    reach = np.array([0.18, 0.18, 0.06, 0.35, 0.12, 0.04])  # metres, then radians
    speed = rng.uniform(0.5, 1.2, (2, 6)) * [[1.0], [2.3]]
    phase = rng.uniform(0, 2 * np.pi, (2, 6))
    share = np.array([[0.7], [0.3]])

    def sway(time: float) -> Array:
        return reach * (share * np.sin(speed * time + phase)).sum(0)

    start = sway(0.0)
    for frame in range(round(seconds * rate)):
        x, y, z, yaw, pitch, roll = sway(frame / rate) - start
        place = camera.position
        yield replace(
            camera,
            position=(place[0] + x, place[1] + y, place[2] + z),
            yaw=camera.yaw + yaw,
            pitch=camera.pitch + pitch,
            roll=camera.roll + roll,
        )
