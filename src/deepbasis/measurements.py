# SPDX-License-Identifier: Apache-2.0
"""The measurements in sparse depth maps, found and padded to one count."""

from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis import latent
from deepbasis.shapes import Float, Int


class Measurements(NamedTuple):
    """Measurements of a batch, padded with weight 0 to the largest count."""

    row: Int[Tensor, "b n"]
    column: Int[Tensor, "b n"]
    z: Float[Tensor, "b n"]
    weight: Float[Tensor, "b n"]


def gather_points(
    sparse: Float[Tensor, "b 1 h w"], weight: Float[Tensor, "b 1 h w"] | None = None
) -> Measurements:
    """Find the measurements in sparse depth maps; 0, NaN and infinity mean none."""
    _check_sparse(sparse, weight)
    image, _, row, column = latent.measured(sparse).nonzero(as_tuple=True)
    count = torch.bincount(image, minlength=len(sparse))
    slot = torch.arange(len(image), device=image.device) - (count.cumsum(0) - count)[image]
    shape = (len(sparse), int(count.max()) if len(count) else 0)

    def pad(values: Tensor) -> Tensor:
        return values.new_zeros(shape).index_put_((image, slot), values)

    depth = sparse[image, 0, row, column]
    trust = torch.ones_like(depth) if weight is None else weight[image, 0, row, column]
    return Measurements(pad(row), pad(column), pad(latent.to_latent(depth)), pad(trust))


def _check_sparse(sparse: Tensor, weight: Tensor | None) -> None:
    if sparse.ndim != 4 or sparse.shape[1] != 1 or not sparse.is_floating_point():
        raise ValueError(
            f"sparse depth is {sparse.dtype} {list(sparse.shape)}; expected floating point metres "
            "[batch, 1, height, width]"
        )
    if weight is not None and weight.shape != sparse.shape:
        raise ValueError(
            f"weights are {list(weight.shape)} but the sparse depth is {list(sparse.shape)}; "
            "pass one weight for each pixel"
        )
    negative = (sparse < 0) & (sparse != -torch.inf)
    if negative.any():
        image, _, row, column = negative.nonzero()[0].tolist()
        raise ValueError(
            f"sparse depth is negative, first in image {image} at row {row}, column {column}: "
            f"{float(sparse[image, 0, row, column]):.4g} m; depth is in metres, "
            "and 0, NaN or infinity mean no measurement"
        )
