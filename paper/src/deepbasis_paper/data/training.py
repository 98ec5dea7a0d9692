# SPDX-License-Identifier: Apache-2.0
"""Frames as the paper's trainings see them: points for the network's input, and for the fit."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.data.sample import PAPER, Augmentation, Frames, augment, seeded
from deepbasis.data.training import choose_points
from deepbasis.latent import is_valid
from deepbasis.shapes import Bool, Float, UInt8
from deepbasis_paper.scaffold import scaffold


class PaperItem(NamedTuple):
    """A frame with its points; batches come from torch's `default_collate`."""

    name: str
    image: UInt8[Tensor, "3 h w"]
    depth: Float[Tensor, "1 h w"]
    """Ground truth; 0 means not known."""
    sparse: Float[Tensor, "1 h w"]
    """Points that the fit uses."""
    scaffold: Float[Tensor, "1 h w"]
    """The input points, interpolated; 0 everywhere if there are none."""
    seen: Bool[Tensor, "1 h w"]
    """Where the input points are."""

    @property
    def measured(self) -> Tensor:
        """Points that a learned kernel would be trained with; the paper's networks have none."""
        return self.sparse


@dataclass(frozen=True)
class PaperTrainingSet:
    """Frames with random flips, colour jitter, points for the input and points for the fit.

    Whichever worker or process asks for a frame of an epoch, it gets the same.

    Args:
        frames: any reader.
        input_points: see `data.training.parse_points`; what the network sees, if it sees points.
        fit_points: likewise; or `same`, the points of the input. Others are disjoint from them.
        drop: probability that the input points of a frame are withheld.
        depth_input: whether the network sees points; otherwise none are interpolated.
        seed, epoch: another of either draws other points.
        augmentation: flips, zooms and colours.
    """

    frames: Frames
    input_points: str
    fit_points: str
    drop: float = 0.0
    depth_input: bool = False
    seed: int = 0
    epoch: int = 0
    augmentation: Augmentation = PAPER

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> PaperItem:
        generator = seeded(self.seed, self.epoch, index)
        sample = augment(self.frames[index], generator, self.augmentation)
        seen = choose_points(sample, self.input_points, generator)
        if self.fit_points == "same":
            fitted = seen
        else:
            others = torch.where(is_valid(seen), 0, sample.depth) if self.depth_input else None
            fitted = choose_points(sample, self.fit_points, generator, others)
        if not self.depth_input or torch.rand((), generator=generator) < self.drop:
            seen = torch.zeros_like(seen)
        return PaperItem(
            sample.name, sample.image, sample.depth, fitted, scaffold(seen), is_valid(seen)
        )
