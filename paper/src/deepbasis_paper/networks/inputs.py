# SPDX-License-Identifier: Apache-2.0
"""What the paper's networks are given, and what they return."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import latent
from deepbasis.calibrate.learn import Draw
from deepbasis.calibrate.measure import Answer
from deepbasis.data.sample import Frames
from deepbasis.layer import Errors, Prediction
from deepbasis.nets import DepthNetwork
from deepbasis.points import Points
from deepbasis.shapes import Bool, Float, UInt8
from deepbasis_paper.scaffold import scaffold


@dataclass(frozen=True)
class Given:
    """Images with their points. All members of an ensemble share what is computed from them."""

    image: UInt8[Tensor, "b 3 h w"]
    points: Points

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.image.shape[2], self.image.shape[3]

    @cached_property
    def sparse(self) -> Float[Tensor, "b 1 h w"]:
        """Sparse depth maps in metres; 0 where nothing was measured."""
        points, used = self.points, self.points.weight > 0
        row, column = points.pixel
        batch = torch.arange(len(row), device=row.device)[:, None].expand_as(row)
        maps = points.z.new_zeros(len(row), 1, *self.size)
        maps[batch[used], 0, row[used], column[used]] = latent.to_depth(points.z[used])
        return maps

    @cached_property
    def depth_input(self) -> tuple[Float[Tensor, "b 1 h w"], Bool[Tensor, "b 1 h w"]]:
        """The points interpolated, and where they are."""
        filled = torch.stack([scaffold(one) for one in self.sparse.cpu()])
        return filled.to(self.sparse.device), latent.is_valid(self.sparse)


@dataclass(frozen=True)
class Direct:
    """A prediction without a fit; its errors have a Laplace distribution."""

    prediction: Prediction
    count: Float[Tensor, "b"]
    """Number of points of each image."""
    distribution: latent.ErrorDistribution = latent.LAPLACE


class PaperNetwork(DepthNetwork):
    """A network of the paper's experiments: trained by its own loss, asked by `answer`."""

    @abstractmethod
    def answer(
        self, given: Given, *, errors: Errors | None = None, huber: float | None = None
    ) -> Answer:
        """Prediction of every pixel; `errors` and `huber` are options of fits."""

    def predictor(self, image: UInt8[Tensor, "b 3 h w"]) -> Callable[..., Answer]:
        """A function that predicts from any points of these images."""

        def predict(
            points: Points, *, errors: Errors | None = None, huber: float | None = None
        ) -> Answer:
            return self.answer(Given(image, points), errors=errors, huber=huber)

        return predict

    def usual_noise(self, errors: Errors | None = None) -> float:
        """Variance that a fit leaves at a point, as training found; 0 without a fit."""
        return 0.0

    def learn_prior(self, fabric: Fabric, items: Any) -> None:
        """Learn the prior of a fit from all items of a training set; nothing without a fit."""

    def learn_as_in_paper(self, *, prior: bool) -> dict[str, object]:
        """Learn the paper's prior, if asked for, and its factor; nothing without a fit."""
        return {}

    def calibrate(self, draw: Draw, frames: Frames) -> dict[str, object]:
        """Learn the variance on validation frames, if training did not; returns what was found."""
        return {}
