# SPDX-License-Identifier: Apache-2.0
"""Data sets by name, with options to select, downscale and cache their frames."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch.utils.data import DataLoader

from deepbasis.data.files import check_choice
from deepbasis.data.folder import Folder
from deepbasis.data.kitti import SIZE, Kitti
from deepbasis.data.nyu import NyuFolder, NyuMat
from deepbasis.data.sample import Frames, Sample, crop, halve
from deepbasis.data.vkitti2 import Vkitti2
from deepbasis.data.worlds import Worlds

SOURCES = ("nyu", "vkitti2", "kitti", "folder", "rooms", "roads")
# Worlds have no files, so their test frames come from another seed.
TEST_SEED = 1_000_003


@dataclass(frozen=True)
class Source:
    """A data set, as named on the command line.

    Args:
        data: one of `SOURCES`.
        root: its folder, or NYU's .mat file; None for rendered worlds.
        count: use only this many frames, evenly spaced; for rendered worlds, render this many.
        size: height and width of rendered frames.
        downscale: reduce height and width by this factor, a power of 2.
        seed: of a rendered world.
        variant: of a rendered world, or of the test frames of VKITTI2; for KITTI, val_selection is
            the benchmark's selection of 1,000 validation frames.
        centred: see `halve`.
    """

    data: str
    root: Path | None = None
    count: int | None = None
    size: tuple[int, int] | None = None
    downscale: int = 1
    seed: int = 0
    variant: str | None = None
    centred: bool = False

    def __post_init__(self) -> None:
        check_choice("data", self.data, SOURCES)
        if self.downscale < 1 or self.downscale & (self.downscale - 1):
            raise ValueError(f"--downscale {self.downscale} is not one of 1, 2, 4, 8, ...")
        if self.count is not None and self.count < 1:
            raise ValueError(f"--frames {self.count} must be at least 1")
        if (self.root is None) != (self.data in ("rooms", "roads")):
            say = "takes no --root" if self.root is not None else "needs its folder: pass --root"
            raise ValueError(f"--data {self.data} {say}")

    def open(self, split: Literal["train", "test"]) -> Frames:
        """The frames of a split."""
        frames = self._read(split)
        if self.count is not None and self.count < len(frames):
            share = len(frames) / self.count
            frames = Subset(frames, [int(i * share) for i in range(self.count)])
        return Downscaled(frames, self.downscale, self.centred) if self.downscale > 1 else frames

    def _read(self, split: Literal["train", "test"]) -> Frames:
        if self.root is None:
            seed = self.seed if split == "train" else self.seed + TEST_SEED
            return Worlds(self.data, self.count or 100, seed, self.variant or "clone", self.size)
        if self.data == "nyu":
            reader = NyuFolder if self.root.is_dir() else NyuMat
            return reader(self.root, split)
        if self.data == "vkitti2":
            part = split if split == "train" else self.variant or split
            return Vkitti2(self.root, part, halve=False)
        if self.data == "kitti":
            check_choice("variant", self.variant or "val", ("val", "val_selection"))
            part = "train" if split == "train" else self.variant or "val"
            frames = Kitti(self.root, part, halve=False)  # type: ignore[arg-type]
            return Cropped(frames, SIZE)
        part_folder = self.root / split
        return Folder(part_folder if part_folder.is_dir() else self.root)


@dataclass(frozen=True)
class Subset:
    """Some of the frames, in a given order."""

    frames: Frames
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        return self.frames[self.indices[index]]

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.frames.name(self.indices[index])


def subsample(frames: Frames, count: int) -> Frames:
    """At most `count` of the frames, evenly spaced."""
    count = min(count, len(frames))
    return Subset(frames, [i * len(frames) // count for i in range(count)])


@dataclass(frozen=True)
class Concat:
    """The frames of one source, then those of another."""

    first: Frames
    second: Frames

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, index: int) -> Sample:
        beyond = index - len(self.first)
        return self.first[index] if beyond < 0 else self.second[beyond]

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        beyond = index - len(self.first)
        return self.first.name(index) if beyond < 0 else self.second.name(beyond)


@dataclass(frozen=True)
class Cropped:
    """Frames cropped to their bottom centre, where a LiDAR measures, if they are larger."""

    frames: Frames
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Sample:
        sample = self.frames[index]
        (height, width), (rows, columns) = self.size, sample.image.shape[1:]
        left = max(0, (columns - width) // 2)
        return crop(sample, slice(max(0, rows - height), rows), slice(left, left + width))

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.frames.name(index)


@dataclass(frozen=True)
class Downscaled:
    """Frames with height and width reduced by a factor, a power of 2."""

    frames: Frames
    factor: int
    centred: bool = False

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Sample:
        sample = self.frames[index]
        for _ in range(self.factor.bit_length() - 1):
            sample = halve(sample, centred=self.centred)
        return sample

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.frames.name(index)


class CachedFrames:
    """Frames read once and kept in memory."""

    def __init__(self, frames: Frames, workers: int = 0) -> None:
        loader: DataLoader[Sample] = DataLoader(
            frames,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=workers,
        )
        self.samples = [
            # A worker's tensors hold a file handle each until they are copied.
            Sample(sample.name, *(tensor.clone() for tensor in sample[1:]))
            for sample in loader
        ]

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        """A frame."""
        return self.samples[index]

    def name(self, index: int) -> str:
        """Name of a frame."""
        return self.samples[index].name


def split_validation(frames: Frames, count: int) -> tuple[Frames, Frames]:
    """Split off the last `count` frames, for validation.

    They are contiguous, since neighbouring frames often show the same place.
    """
    cut = len(frames) - count
    if count < 0 or cut < 1:
        raise ValueError(
            f"--val-frames {count} must be from 0 to {len(frames) - 1}, so that a "
            f"frame is left to learn from; there are {len(frames)} frames"
        )
    return Subset(frames, range(cut)), Subset(frames, range(cut, len(frames)))


def fingerprint(frames: Frames) -> str:
    """Hash of the names of the frames and their order, 16 hexadecimal digits."""
    names = "\n".join(frames.name(index) for index in range(len(frames)))
    return hashlib.sha256(names.encode()).hexdigest()[:16]
