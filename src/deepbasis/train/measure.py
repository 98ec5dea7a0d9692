# SPDX-License-Identifier: Apache-2.0
"""Predictions of held-back frames, each made by one process and seen by all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import fit, latent, metrics
from deepbasis.data.points import WithPoints
from deepbasis.data.sample import Frames, seeded
from deepbasis.data.training import TrainingSet
from deepbasis.layer import BasisFit
from deepbasis.methods import METHODS
from deepbasis.model import Completer
from deepbasis.networks import Network
from deepbasis.prediction import Prediction
from deepbasis.shapes import Float
from deepbasis.sparse import Pattern, parse
from deepbasis.train.job import Job

LEVEL = 0.9


def share(count: int, fabric: Fabric) -> range:
    """Numbers of the frames that this process looks at."""
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


@dataclass(frozen=True)
class Predicted:
    """Errors and variances of log depth at the known pixels of one frame."""

    prediction: Prediction
    depth: Float[Tensor, "1 1 h w"]
    sparse: Float[Tensor, "1 1 h w"]

    @property
    def rows(self) -> Float[Tensor, "p 3"]:
        """Error, noise variance and model variance."""
        known = latent.measured(self.depth)
        mean, model_var, noise_var = (part[known] for part in self.prediction)
        error = latent.to_latent(self.depth[known]) - mean
        return torch.stack([error, noise_var, model_var], 1)

    @property
    def points(self) -> Float[Tensor, "1"]:
        """How many there were."""
        return latent.measured(self.sparse).float().sum((1, 2, 3))


def pattern_of(points: str) -> Pattern | None:
    """A pattern by name; None is the data set's own sensor."""
    return None if points == "sensor" else parse(points)


def predict(
    fabric: Fabric,
    model: Completer,
    frames: Frames,
    patterns: Sequence[str],
    seed: int,
    apart: bool = False,
) -> Iterator[list[Predicted]]:
    """Predict each of this process's share of some frames from each pattern of points.

    Args:
        fabric: whose processes share the frames.
        model: whatever the method.
        frames: any reader.
        patterns: see `pattern_of`.
        seed: of the points.
        apart: leave the points themselves out of the depth that the prediction is judged by.
    """
    draws = [WithPoints(frames, pattern_of(points), seed=seed) for points in patterns]
    for index in share(len(frames), fabric):
        answer: Callable[[Tensor], Prediction] | None = None
        found = []
        for draw in draws:
            image, depth, sparse = (fabric.to_device(part[None]) for part in draw[index][1:4])
            answer = answer or _answer(model, image)
            judged = depth * ~latent.measured(sparse) if apart else depth
            found.append(Predicted(answer(sparse), judged, sparse))
        yield found


def _answer(model: Completer, image: Tensor) -> Callable[[Tensor], Prediction]:
    """Completion of one image from any points; its bases are made once, if they need no points."""
    network, *others = model.networks
    layer, architecture = network.last, model.architecture
    sees_points = architecture.depth_input or METHODS[architecture.method].network != "basis"
    if others or sees_points or not isinstance(layer, BasisFit):
        return lambda sparse: model(image, sparse)
    bases = network.bases(image)
    return lambda sparse: layer(bases, sparse, guide=image.to(sparse.dtype) / 255)


@torch.no_grad()
def watch(job: Job, network: Network, parts: Sequence[Frames]) -> tuple[float, ...]:
    """Mean RMSE in metres of each part's frames, by a network that is still in training.

    A fit is the one of training, since there is no prior yet.
    """
    config, found = job.config, []
    network.eval()
    network.last.train()
    for frames in parts:
        items = TrainingSet(
            frames, config.input_points, config.fit_points, 0.0, config.depth_input, config.seed,
            jitter=0.0,
        )  # fmt: skip
        errors = []
        for index in share(len(items), job.fabric):
            item = items[index]
            image, depth, sparse, *filled = (job.fabric.to_device(part[None]) for part in item[1:])
            mean = network(image, sparse, *(filled if config.depth_input else ())).mean
            errors.append([metrics.rmse(latent.to_depth(mean), depth)])
        rows = torch.tensor(errors, dtype=torch.float64).view(-1, 1)
        found.append(float(gather_rows(job.fabric, rows).mean()))
    network.train()
    return tuple(found)


def some(rows: Tensor, most: int) -> Tensor:
    """A random part of the rows, the same every time."""
    return rows[torch.randperm(len(rows), generator=seeded(0))[:most].to(rows.device)]


def measure(
    fabric: Fabric,
    model: Completer,
    held: Frames,
    patterns: Sequence[str],
    seed: int,
    apart: bool = False,
) -> dict[str, dict[str, float]]:
    """Mean over frames of error, consistency and coverage, for each pattern; see `predict`.

    Frames without a pixel to judge by are left out, and patterns that leave none in any frame.
    """
    rows: list[list[list[float]]] = [[] for _ in patterns]
    for frame in predict(fabric, model, held, patterns, seed, apart):
        for one, group in zip(frame, rows, strict=True):
            if latent.measured(one.depth).any() or not apart:
                group.append(_figures(model, one))
    tables = [gather_rows(fabric, torch.tensor(group).view(-1, 4)) for group in rows]
    names = ("mae", "rmse", "nees", "coverage_90")
    return {
        points: dict(zip(names, table.mean(0).tolist(), strict=True))
        for points, table in zip(patterns, tables, strict=True)
        if len(table)
    }


def _figures(model: Completer, one: Predicted) -> list[float]:
    depth = latent.to_depth(one.prediction.mean)
    error, noise_var, model_var = one.rows.unbind(1)
    # In the latent: after a poor training, intervals in metres overflow.
    half = model.shape(one.prediction, one.sparse).half_width(one.prediction.var, LEVEL)
    inside = error.abs() <= half[latent.measured(one.depth)]
    return [
        float(metrics.mae(depth, one.depth)), float(metrics.rmse(depth, one.depth)),
        float(fit.nees(error, noise_var + model_var)), float(inside.double().mean()),
    ]  # fmt: skip
