# SPDX-License-Identifier: Apache-2.0
"""Rendering of image and exact depth: Embree traces the rays, numpy computes the shading."""

from copy import copy
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import numpy as np

from deepbasis.data.worlds.scene import RenderCamera, RenderScene
from deepbasis.data.worlds.solids import Array
from deepbasis.data.worlds.textures import Palette

# A shadow ray starts this far, in metres, from the surface it leaves.
SKIN = 2e-3
# Soft light is sampled differently at each pixel of a tile of this size; an average over one tile
# sees every sample once, so that it is free of noise where the surface is the same.
TILE = 7
# Where the further rays of a pixel on an edge go, rows and columns from its centre.
WITHIN_A_PIXEL = ((-0.3, 0.25), (0.3, -0.25))
# Cosine of the angle between two places of a shape that count as one surface.
SAME_DIRECTION = 0.98
# Exponent of the highlights on glossy surfaces.
SHARPNESS = 40
# Reach of the rays that find out how open a place is to the ambient light, metres.
OPENNESS_REACH = 0.8


def import_embree() -> tuple[ModuleType, ModuleType]:
    """Import embreex, with a message on how to install it."""
    try:
        return import_module("embreex.mesh_construction"), import_module("embreex.rtcore_scene")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'rendering needs embreex; install it with: pip install "deepbasis[worlds]"'
        ) from error


class Tracer:
    """A scene in Embree."""

    def __init__(self, scene: RenderScene) -> None:
        self.scene, self.palette = scene, Palette(scene.materials)
        # Normal and texture coordinates at each triangle's corners.
        self.corners = np.concatenate(
            [
                np.concatenate([s.normals for s in scene.shapes]),
                np.concatenate([s.uv for s in scene.shapes]),
            ],
            -1,
        ).astype(np.float32)
        self.shape_of = np.repeat(
            np.arange(len(scene.shapes)), [len(s.corners) for s in scene.shapes]
        )
        corners = np.concatenate([s.corners for s in scene.shapes]).astype(np.float32)
        mesh_construction, rtcore_scene = import_embree()
        self.embree = rtcore_scene.EmbreeScene()
        mesh_construction.TriangleMesh(self.embree, corners)

    def under(self, scene: RenderScene) -> "Tracer":
        """The same shapes with other light and materials, without building them again."""
        other = copy(self)
        other.scene, other.palette = scene, Palette(scene.materials)
        return other

    def blocked(self, start: Array, ray: Array, reach: Array) -> Array:
        """Whether each ray hits something within `reach` times its length."""
        hit = self.embree.run(
            start.astype(np.float32, copy=False),
            ray.astype(np.float32, copy=False),
            dists=reach.astype(np.float32, copy=False),
            query="OCCLUDED",
        )
        found: Array = hit >= 0
        return found

    def hits(self, start: Array, ray: Array) -> "Hits":
        """First surface on each ray."""
        out = self.embree.run(
            start.astype(np.float32, copy=False), ray.astype(np.float32, copy=False), output=1
        )
        prim, met = out["primID"], out["primID"] >= 0
        prim = np.where(met, prim, 0)
        u, v = out["u"][:, None], out["v"][:, None]
        bary = np.concatenate([1 - u - v, u, v], 1)
        corners = np.einsum("nk,nkd->nd", bary, self.corners[prim])
        normal, flat = unit(corners[:, :3]), unit(out["Ng"])
        for side in (normal, flat):
            side *= -np.sign(dot(side, ray))[:, None]  # towards the viewer
        distance = np.where(met, out["tfar"], np.inf)
        return Hits(met, distance, self.shape_of[prim], normal, flat, corners[:, 3:])


@dataclass(frozen=True)
class Hits:
    """Surfaces that n rays hit."""

    met: Array
    distance: Array
    shape: Array
    normal: Array
    flat: Array
    uv: Array


def dot(a: Array, b: Array) -> Array:
    """Products of n pairs of vectors; several times faster than a sum over an axis of three."""
    products: Array = np.einsum("ij,ij->i", a, b)
    return products


def unit(a: Array) -> Array:
    """n vectors made of length 1; zero stays zero."""
    scaled: Array = a / (np.sqrt(dot(a, a)) + np.float32(1e-9))[:, None]
    return scaled


def light_up(
    tracer: Tracer, place: Array, view: Array, hits: Hits, directions: Array | None
) -> tuple[Array, Array]:
    """Light that arrives at each place, and the highlight that it makes.

    Given a direction for each place, light is soft: the direction tells which way to look for what
    keeps the ambient light away, and which part of each lamp to look at.
    """
    scene = tracer.scene
    light = np.tile(np.array(scene.ambient, np.float32), (len(place), 1))
    shine = np.zeros_like(light)
    if directions is not None:
        reach = np.full(len(place), OPENNESS_REACH)
        closed = tracer.blocked(place, hits.normal + directions, reach)
        light *= (1 - 0.75 * closed.astype(np.float32))[:, None]
    for lamp in scene.lights:
        way = np.array(lamp.position, np.float32) - place
        if directions is not None:
            way += lamp.extent * directions
        far = np.sqrt(dot(way, way))
        way /= far[:, None]
        facing = dot(hits.normal, way).clip(0)
        lit = np.flatnonzero(facing * hits.met > 0)
        lit = lit[~tracer.blocked(place[lit], way[lit], far[lit])]
        strength = 1 / (0.1 + far[lit] ** 2) if lamp.falloff else np.ones(len(lit), np.float32)
        arriving = strength[:, None] * np.array(lamp.colour, np.float32)
        light[lit] += facing[lit, None] * arriving
        glossy = tracer.palette.gloss[hits.shape[lit]] > 0
        at = lit[glossy]
        half = unit(way[at] + view[at])
        shine[at] += dot(half, hits.normal[at]).clip(0)[:, None] ** SHARPNESS * arriving[glossy]
    return light, shine


