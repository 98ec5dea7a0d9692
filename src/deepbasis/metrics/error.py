# SPDX-License-Identifier: Apache-2.0
"""Errors of depth in metres, over the pixels whose true depth is known."""

from torch import Tensor

from deepbasis.latent import measured
from deepbasis.shapes import Float


def mae(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]) -> float:
    """Mean absolute error in metres."""
    return float(_errors(depth_m, true_m).abs().mean())


def rmse(depth_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]) -> float:
    """Root mean squared error in metres."""
    return float(_errors(depth_m, true_m).square().mean().sqrt())


def _errors(depth_m: Tensor, true_m: Tensor) -> Tensor:
    valid = measured(true_m)
    if not valid.any():
        raise ValueError("no pixel has a true depth, so there is no error; is the depth map empty?")
    return (depth_m - true_m)[valid]
