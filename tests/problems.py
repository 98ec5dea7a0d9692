# SPDX-License-Identifier: Apache-2.0
"""Problems built from their answer: what the fit should find is known before anything is solved."""

from typing import NamedTuple

import torch
from torch import Tensor

from deepbasis.fit import Prior, memory


class LeastSquares(NamedTuple):
    """z = phi w + rest, rest orthogonal to phi: so `w` is the fit and `squares` what is left."""

    phi: Tensor
    z: Tensor
    w: Tensor
    squares: Tensor


def orthogonal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(*shape, dtype=torch.float64, generator=generator))[0]


def least_squares(
    n: int,
    m: int,
    generator: torch.Generator,
    *,
    cond: float = 10,
    rest: float = 0.3,
    batch: tuple[int, ...] = (),
) -> LeastSquares:
    """Phi = U diag(s) V' with singular values from 1 down to 1 / cond, and weights of size 1."""
    full = orthogonal(*batch, n, n, generator=generator)
    s = torch.logspace(0, -torch.tensor(cond).log10().item(), m, dtype=torch.float64)
    v = orthogonal(*batch, m, m, generator=generator)
    phi = (full[..., :m] * s) @ v.mT
    w = torch.randn(*batch, m, dtype=torch.float64, generator=generator)
    outside = rest * torch.randn(*batch, n - m, dtype=torch.float64, generator=generator)
    z = (phi @ w[..., None] + full[..., m:] @ outside[..., None])[..., 0]
    assert torch.linalg.cond(phi).max() < 1.01 * cond
    return LeastSquares(phi, z, w, outside.square().sum(-1))


class Bayesian(NamedTuple):
    """Points drawn from the model itself, with the prior and the weights that made them."""

    phi: Tensor
    z: Tensor
    weight: Tensor
    prior: Prior
    w: Tensor


def bayesian(
    n: int,
    m: int,
    generator: torch.Generator,
    *,
    noise: float = 0.1,
    batch: tuple[int, ...] = (),
) -> Bayesian:
    """A prior with correlated weights, and points whose noise differs from one to the next."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    mix = torch.eye(m, dtype=torch.float64) + normal(m, m) * 0.4 / m**0.5
    prior = Prior(normal(m), mix @ mix.mT)
    w = prior.mean + normal(*batch, m) @ mix.mT
    phi = normal(*batch, n, m)
    weight = 0.5 + torch.rand(*batch, n, dtype=torch.float64, generator=generator)
    z = (phi @ w[..., None])[..., 0] + noise * normal(*batch, n) / weight.sqrt()
    return Bayesian(phi, z, weight, prior, w)


def conditioned(field, start, stop):
    """Rows of blocks of a field given their neighbours, with one basis, 0 everywhere."""
    pixels = field.size[0] * field.size[1]
    none = field.places.new_zeros(len(field.places), 1), field.places.new_zeros(pixels, 1)
    rows = none[1][start * field.side * field.size[1] : stop * field.side * field.size[1]]
    return memory.condition_blocks(field, (start, stop), none[0], lambda: rows, None)
