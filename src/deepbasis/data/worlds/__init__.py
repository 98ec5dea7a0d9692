# SPDX-License-Identifier: Apache-2.0
"""Procedural worlds: any number of rendered scenes with exact depth, without a download.

`rooms` are indoor scenes, 0.4 to 10 m; `roads` are driving scenes to 80 m, in the variants of
Virtual KITTI 2. A frame depends on world, variant, seed and index only.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from PIL import Image

from deepbasis.data.sample import Sample, make_intrinsics
from deepbasis.data.worlds import roads, rooms
from deepbasis.data.worlds.photo import develop, let_it_rain
from deepbasis.data.worlds.render import Tracer, trace
from deepbasis.data.worlds.scene import Reach, RenderCamera
from deepbasis.data.worlds.solids import Array

DEFAULT_SIZE = {"rooms": (240, 320), "roads": (160, 512)}
# Frames per street, some metres apart, since building a street takes as long as a frame.
FRAMES_A_STREET = 4
METRES_A_FRAME = 7.0
# Another view is tried if more than this share is nearer than the sensor's range.
TOO_NEAR = 0.03
TRIES = 5
# Metres to the next view that is tried in a street: two of them pass a car.
METRES_A_TRY = 3.0


@dataclass(frozen=True)
class Rendering:
    """A rendered frame: the image as JPEG, and exact depth, h w."""

    jpeg: bytes
    depth: Array
    camera: RenderCamera

    @property
    def intrinsics(self) -> tuple[float, float, float, float]:
        """fx, fy, cx, cy in pixels."""
        height, width = self.depth.shape
        focal = self.camera.focal * width
        return focal, focal, (width - 1) / 2, (height - 1) / 2

    @property
    def pose(self) -> Array:
        """4 x 4: from the camera's frame (x right, y down, z forward) to the world's."""
        right, forward, up = self.camera.rotation.T
        pose = np.eye(4)
        pose[:3, :3] = np.stack([right, -up, forward], 1)
        pose[:3, 3] = self.camera.position
        return pose

    @property
    def image(self) -> Array:
        """RGB, h w 3."""
        return np.array(Image.open(io.BytesIO(self.jpeg)))


@dataclass(frozen=True)
class Worlds:
    """A data set rendered on the fly: `len(...)` frames of one world."""

    world: str
    count: int
    seed: int = 0
    variant: str = "clone"
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.world not in DEFAULT_SIZE:
            raise ValueError(f"there is no world {self.world!r}; choose rooms or roads")
        if self.variant not in variants(self.world):
            known = ", ".join(variants(self.world))
            raise ValueError(f"{self.world} has no variant {self.variant!r}; it has {known}")
        if self.size is not None and min(self.size) < 16:
            raise ValueError(f"a frame of {self.size} pixels is too small; render at least 16 x 16")

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        """World, variant, seed and index, which determine the frame."""
        return f"{self.world}-{self.variant}-{self.seed}-{index:06d}"

    def render(self, index: int) -> Rendering:
        """Render one frame."""
        if not 0 <= index < self.count:
            raise IndexError(f"frame {index} of {self.count}")
        size = self.size or DEFAULT_SIZE[self.world]
        make = {"rooms": render_room, "roads": render_road}[self.world]
        return make(self.seed, index, size, self.variant)

    def __getitem__(self, index: int) -> Sample:
        frame = self.render(index)
        image = torch.from_numpy(frame.image).permute(2, 0, 1)
        depth = torch.from_numpy(frame.depth)[None]
        camera = make_intrinsics(*frame.intrinsics)
        return Sample(self.name(index), image, depth, torch.zeros_like(depth), camera)


def variants(world: str) -> tuple[str, ...]:
    """Variants of a world."""
    return tuple(roads.VARIANTS) if world == "roads" else ("clone",)


def render_room(seed: int, index: int, size: tuple[int, int], variant: str = "clone") -> Rendering:
    """Render a room; each frame has its own."""
    rng = np.random.default_rng([1, seed, index])
    room = rooms.make_room(rng)
    views = (rooms.hold_camera(room, rng) for _ in range(TRIES))
    camera, image, depth = first_free_view(Tracer(room.scene), views, size, rng, rooms.REACH)
    return take(camera, image, depth, rng)


def render_walk(
    seed: int, index: int, size: tuple[int, int], seconds: float, rate: float = 10.0
) -> Iterator[Rendering]:
    """Render a video of a room: the frames of a hand-held camera, `rate` a second."""
    rng = np.random.default_rng([4, seed, index])
    room = rooms.make_room(rng)
    tracer = Tracer(room.scene)
    views = (rooms.hold_camera(room, rng) for _ in range(TRIES))
    first, _, _ = first_free_view(tracer, views, size, rng, rooms.REACH)
    for number, camera in enumerate(rooms.walk(first, seconds, rate, rng)):
        noise = np.random.default_rng([5, seed, index, number])
        camera, image, depth = first_free_view(tracer, [camera], size, noise, rooms.REACH)
        yield take(camera, image, depth, np.random.default_rng([6, seed, index]), noise)


@lru_cache(maxsize=1)
def _street(seed: int, number: int) -> tuple[roads.Street, Tracer]:
    street = roads.make_street(np.random.default_rng([2, seed, number]))
    return street, Tracer(street.scene)


def render_road(seed: int, index: int, size: tuple[int, int], variant: str = "clone") -> Rendering:
    """Render a frame of a street; several frames share one street."""
    street, tracer = _street(seed, index // FRAMES_A_STREET)
    weather = roads.VARIANTS[variant]
    rng = np.random.default_rng([3, seed, index])
    scene, camera = roads.under(street, weather)
    metres = METRES_A_FRAME * (index % FRAMES_A_STREET)
    views = (roads.along(street, camera, metres + METRES_A_TRY * step) for step in range(TRIES))
    camera, image, depth = first_free_view(tracer.under(scene), views, size, rng, roads.REACH)
    return take(camera, let_it_rain(image, rng) if weather.rain else image, depth, rng)


def first_free_view(
    tracer: Tracer,
    views: Iterable[RenderCamera],
    size: tuple[int, int],
    rng: np.random.Generator,
    reach: Reach,
) -> tuple[RenderCamera, Array, Array]:
    """The first view in which nothing is too near, or the last one; with image and depth."""
    for camera in views:
        image, depth = trace(tracer, camera, size, rng)
        if (depth < reach.nearest).mean() < TOO_NEAR and np.median(depth) > reach.typical:
            break
    seen = (depth >= reach.nearest) & (depth <= reach.farthest)
    return camera, image, np.where(seen, depth, 0).astype(np.float32)


def take(
    camera: RenderCamera,
    image: Array,
    depth: Array,
    rng: np.random.Generator,
    noise_rng: np.random.Generator | None = None,
) -> Rendering:
    """Convert a linear image to JPEG, as a camera does."""
    exposure, grain = rng.uniform(0.45, 0.75), rng.uniform(0.003, 0.02)
    pixels = develop(image, rng, exposure=exposure, grain=grain, noise_rng=noise_rng)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=int(rng.integers(75, 96)))
    return Rendering(buffer.getvalue(), depth, camera)
