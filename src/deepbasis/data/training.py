# SPDX-License-Identifier: Apache-2.0
"""Frames as a training sees them: points for the network's input, and points for the fit."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.data import default_collate

from deepbasis.data.sample import COLOUR_JITTER, Frames, Sample, augment, seeded
from deepbasis.latent import measured
from deepbasis.scaffold import scaffold
from deepbasis.shapes import Bool, Float, UInt8
from deepbasis.sparse import Depth, Pattern, Uniform, parse


class Item(NamedTuple):
    """A frame with its points; batches come from torch's `default_collate`."""

    name: str
    image: UInt8[Tensor, "3 h w"]
    depth: Float[Tensor, "1 h w"]
    """Ground truth; 0 means not known."""
    sparse: Float[Tensor, "1 h w"]
    """What the fit is fitted to."""
    scaffold: Float[Tensor, "1 h w"]
    """The input points, interpolated; 0 everywhere if there are none."""
    valid: Bool[Tensor, "1 h w"]


@dataclass(frozen=True)
class Between:
    """A number of points drawn anew for each image; each order of magnitude is as likely."""

    low: int
    high: int

    def __call__(self, depth: Depth, image: Tensor, camera: Tensor, generator: Generator) -> Depth:
        """Depth at the chosen pixels, 0 elsewhere."""
        low, high = math.log1p(self.low), math.log1p(self.high)
        count = math.expm1(low + (high - low) * float(torch.rand((), generator=generator)))
        return Uniform(round(count))(depth, image, camera, generator)


def parse_points(text: str) -> Pattern | Between | None:
    """What the user asked for: a pattern, a range such as `0-850`, or `sensor` (None)."""
    if text == "sensor":
        return None
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        low, high = int(match[1]), int(match[2])
        if low > high:
            raise ValueError(f"the range of points {text!r} runs backwards; write {high}-{low}")
        return Between(low, high)
    return parse(text)


@dataclass(frozen=True)
class TrainingSet:
    """Frames with flips and jitter, points for the input and points for the fit.

    Whichever worker or process asks for a frame of an epoch, it gets the same.

    Args:
        frames: any reader.
        input_points: see `parse_points`; what the network sees, if it sees points at all.
        fit_points: likewise; or `same`, the very points of the input. Others are disjoint from
            them.
        drop: probability that a frame's input points are withheld.
        depth_input: whether the network sees points; without it none are scaffolded.
        seed, epoch: another of either draws other points.
        jitter: of the colours, see `augment`.
    """

    frames: Frames
    input_points: str
    fit_points: str
    drop: float = 0.0
    depth_input: bool = False
    seed: int = 0
    epoch: int = 0
    jitter: float = COLOUR_JITTER

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Item:
        generator = seeded(self.seed, self.epoch, index)
        sample = augment(self.frames[index], generator, self.jitter)
        seen = _choose(sample, self.input_points, generator)
        if self.fit_points == "same":
            fitted = seen
        else:
            apart = torch.where(measured(seen), 0, sample.depth) if self.depth_input else None
            fitted = _choose(sample, self.fit_points, generator, apart)
        if not self.depth_input or torch.rand((), generator=generator) < self.drop:
            seen = torch.zeros_like(seen)
        return Item(sample.name, sample.image, sample.depth, fitted, *scaffold(seen))


def collate(items: list[Item]) -> Item:
    """A batch; its frames must be of one size."""
    sizes = {tuple(item.image.shape[1:]) for item in items}
    if len(sizes) > 1:
        names = ", ".join(item.name for item in items)
        raise ValueError(
            f"the frames {names} are of {len(sizes)} sizes, {sorted(sizes)} (height, width), and "
            "cannot share a batch; bring them to one size, or use a batch of 1"
        )
    return default_collate(items)


def _choose(sample: Sample, points: str, generator: Generator, depth: Depth | None = None) -> Depth:
    pattern = parse_points(points)
    if pattern is None:
        return sample.sparse
    dense = sample.depth if depth is None else depth
    return pattern(dense, sample.image, sample.intrinsics, generator)


def batches(
    count: int, batch: int, *, seed: int, epoch: int, rank: int = 0, ranks: int = 1, skip: int = 0
) -> Iterator[list[int]]:
    """Indices of one process's batches in an epoch, in random order.

    Every `ranks` batches in a row go to one process each, so that the processes together see what
    a single one would see batch after batch. An incomplete last round is left out.

    Args:
        count: frames.
        batch: frames in a batch of one process.
        skip: batches of this process that are already done.
    """
    order = torch.randperm(count, generator=seeded(seed, epoch)).tolist()
    for start in range(skip * batch * ranks, count - batch * ranks + 1, batch * ranks):
        mine = start + rank * batch
        yield order[mine : mine + batch]
