# SPDX-License-Identifier: Apache-2.0
"""Predictions of frames with known depth, each made by one process and seen by all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import fit, latent, metrics
from deepbasis.data.sample import Frames, seeded
from deepbasis.data.sources import subsample
from deepbasis.data.with_points import WithPoints
from deepbasis.layer import Errors, Prediction
from deepbasis.patterns import Pattern, parse
from deepbasis.points import Points
from deepbasis.shapes import Float

LEVEL = 0.9
# Frames that the spread of their coverage is measured on, and draws of the points of each.
SPREAD_FRAMES, SPREAD_DRAWS = 16, 4


def share(count: int, fabric: Fabric) -> range:
    """Indices of the frames that this process looks at."""
    return range(fabric.global_rank, count, fabric.world_size)


def gather_rows(fabric: Fabric, rows: Tensor) -> Tensor:
    """Rows of all processes, one process after the other; they may differ in number."""
    if fabric.world_size == 1:
        return rows
    counts = [int(n) for n in fabric.all_gather(torch.tensor([len(rows)]))]
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = fabric.all_gather(padded)
    assert isinstance(parts, Tensor)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


@runtime_checkable
class Answer(Protocol):
    """A prediction of every pixel with the distribution of its errors, such as `Fitted`."""

    @property
    def prediction(self) -> Prediction:
        """Log depth and its variance."""

    @property
    def distribution(self) -> latent.ErrorDistribution:
        """Distribution of the errors of `prediction`."""

    @property
    def count(self) -> Tensor:
        """Number of points of each image."""


@runtime_checkable
class Predicts(Protocol):
    """A network that predicts images from any points."""

    def predictor(self, image: Tensor) -> Callable[..., Answer]:
        """Takes `points` and the option `errors`; what needs no points is computed here, once."""


@dataclass(frozen=True)
class Predicted:
    """The prediction of a frame, and the depth that it is judged by."""

    answer: Answer
    depth: Float[Tensor, "1 1 h w"]

    @property
    def rows(self) -> Float[Tensor, "p 3"]:
        """Error of log depth, noise variance and model variance at the known pixels."""
        known = latent.is_valid(self.depth)
        mean, model_var, noise_var = (part[known] for part in self.answer.prediction)
        error = latent.to_latent(self.depth[known]) - mean
        return torch.stack([error, noise_var, model_var], 1)

    @property
    def points(self) -> Float[Tensor, "1"]:
        """Number of points."""
        return self.answer.count.float()


def pattern_of(points: str) -> Pattern | None:
    """A pattern by name; None is the data set's own sensor."""
    return None if points == "sensor" else parse(points)


def predict(
    fabric: Fabric,
    network: Predicts,
    frames: Frames,
    patterns: Sequence[str],
    *,
    errors: Errors | None = None,
    seed: int = 0,
    unmeasured_only: bool = False,
) -> Iterator[list[Predicted]]:
    """Predict each of this process's share of some frames from each pattern of points.

    Args:
        fabric: whose processes share the frames.
        network: to predict with.
        frames: any reader.
        patterns: see `pattern_of`.
        errors: error model; by default the network's own.
        seed: of the points.
        unmeasured_only: judge no pixel that is a point.
    """
    draws = [WithPoints(frames, pattern_of(points), seed=seed) for points in patterns]
    for index in share(len(frames), fabric):
        answer: Callable[..., Answer] | None = None
        found = []
        for draw in draws:
            image, depth, sparse = (fabric.to_device(part[None]) for part in draw[index][1:4])
            answer = answer or network.predictor(image)
            judged = depth * ~latent.is_valid(sparse) if unmeasured_only else depth
            found.append(Predicted(answer(Points.from_maps(sparse), errors=errors), judged))
        yield found


def some(rows: Tensor, most: int) -> Tensor:
    """A random part of the rows, the same every time."""
    return rows[torch.randperm(len(rows), generator=seeded(0))[:most].to(rows.device)]


@torch.no_grad()
def measure(
    fabric: Fabric,
    network: Predicts,
    frames: Frames,
    patterns: Sequence[str],
    *,
    seed: int = 0,
    unmeasured_only: bool = False,
) -> dict[str, dict[str, float]]:
    """Mean over frames of error, consistency and coverage, for each pattern; see `predict`.

    Frames without a pixel to judge by are left out, and patterns that leave none in any frame.
    """
    rows: list[list[list[float]]] = [[] for _ in patterns]
    for frame in predict(
        fabric, network, frames, patterns, seed=seed, unmeasured_only=unmeasured_only
    ):
        for one, group in zip(frame, rows, strict=True):
            if latent.is_valid(one.depth).any() or not unmeasured_only:
                group.append(_figures(one))
    tables = [gather_rows(fabric, torch.tensor(group).view(-1, 4)) for group in rows]
    names = ("mae", "rmse", "nees", "coverage_90")
    return {
        points: dict(zip(names, table.mean(0).tolist(), strict=True))
        for points, table in zip(patterns, tables, strict=True)
        if len(table)
    }


@torch.no_grad()
def coverage_spread(
    fabric: Fabric,
    network: Predicts,
    frames: Frames,
    patterns: Sequence[str],
    *,
    draws: int = SPREAD_DRAWS,
    seed: int = 0,
    unmeasured_only: bool = False,
) -> dict[str, dict[str, float]]:
    """How far the coverage of one frame is from the mean of all frames, for each pattern.

    A frame's coverage depends on the draw of its points as well: `draws` is the standard deviation
    between draws of the same frame, `frames` that between the means of frames, and `low` and `high`
    contain nine of ten frames, each with one draw.
    """
    some_frames = subsample(frames, SPREAD_FRAMES)
    rows: list[list[list[float]]] = [[] for _ in patterns]
    for draw in range(draws):
        found = predict(
            fabric,
            network,
            some_frames,
            patterns,
            seed=seed + draw,
            unmeasured_only=unmeasured_only,
        )
        for index, frame in enumerate(found):
            for one, group in zip(frame, rows, strict=True):
                if latent.is_valid(one.depth).any():
                    group.append([share(len(some_frames), fabric)[index], _figures(one)[-1]])
    tables = [gather_rows(fabric, torch.tensor(group).view(-1, 2)) for group in rows]
    return {
        points: _spread(table) for points, table in zip(patterns, tables, strict=True) if len(table)
    }


def _spread(table: Float[Tensor, "k 2"]) -> dict[str, float]:
    """Spread of rows of frame and coverage."""
    groups = [table[table[:, 0] == frame, 1] for frame in sorted(set(table[:, 0].tolist()))]
    means = torch.stack([group.mean() for group in groups])
    within = torch.stack([group.var(correction=min(1, len(group) - 1)) for group in groups])
    low, high = table[:, 1].quantile(torch.tensor([0.05, 0.95]).to(table)).tolist()
    return {
        "draws": float(within.mean().sqrt()), "frames": float(means.std(correction=0)),
        "low": low, "high": high,
    }  # fmt: skip


def _figures(one: Predicted) -> list[float]:
    prediction = one.answer.prediction
    depth = latent.to_depth(prediction.mean)
    error, noise_var, model_var = one.rows.unbind(1)
    # In the latent: after a poor training, intervals in metres overflow.
    half = one.answer.distribution.half_width(prediction.var, LEVEL)
    inside = error.abs() <= half[latent.is_valid(one.depth)]
    return [
        float(metrics.mae(depth, one.depth)), float(metrics.rmse(depth, one.depth)),
        float(fit.nees(error, noise_var + model_var)), float(inside.double().mean()),
    ]  # fmt: skip
