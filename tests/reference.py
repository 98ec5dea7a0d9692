# SPDX-License-Identifier: Apache-2.0
"""Slow and obvious twins of the fast code: the paper's formulas as they stand, inverses and all."""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.fit import Prior


def posterior(
    phi: Tensor, z: Tensor, prior: Prior, weight: Tensor, alpha: float, beta: float
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the weights of one image: PRML eq. 3.50 and 3.51."""
    precision = torch.linalg.inv(prior.cov)
    cov = torch.linalg.inv(alpha * precision + beta * phi.mT @ (weight[:, None] * phi))
    mean = cov @ (alpha * precision @ prior.mean + beta * phi.mT @ (weight * z))
    return mean, cov


def em(
    phi: Tensor, z: Tensor, prior: Prior, weight: Tensor, *, steps: int = 8, tol: float = 0.01
) -> tuple[Tensor, Tensor, float, float, int]:
    """The paper's EM for one image: mean, covariance, alpha, beta and steps made."""
    n, m = phi.shape
    precision = torch.linalg.inv(prior.cov)
    alpha, beta, made = 1.0, n**0.5, 0
    while made < steps:
        mean, cov = posterior(phi, z, prior, weight, alpha, beta)
        away, left = mean - prior.mean, z - phi @ mean
        gram = phi.mT @ (weight[:, None] * phi)
        alpha = m / float(away @ precision @ away + (precision @ cov).trace())
        before, beta = beta, n / float(left @ (weight * left) + (gram @ cov).trace())
        made += 1
        if abs(beta - before) <= tol * before:
            break
    return *posterior(phi, z, prior, weight, alpha, beta), alpha, beta, made


def full_basis(scales: list[Tensor], size: tuple[int, int]) -> Tensor:
    """Upsample every scale, concatenate, constant first: b m h w."""
    up = [F.interpolate(s, size, mode="bilinear", align_corners=False) for s in scales]
    return torch.cat([torch.ones_like(up[0][:, :1]), *up], 1)


def layer(scales: list[Tensor], sparse: Tensor, prior: Prior) -> tuple[Tensor, Tensor, Tensor]:
    """The whole layer in evaluation mode: mean, model variance and noise variance."""
    phi = full_basis(scales, (sparse.shape[2], sparse.shape[3])).flatten(2).mT  # b p m
    means, covs, betas = [], [], []
    double = Prior(prior.mean.double(), prior.cov.double())
    for image, depth in zip(phi, sparse.flatten(1), strict=True):
        at = depth > 0
        z = depth[at].double().log()
        mean, cov, _, beta, _ = em(image[at].double(), z, double, torch.ones_like(z))
        means.append(mean)
        covs.append(cov)
        betas.append(beta)
    weights, cov = torch.stack(means).to(phi), torch.stack(covs).to(phi)
    mean = (phi @ weights[..., None])[..., 0]
    model_var = (phi @ cov * phi).sum(-1)
    noise_var = 1 / torch.tensor(betas, dtype=torch.float64).to(phi)[:, None].expand_as(mean)
    return mean.view_as(sparse), model_var.view_as(sparse), noise_var.view_as(sparse)
