# SPDX-License-Identifier: Apache-2.0
"""Training samples: augmented frames with points for the fit, in batches."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor
from torch.utils.data import default_collate

from deepbasis.data.sample import PAPER, Augmentation, Frames, Sample, augment, seeded
from deepbasis.latent import is_valid
from deepbasis.patterns import Depth, FeaturePoints, Grid, Lidar, Pattern, Uniform, parse
from deepbasis.shapes import Float, UInt8


class Item(NamedTuple):
    """A frame with its points; batches come from torch's `default_collate`."""

    name: str
    image: UInt8[Tensor, "3 h w"]
    depth: Float[Tensor, "1 h w"]
    """Ground truth; 0 means unknown."""
    sparse: Float[Tensor, "1 h w"]
    """Points that the fit uses."""
    measured: Float[Tensor, "1 h w"]
    """Points of a sensor, drawn by any of several patterns; a learned kernel predicts the pixels
    between them."""


@runtime_checkable
class Batch(Protocol):
    """What a network needs of a training batch: of collated items, or of others with more parts."""

    @property
    def name(self) -> Any:
        """Names of the frames."""

    @property
    def image(self) -> UInt8[Tensor, "b 3 h w"]:
        """Images."""

    @property
    def depth(self) -> Float[Tensor, "b 1 h w"]:
        """Ground truth; 0 means unknown."""

    @property
    def sparse(self) -> Float[Tensor, "b 1 h w"]:
        """Points that the fit uses."""

    @property
    def measured(self) -> Float[Tensor, "b 1 h w"]:
        """Points of a sensor, for a learned kernel."""


@dataclass(frozen=True)
class Between:
    """A random number of points for each image, uniform on a logarithmic scale."""

    low: int
    high: int

    def __call__(self, depth: Depth, image: Tensor, camera: Tensor, generator: Generator) -> Depth:
        """Depth at the chosen pixels, 0 elsewhere."""
        low, high = math.log1p(self.low), math.log1p(self.high)
        count = math.expm1(low + (high - low) * float(torch.rand((), generator=generator)))
        return Uniform(round(count))(depth, image, camera, generator)


@dataclass(frozen=True)
class AnySensor:
    """Points of a sensor drawn at random: random pixels as a rule, and else scan lines, the grid of
    a time-of-flight array, or corners.
    """

    fewest: int = 20
    most: float = 0.05
    """Share of the pixels."""

    def __call__(self, depth: Depth, image: Tensor, camera: Tensor, generator: Generator) -> Depth:
        """Depth at the chosen pixels, 0 elsewhere."""
        lot, size = torch.rand(2, generator=generator).tolist()
        most = max(round(self.most * depth.numel()), self.fewest)
        count = round(self.fewest * (most / self.fewest) ** size)
        pattern: Pattern = Uniform(count)
        if lot < 0.15:
            pattern = Lidar((16, 32, 64)[int(3 * size)])
        elif lot < 0.25:
            side = 4 + int(20 * size)
            pattern = Grid(side, side)
        elif lot < 0.35:
            pattern = FeaturePoints(count)
        found = pattern(depth, image, camera, generator)
        # Some images have hardly a corner, and some depth maps no depth on any beam.
        enough = int(is_valid(found).sum()) >= self.fewest
        return Uniform(most)(found if enough else depth, image, camera, generator)


def parse_points(text: str) -> Pattern | Between | None:
    """Parse a pattern, a range such as `0-850`, or `sensor`, for which it returns None."""
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
    """Frames with random flips, colour jitter and points for the fit.

    A frame depends on seed, epoch and index only, not on the worker or process.

    Args:
        frames: any reader.
        points: of the fit; see `parse_points`.
        seed, epoch: of the random draws.
        augmentation: flips, zooms and colours.
    """

    frames: Frames
    points: str
    seed: int = 0
    epoch: int = 0
    augmentation: Augmentation = PAPER

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Item:
        generator = seeded(self.seed, self.epoch, index)
        sample = augment(self.frames[index], generator, self.augmentation)
        sparse = choose_points(sample, self.points, generator)
        measured = AnySensor()(sample.depth, sample.image, sample.intrinsics, generator)
        return Item(sample.name, sample.image, sample.depth, sparse, measured)


def choose_points(
    sample: Sample, points: str, generator: Generator, depth: Depth | None = None
) -> Depth:
    """Points of a frame, drawn from its ground truth or from another depth map."""
    pattern = parse_points(points)
    if pattern is None:
        return sample.sparse
    dense = sample.depth if depth is None else depth
    return pattern(dense, sample.image, sample.intrinsics, generator)


def collate(items: list[Any]) -> Any:
    """A batch; its frames must be of one size."""
    sizes = {tuple(item.image.shape[1:]) for item in items}
    if len(sizes) > 1:
        names = ", ".join(item.name for item in items)
        raise ValueError(
            f"the frames {names} are of {len(sizes)} sizes, {sorted(sizes)} (height, width), and "
            "cannot share a batch; resize them, or use a batch of 1"
        )
    return default_collate(items)


def batches(
    count: int, batch: int, *, seed: int, epoch: int, rank: int = 0, ranks: int = 1, skip: int = 0
) -> Iterator[list[int]]:
    """Indices of one process's batches in an epoch, in random order.

    Of every `ranks` consecutive batches each process gets one, so that all processes together use
    the batches of a single process, in the same order. An incomplete last round is dropped.

    Args:
        count: frames.
        batch: frames in a batch of one process.
        skip: batches of this process that are already done.
    """
    order = torch.randperm(count, generator=seeded(seed, epoch)).tolist()
    for start in range(skip * batch * ranks, count - batch * ranks + 1, batch * ranks):
        mine = start + rank * batch
        yield order[mine : mine + batch]
