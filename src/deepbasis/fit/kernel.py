# SPDX-License-Identifier: Apache-2.0
"""How the errors at two places go together, and what those at some places say of another.

Notation (Rasmussen and Williams, Gaussian Processes, sections 2.2 and 4.2)     code      shape
    a place: row and column in image widths, then features such as RGB in 0..1   x         n f
    neighbours S of a place, their noise variances as shares of 1 / beta         noise     k
    K_SS^-1 k_S: what each neighbour's error says of the place's                 b         p k
    share of 1 / beta that is left unknown when the neighbours are known         share     p
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepbasis.shapes import Float

# Least noise of a point, as a share of 1 / beta: more than the rounding of float32 correlations,
# so that their matrix can be factored even where points share a place.
LEAST_NOISE = 1e-5


@dataclass(frozen=True)
class Kernel:
    """Covariance of the errors that no basis explains: (1 / beta) k(x, x'), and a nugget.

    Lengths are shares of the image's width, so that a kernel serves images of any size.
    """

    length: float = 0.13
    """Distance over which errors go together."""
    colour: float = 0.2
    """Distance that counts as much as a feature's full change from 0 to 1."""
    nugget: float = 0.02
    """Variance that a pixel shares with no other one, relative to the variance it shares."""
    smoothness: float = 0.5
    """Of the Matern kernel: 0.5 is exponential and rough, 1.5 has a slope everywhere."""

    def __post_init__(self) -> None:
        sizes = (self.length, self.nugget)
        if not all(0 < size < math.inf for size in sizes) or not 0 <= self.colour < math.inf:
            raise ValueError(
                f"{self} is none: `length` and `nugget` must be positive, `colour` not negative"
            )
        if self.smoothness not in (0.5, 1.5):
            raise ValueError(f"`smoothness` is {self.smoothness}; choose 0.5 or 1.5")

    def scale(self, x: Float[Tensor, "*n f"]) -> Float[Tensor, "*n f"]:
        """Places in units of the length, so that plain distances count."""
        position, features = x[..., :2], x[..., 2:]
        return torch.cat([position / self.length, features * (self.colour / self.length)], -1)

    def correlation(
        self, one: Float[Tensor, "*q i f"], other: Float[Tensor, "*q j f"]
    ) -> Float[Tensor, "*q i j"]:
        """Correlation of the errors at scaled places; Rasmussen and Williams, eq. 4.17."""
        distance = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
        if self.smoothness == 0.5:
            return distance.neg_().exp_()
        return (1 + math.sqrt(3) * distance) * (-math.sqrt(3) * distance).exp()

    def noise(self, weight: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Noise variance of points as a share of 1 / beta."""
        return (self.nugget / weight).clamp(min=LEAST_NOISE)


def condition(
    kernel: Kernel,
    at: Float[Tensor, "*q p f"],
    near: Float[Tensor, "*q k f"],
    noise: Float[Tensor, "*q k"],
) -> tuple[Float[Tensor, "*q p k"], Float[Tensor, "*q p"]]:
    """K^-1 k and 1 - k' K^-1 k for p places that share k neighbours; places are scaled.

    The k x k matrices are factored in float64; all else stays in the dtype of the places.
    """
    cov = kernel.correlation(near, near).double()
    cov.diagonal(dim1=-2, dim2=-1).add_(noise)
    chol = torch.linalg.cholesky(cov)
    eye = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device).expand_as(cov)
    whitener = torch.linalg.solve_triangular(chol, eye, upper=False).to(at.dtype)
    u = whitener @ kernel.correlation(near, at)
    return u.mT @ whitener, (1 - u.square().sum(-2)).clamp(min=0)
