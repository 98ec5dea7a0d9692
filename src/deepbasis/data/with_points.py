# SPDX-License-Identifier: Apache-2.0
"""Frames with points drawn by a pattern, and optional augmentation."""

from dataclasses import dataclass, replace

from deepbasis.data.sample import Frames, Sample, augment, seeded
from deepbasis.patterns import Pattern, corrupt


@dataclass(frozen=True)
class WithPoints:
    """Frames with points drawn by a pattern; the points do not depend on the worker.

    Args:
        frames: any reader.
        pattern: which pixels are measured; None keeps the points of the data set's own sensor.
        seed, epoch: of the random draws.
        training: apply the paper's flip and colour jitter first.
        noise, outliers: see `deepbasis.patterns.corrupt`.
    """

    frames: Frames
    pattern: Pattern | None
    seed: int = 0
    epoch: int = 0
    training: bool = False
    noise: float = 0.0
    outliers: float = 0.0

    def __len__(self) -> int:
        return len(self.frames)

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.frames.name(index)

    def __getitem__(self, index: int) -> Sample:
        generator = seeded(self.seed, self.epoch, index)
        sample = self.frames[index]
        if self.training:
            sample = augment(sample, generator)
        if self.pattern is not None:
            maps = sample.depth, sample.image, sample.intrinsics
            sample = sample._replace(sparse=self.pattern(*maps, generator))
        if self.noise or self.outliers:
            sparse = corrupt(sample.sparse, self.noise, self.outliers, generator)
            sample = sample._replace(sparse=sparse)
        return sample

    def at_epoch(self, epoch: int) -> "WithPoints":
        """The same frames with the points of another epoch."""
        return replace(self, epoch=epoch)
