# SPDX-License-Identifier: Apache-2.0
"""How far error bars can be trusted."""

from torch import Tensor

from deepbasis.latent import measured
from deepbasis.shapes import Float


def coverage(
    low_m: Float[Tensor, "*s"], high_m: Float[Tensor, "*s"], true_m: Float[Tensor, "*s"]
) -> float:
    """Share of the pixels with a true depth whose interval holds it."""
    valid = measured(true_m)
    if not valid.any():
        raise ValueError("no pixel has a true depth, so nothing can be covered; is it empty?")
    return float(((low_m <= true_m) & (true_m <= high_m))[valid].double().mean())
