# SPDX-License-Identifier: Apache-2.0
"""What a fit demands of its input, each refusal in one sentence."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from deepbasis.shapes import Bool, Float


@dataclass(frozen=True)
class Points:
    """Points that passed the checks: float64, and exactly zero where the weight is 0."""

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

    def detach(self) -> "Points":
        """The same points without their history."""
        return Points(self.phi.detach(), self.z.detach(), self.weight.detach())


def batch_items(bad: Bool[Tensor, "*b"]) -> str:
    """Say which images of a batch are meant: `batch items [1, 3] of 4`."""
    if bad.ndim == 0:
        return "the image"
    found = bad.nonzero().tolist() if bad.ndim > 1 else bad.nonzero().flatten().tolist()
    shown = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
    return f"batch items [{shown}] of {bad.numel()}"


def check_points(phi: Tensor, z: Tensor, weight: Tensor | None) -> Points:
    """Points in float64, or a ValueError. What stands at weight 0 is ignored, even NaN."""
    _check_shapes(phi, z, z if weight is None else weight)
    if weight is None:
        return Points(phi.double(), z.double(), torch.ones_like(z, dtype=torch.float64))
    bad_weight = ~(weight.isfinite() & (weight >= 0))
    if bad_weight.any():
        raise ValueError(
            f"`weight` is negative, NaN or infinite in {batch_items(bad_weight.any(-1))}; "
            "it is a relative precision: 1 for a usual point, 1/s^2 for one whose noise is s "
            "times the usual, 0 for none"
        )
    used = weight > 0
    if not used.all():
        phi, z = torch.where(used[..., None], phi, 0), torch.where(used, z, 0)
    return Points(phi.double(), z.double(), weight.double())


def check_finite(points: Points, *sums: Float[Tensor, "*b m _"]) -> None:
    """Refuse NaN and infinity; they show in the normal equations, which are small to look at."""
    if all(s.isfinite().all() for s in sums):
        return
    for name, bad in (("phi", ~points.phi.isfinite().all(-1)), ("z", ~points.z.isfinite())):
        if bad.any():
            raise ValueError(
                f"`{name}` holds NaN or infinity at a point of {batch_items(bad.any(-1))}; "
                "check the network's output, or give such a point the weight 0"
            )
    raise ValueError("`phi`, `z` or `weight` is so large that its square overflows")


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