def shade(
    tracer: Tracer, start: Array, ray: Array, soft: tuple[Array, tuple[int, int]] | None = None
) -> tuple[Array, Hits]:
    """Linear colour seen along each ray, and the surface it hits.

    Soft light needs a direction for each ray (see `light_up`), and the size of the image that they
    make up: it is sampled with one ray a pixel, and then averaged along each surface.
    """
    scene, hits = tracer.scene, tracer.hits(start, ray)
    palette = tracer.palette
    colour = palette.albedo(hits.shape, hits.uv)
    view = -unit(ray)
    place = start + ray * np.where(hits.met, hits.distance, 1)[:, None] + SKIN * hits.flat
    light, shine = light_up(tracer, place, view, hits, soft[0] if soft else None)
    if soft:
        both = smooth(np.concatenate([light, shine], 1), hits, soft[1])
        light, shine = both[:, :3], both[:, 3:]
    out = colour * (light + palette.glow[hits.shape, None])
    out += palette.gloss[hits.shape, None] * shine
    out = np.where(hits.met[:, None], out, sky_colour(scene, ray))
    if scene.fog:
        share = np.exp(-scene.fog * np.where(hits.met, hits.distance, 1e4))[:, None]
        out = share * out + (1 - share) * np.array(scene.sky)
    return out, hits


def smooth(light: Array, hits: Hits, size: tuple[int, int]) -> Array:
    """Average along rows, then columns, over neighbours of the same shape and direction."""
    normal, shape = hits.normal.reshape(*size, 3), hits.shape.reshape(size)
    values = light.reshape(*size, -1)
    for axis in (0, 1):
        total, count = values.copy(), np.ones((*size, 1), np.float32)
        for step in range(1, TILE // 2 + 1):
            everything = (slice(None),) * axis
            near, far = (*everything, slice(step, None)), (*everything, slice(None, -step))
            parallel = np.einsum("ijk,ijk->ij", normal[near], normal[far]) > SAME_DIRECTION
            same = ((shape[near] == shape[far]) & parallel)[..., None].astype(np.float32)
            total[near] += same * values[far]
            total[far] += same * values[near]
            count[near] += same
            count[far] += same
        values = total / count
    smoothed: Array = values.reshape(len(light), -1)
    return smoothed


def sky_colour(scene: RenderScene, ray: Array) -> Array:
    """Paler towards the horizon."""
    up = unit(ray)[:, 2:].clip(0, 1)
    pale = np.array(scene.sky) * 0.6 + 0.4 * np.mean(scene.sky)
    return pale + (np.array(scene.sky) - pale) * np.sqrt(up)


def trace(
    tracer: Tracer, camera: RenderCamera, size: tuple[int, int], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Linear image, h w 3, and z-depth, h w, infinite where a ray hits nothing.

    Depth is that of the pixels' centres. Pixels on an edge get two more rays for their colour,
    as a lens would mix it.
    """
    height, width = size
    rows, columns = (a.ravel().astype(np.float32) for a in np.indices(size))
    start = np.broadcast_to(np.array(camera.position, np.float32), (height * width, 3))
    cell = (rows % TILE * TILE + columns % TILE).astype(int)
    soft = all_around(TILE**2, rng)[cell], size
    image, hits = shade(tracer, start, camera.rays(rows, columns, size), soft)
    edge = find_edges(hits, size)
    rays = [camera.rays(rows[edge] + r, columns[edge] + c, size) for r, c in WITHIN_A_PIXEL]
    more = len(rays)
    start = np.concatenate([start[edge]] * more)
    colours = shade(tracer, start, np.concatenate(rays))[0].reshape(more, -1, 3)
    image[edge] = (image[edge] + colours.sum(0)) / (1 + more)
    return image.reshape(height, width, 3), hits.distance.reshape(size)


def all_around(n: int, rng: np.random.Generator) -> Array:
    """n directions spread evenly over the sphere (a Fibonacci spiral), in random order."""
    z = 1 - (2 * np.arange(n) + 1) / n
    angle = np.arange(n) * np.pi * (3 - 5**0.5) + rng.uniform(0, 2 * np.pi)
    ring = np.sqrt(1 - z**2)
    points = np.stack([ring * np.cos(angle), ring * np.sin(angle), z], -1).astype(np.float32)
    return rng.permutation(points)


def find_edges(hits: Hits, size: tuple[int, int]) -> Array:
    """Pixels with a neighbour on another shape."""
    shape = np.where(hits.met, hits.shape, -1).reshape(size)
    edge = np.zeros(size, dtype=bool)
    for axis in (0, 1):
        step = np.diff(shape, axis=axis) != 0
        for pad in ((0, 1), (1, 0)):
            edge |= np.pad(step, [pad if a == axis else (0, 0) for a in (0, 1)])
    return edge.ravel()
