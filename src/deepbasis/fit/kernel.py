# SPDX-License-Identifier: Apache-2.0
"""Correlation of the errors at two places, and conditioning on the errors at some places.

Notation (Rasmussen and Williams, Gaussian Processes, sections 2.2 and 4.2)     code      shape
    a place: row and column in image widths, then features such as RGB in 0..1   x         n f
    noise variances of the neighbours S of a place, relative to 1 / beta         noise     k
    K_SS^-1 k_S: weights of the neighbours' errors in the prediction             b         p k
    conditional variance given the neighbours, relative to 1 / beta              left      p
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepbasis.shapes import Float

# Smallest noise of a point, relative to 1 / beta: above the rounding of float32 correlations, so
# that their matrix can be factored even if points coincide.
LEAST_NOISE = 1e-5
# Smallest conditional variance that is divided by; at least the square of the rounding of float64.
SMALLEST = 1e-10
# The rough part of a kernel has a length shorter by this factor.
ROUGHER = 4.0


@dataclass(frozen=True)
class Kernel:
    """Covariance of the errors that no basis explains: (1 / beta) k(x, x'), and a nugget.

    Lengths are relative to the image's width, so that a kernel is valid for images of any size.
    Length, colour and nugget may be tensors, to be learned by their gradient.
    """

    length: float | Tensor = 0.13
    """Distance over which errors are correlated."""
    colour: float | Tensor = 0.2
    """Distance that is equivalent to a change of a feature from 0 to 1."""
    nugget: float | Tensor = 0.02
    """Variance of the uncorrelated part, relative to that of the correlated part."""
    smoothness: float = 0.5
    """Of the Matern kernel: 0.5 is the exponential kernel, 1.5 is once differentiable."""
    rough: float | Tensor = 0.0
    """Share of a second part, an exponential kernel of a quarter of the length. A smooth kernel
    alone expects too little of neighbouring pixels, some of which lie on either side of an edge."""

    def __post_init__(self) -> None:
        sizes = (self.length, self.nugget)
        if not all(0 < size < math.inf for size in sizes) or not 0 <= self.colour < math.inf:
            raise ValueError(
                f"{self} is invalid: `length` and `nugget` must be positive, `colour` not negative"
            )
        if self.smoothness not in (0.5, 1.5):
            raise ValueError(f"`smoothness` is {self.smoothness}; choose 0.5 or 1.5")
        if not 0 <= self.rough <= 1:
            raise ValueError(f"`rough` is {self.rough}; it is a share between 0 and 1")

    def scale(self, x: Float[Tensor, "*n f"]) -> Float[Tensor, "*n f"]:
        """Places in units of the length, so that Euclidean distances apply.

        Args:
            x: row and column in image widths, then features.

        Returns:
            The scaled places.
        """
        position, features = x[..., :2], x[..., 2:]
        return torch.cat([position / self.length, features * (self.colour / self.length)], -1)

    def correlation(
        self, one: Float[Tensor, "*q i f"], other: Float[Tensor, "*q j f"]
    ) -> Float[Tensor, "*q i j"]:
        """Correlation of the errors at scaled places; Rasmussen and Williams, eq. 4.17.

        Args:
            one: scaled places.
            other: scaled places.

        Returns:
            The correlation of each place of `one` with each of `other`.
        """
        return self.at_distance(
            torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
        )

    def at_distance(self, distance: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Correlation of the errors at scaled places this far apart; overwrites `distance`.

        Args:
            distance: Euclidean, between scaled places.

        Returns:
            Correlations, of the same shape.
        """
        if isinstance(self.rough, float) and self.rough == 0:
            return self._smooth(distance)
        rough = -ROUGHER * distance
        rough = rough.exp() if rough.requires_grad else rough.exp_()
        smooth = self._smooth(distance)
        if isinstance(self.rough, Tensor) or smooth.requires_grad:
            return (1 - self.rough) * smooth + self.rough * rough
        return smooth.lerp_(rough, self.rough)

    def _smooth(self, distance: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        if self.smoothness == 0.5:
            return (-distance).exp() if distance.requires_grad else distance.neg_().exp_()
        if distance.requires_grad:
            return (1 + math.sqrt(3) * distance) * (-math.sqrt(3) * distance).exp()
        minus = distance.mul_(-math.sqrt(3))
        decay = minus.exp()
        return decay.addcmul_(minus, decay, value=-1)  # (1 - minus) exp(minus)

    def noise(self, weight: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Noise variance of points, relative to 1 / beta.

        Args:
            weight: relative precision of each point.

        Returns:
            Their noise, at least `LEAST_NOISE`.
        """
        return (self.nugget / weight).clamp(min=LEAST_NOISE)


def condition(
    kernel: Kernel,
    at: Float[Tensor, "*q p f"],
    near: Float[Tensor, "*q k f"],
    noise: Float[Tensor, "*q k"],
) -> tuple[Float[Tensor, "*q p k"], Float[Tensor, "*q p"]]:
    """K^-1 k and 1 - k' K^-1 k for p places that share k neighbours; places are scaled.

    The k x k matrices are factored in float64; everything else is in the dtype of the places.
    """
    white = whitener(kernel, near, noise).to(at.dtype)
    u = white @ kernel.correlation(near, at)
    return u.mT @ white, (1 - u.square().sum(-2)).clamp(min=0)


def whitener(
    kernel: Kernel, near: Float[Tensor, "*q k f"], noise: Float[Tensor, "*q k"]
) -> Float[Tensor, "*q k k"]:
    """L^-1, where L L' = K is the covariance at scaled places with their noise; in float64."""
    cov = kernel.correlation(near, near).double()
    cov.diagonal(dim1=-2, dim2=-1).add_(noise)
    chol = torch.linalg.cholesky(cov)
    eye = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device).expand_as(cov)
    return torch.linalg.solve_triangular(chol, eye, upper=False)


def condition_each(
    kernel: Kernel,
    at: Float[Tensor, "q f"],
    near: Float[Tensor, "q k f"],
    noise: Float[Tensor, "q k"],
) -> tuple[Float[Tensor, "q k"], Float[Tensor, "q"]]:
    """`condition` of single places, each with its own neighbours. Not differentiable.

    All matrices are factored side by side, a column at a time: for small ones, several times as
    fast as one by one. The place itself is the last row of each, so that the last row of the factor
    is L^-1 k, and the square of its last number 1 - k' K^-1 k.
    """
    q, k, _ = near.shape
    both = torch.cat([near, at[:, None]], 1).permute(2, 1, 0).contiguous()
    low = torch.empty(k + 1, k + 1, q, dtype=torch.float64, device=at.device)
    for j in range(k + 1):
        distance = (both[:, j:] - both[:, j : j + 1]).square_().sum(0).sqrt_()
        column = kernel.at_distance(distance).double()
        if j < k:
            column[0] += noise[:, j]
        column -= (low[j:, :j] * low[j, :j]).sum(1)
        low[j:, j] = column / column[0].clamp(min=SMALLEST).sqrt()
    b = low[k, :k].clone()
    for j in reversed(range(k)):
        b[j] = (b[j] - (low[j + 1 : k, j] * b[j + 1 :]).sum(0)) / low[j, j]
    return b.mT, low[k, k].square()
