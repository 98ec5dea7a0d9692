# SPDX-License-Identifier: Apache-2.0
"""Blocks of pixels given their neighbours, kept for the next set of points of the same image.

What the neighbours S of a pixel leave of its bases, phi - b' Phi_S, depends on the places of the
points and on their noise, not on their depth and not on the weights. One point more or less changes
the neighbours of a few blocks only; all others are taken from the previous prediction.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.fit.field import Field
from deepbasis.fit.kernel import condition
from deepbasis.shapes import Float, Int

# Pixels of an image up to which anything is kept: with 63 bases about 750 bytes a pixel, or 1200 if
# there is a point at every other pixel.
MOST_PIXELS = 160_000
# If a larger share of the blocks has other neighbours, computing all of them is faster.
MANY = 0.5
# What a field computes from the pixels alone.
OF_PIXELS = ("pixel_places", "middle")


@dataclass
class Conditioned:
    """Some rows of blocks of pixels, given their neighbours."""

    at: Float[Tensor, "q p f"]
    """Scaled places of the pixels, with rings."""
    bases: Float[Tensor, "q j c"]
    """Bases of the pixels, without rings."""
    points: Float[Tensor, "q k f"]
    """Scaled places of the neighbours."""
    noise: Float[Tensor, "q k"]
    """Of the neighbours."""
    b: Float[Tensor, "q p k"]
    """Weights of the neighbours in the prediction of each pixel, divided by its amplitude."""
    left: Float[Tensor, "q p"]
    """Conditional variance, relative to 1 / beta, without the nugget."""
    rest: Float[Tensor, "q j c"]
    """phi - b' Phi_S."""

    def changed(self, points: Tensor, noise: Tensor) -> Int[Tensor, "_"]:
        """Blocks that have other neighbours now."""
        other = (points != self.points).flatten(1).any(1) | (noise != self.noise).any(1)
        return other.nonzero()[:, 0]

    def replace(self, which: Int[Tensor, "_"], other: "Conditioned") -> None:
        """Take some blocks from `other`, in this order."""
        for name in ("points", "noise", "b", "left", "rest"):
            getattr(self, name).index_copy_(0, which, getattr(other, name))


Kept = dict[int, Conditioned]


class Memory:
    """The blocks of the last prediction of one image. Threads may share it: one of them uses it at
    a time, and the others compute everything.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: Any = None
        self._of_pixels: dict[str, Tensor] = {}
        self._blocks: Kept = {}

    def __reduce__(self) -> Any:
        return Memory, ()

    @contextmanager
    def open(self, field: Field) -> Iterator[Kept | None]:
        """The blocks that were kept, to be read and changed; None if nothing is to be kept.

        Args:
            field: the points of the next prediction of this image.

        Yields:
            For each first row of blocks that were predicted together, these blocks.
        """
        height, width = field.size
        if height * width > MOST_PIXELS or not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            self._prepare(field)
            yield self._blocks
        except BaseException:
            self._key = None
            raise
        finally:
            self._lock.release()

    def _prepare(self, field: Field) -> None:
        key = (field.kernel, field.side, field.taken, field.places.dtype, *_modes(field))
        if key != self._key:
            self._key, self._of_pixels, self._blocks = key, {}, {}
        vars(field).update(self._of_pixels)
        self._of_pixels = {name: getattr(field, name) for name in OF_PIXELS}


def _modes(field: Field) -> tuple[Any, ...]:
    """Modes of torch that decide which tensors can be changed, and their type."""
    kind = field.places.device.type
    casts = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    return torch.is_inference_mode_enabled(), casts


def condition_blocks(
    field: Field,
    rows: tuple[int, int],
    phi: Float[Tensor, "_ m"],
    bases: Callable[[], Float[Tensor, "p c"]],
    kept: Kept | None,
) -> Conditioned:
    """Some rows of blocks given their neighbours.

    Args:
        field: the points of the image.
        rows: the first row of blocks, and the one after the last.
        phi: bases at the points, and 0 at missing ones, divided by the amplitude.
        bases: returns those of the pixels of these rows.
        kept: blocks of earlier predictions; those of this one are stored.
    """
    near = field.near_of(*rows)
    known = None if kept is None else kept.get(rows[0])
    if known is None:
        at, inside = (
            field.places_of(field.pixels_of(*rows, ring=True)),
            _inside(field, rows, bases()),
        )
    else:
        which = known.changed(field.places[near], field.noise[near])
        if len(which) < MANY * len(near):
            if len(which):
                parts = near[which], phi, known.at[which], known.bases[which]
                known.replace(which, _condition(field, rows, which, *parts))
            return known
        at, inside = known.at, known.bases
    found = _condition(field, rows, slice(None), near, phi, at, inside)
    if kept is not None:
        kept[rows[0]] = found
    return found


def _inside(
    field: Field, rows: tuple[int, int], values: Float[Tensor, "p c"]
) -> Float[Tensor, "q j c"]:
    """Values of the pixels of some rows of blocks, block by block."""
    pixels = field.pixels_of(*rows)
    first = rows[0] * field.side * field.size[1]
    return values.index_select(0, (pixels - first).flatten()).view(*pixels.shape, -1)


def _condition(
    field: Field,
    rows: tuple[int, int],
    which: Int[Tensor, "_"] | slice,
    near: Int[Tensor, "q k"],
    phi: Float[Tensor, "_ m"],
    at: Float[Tensor, "q p f"],
    bases: Float[Tensor, "q j c"],
) -> Conditioned:
    points, noise = field.places[near], field.noise[near]
    b, left = condition(field.kernel, at, points, noise)
    own = field.without_ring(b).to(phi.dtype)
    if field.amplitude is not None:
        own = own * field.amplitude.flatten()[field.pixels_of(*rows)[which], None]
    around = F.pad(phi, (0, bases.shape[-1] - phi.shape[-1]))[near]
    rest = torch.baddbmm(bases, own, around, alpha=-1)
    return Conditioned(at, bases, points, noise, b, left, rest)
