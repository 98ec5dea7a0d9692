# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of means over images, and paired comparison of two models."""

from collections.abc import Mapping

import torch
from torch import Tensor

from deepbasis.metrics.tally import Tally
from deepbasis.shapes import Float

DRAWS = 2000


def confidence(
    rows: Mapping[str, Float[Tensor, "n"]], level: float = 0.95, seed: int = 0, draws: int = DRAWS
) -> dict[str, tuple[float, float]]:
    """Confidence interval of the mean over images, by the percentile bootstrap.

    Images are drawn with replacement, the same ones for every metric. Neighbouring frames of a
    video are not independent, so their interval is too narrow.

    Args:
        rows: metrics of each image, those of `Tally.per_image` or of `paired`.
        level: probability of the interval.
        seed: of the draws.
        draws: number of draws.

    Returns:
        Lower and upper bound of each metric.

    Raises:
        ValueError: if there are fewer than two images, or the level is not a probability.
    """
    if not 0 < level < 1:
        raise ValueError(f"an interval's level is {level}; pass a probability between 0 and 1")
    table = torch.stack([values.double() for values in rows.values()], 1)
    if len(table) < 2:
        raise ValueError(f"a confidence interval needs two images or more, not {len(table)}")
    generator = torch.Generator().manual_seed(seed)
    chosen = (torch.randint(len(table), (len(table),), generator=generator) for _ in range(draws))
    means = torch.stack([table[at].mean(0) for at in chosen])
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=means.dtype)
    low, high = means.quantile(tails, 0).tolist()
    return dict(zip(rows, zip(low, high, strict=True), strict=True))


def paired(first: Tally, second: Tally) -> dict[str, Float[Tensor, "n"]]:
    """Metrics of the first minus those of the second, image by image.

    If the confidence interval of the differences excludes 0, the two models differ. This test is
    much more sensitive than comparing two intervals, because hard images are hard for both models.

    Args:
        first: a model's scores.
        second: another model's scores of the same images.

    Returns:
        The differences of each metric.

    Raises:
        ValueError: if an image was scored by only one of them.
    """
    if odd := sorted(first.rows.keys() ^ second.rows.keys()):
        raise ValueError(
            f"{len(odd)} images were scored by only one of the models, such as {odd[0]!r}"
        )
    others = second.per_image()
    return {name: values - others[name] for name, values in first.per_image().items()}
