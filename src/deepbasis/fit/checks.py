# SPDX-License-Identifier: Apache-2.0
"""Validation of the input of a fit."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from deepbasis.shapes import Bool, Float

# Bases and log depths beyond this are mistakes: their squares would overflow in float32.
LARGEST = 1e15


@dataclass(frozen=True)
class FitPoints:
    """Validated points: float64, and exactly zero where the weight is 0."""

    phi: Float[Tensor, "*b n m"]
    z: Float[Tensor, "*b n"]
    weight: Float[Tensor, "*b n"]

    @cached_property
    def n(self) -> Float[Tensor, "*b"]:
        """N, the number of points with a positive weight."""
        return (self.weight > 0).sum(-1).to(self.z.dtype)

    @cached_property
    def weighted(self) -> Float[Tensor, "*b n m"]:
        """Omega Phi; no copy where all weights are 0 or 1, since `phi` is 0 where they are 0."""
        if self.weight.requires_grad or (self.weight * (1 - self.weight)).any():
            return self.phi * self.weight[..., None]
        return self.phi

    def detach(self) -> "FitPoints":
        """The same points, detached from the graph."""
        return FitPoints(self.phi.detach(), self.z.detach(), self.weight.detach())


def batch_items(bad: Bool[Tensor, "*b"]) -> str:
    """Name images of a batch: `batch items [1, 3] of 4`."""
    if bad.ndim == 0:
        return "the image"
    found = bad.nonzero().tolist() if bad.ndim > 1 else bad.nonzero().flatten().tolist()
    shown = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
    return f"batch items [{shown}] of {bad.numel()}"


def check_points(phi: Tensor, z: Tensor, weight: Tensor | None) -> FitPoints:
    """Points in float64, or a ValueError. Values at weight 0 are ignored, even NaN."""
    _check_shapes(phi, z, z if weight is None else weight)
    if weight is None:
        return FitPoints(phi.double(), z.double(), torch.ones_like(z, dtype=torch.float64))
    bad_weight = ~(weight.isfinite() & (weight >= 0))
    if bad_weight.any():
        raise ValueError(
            f"`weight` is negative, NaN or infinite in {batch_items(bad_weight.any(-1))}; "
            "it is a relative precision: 1 for a typical point, 1/s^2 for one whose noise is s "
            "times the typical noise, 0 to drop a point"
        )
    used = weight > 0
    if not used.all():
        phi, z = torch.where(used[..., None], phi, 0), torch.where(used, z, 0)
    return FitPoints(phi.double(), z.double(), weight.double())


def check_finite(points: FitPoints, *sums: Float[Tensor, "*b m _"]) -> None:
    """Raise an error on NaN or infinity; the normal equations are checked first: they are small."""
    if all(s.isfinite().all() for s in sums) and _fits(points.phi) and _fits(points.z):
        return
    for name, bad in (("phi", ~points.phi.isfinite().all(-1)), ("z", ~points.z.isfinite())):
        if bad.any():
            raise ValueError(
                f"`{name}` holds NaN or infinity at a point of {batch_items(bad.any(-1))}; "
                "check the network's output, or give such a point the weight 0"
            )
    raise ValueError(
        f"the squares of `phi`, `z` or `weight` overflow; bases and log depths must be below "
        f"{LARGEST:g}"
    )


def _fits(values: Tensor) -> bool:
    return not values.numel() or bool(values.detach().abs().amax() <= LARGEST)


def _check_shapes(phi: Tensor, z: Tensor, weight: Tensor) -> None:
    if phi.ndim < 2 or phi.shape[:-1] != z.shape or z.shape != weight.shape:
        raise ValueError(
            f"`phi` is {list(phi.shape)}, `z` {list(z.shape)}, `weight` {list(weight.shape)}; "
            "expected [..., n, m], [..., n] and [..., n] for n points and m bases"
        )
    if not (phi.is_floating_point() and z.is_floating_point() and weight.is_floating_point()):
        raise ValueError(
            f"`phi` is {phi.dtype}, `z` {z.dtype}, `weight` {weight.dtype}; "
            "pass floating point tensors"
        )
