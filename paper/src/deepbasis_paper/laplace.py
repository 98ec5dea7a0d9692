# SPDX-License-Identifier: Apache-2.0
"""Factors on the variance of maximum likelihood, if errors have a Laplace distribution."""

import torch
from scipy.optimize import minimize
from torch import Tensor

from deepbasis.fit.calibration import LOG_BOUND, check_pixels
from deepbasis.shapes import Float


def laplace_factor(error: Float[Tensor, "*n"], var: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Factor on the variance that maximises the likelihood of a Laplace with 2 b^2 = var.

    It is the square of the mean of |error| / b; less sensitive to outliers than `nees`.
    """
    check_pixels(error, var)
    return (error.abs() / (var / 2).sqrt()).mean().square()


def two_term(
    error: Float[Tensor, "*n"],
    noise_var: Float[Tensor, "*n"],
    model_var: Float[Tensor, "*n"],
) -> tuple[float, float]:
    """Factors (c1, c2) for which c1 noise_var + c2 model_var has the largest Laplace likelihood.

    Pass pixels of many images at mixed point counts: with few points the model variance dominates,
    with many the noise variance; both are needed to identify the two factors.
    """
    check_pixels(error, noise_var + model_var)
    size = error.detach().double().abs().flatten()
    parts = torch.stack([noise_var.detach().double(), model_var.detach().double()]).flatten(1)

    def loss(log_c: list[float]) -> tuple[float, list[float]]:
        """Mean of |error| / b + ln b, 2 b^2 = var, and its gradient."""
        terms = parts * torch.tensor(log_c, dtype=parts.dtype, device=parts.device).exp()[:, None]
        var = terms.sum(0)
        ratio = size * (2 / var).sqrt()
        slope = ((1 - ratio) / (2 * var) * terms).mean(-1)
        return float((ratio + 0.5 * (var / 2).log()).mean()), slope.tolist()

    bounds = [(-LOG_BOUND, LOG_BOUND)] * 2
    result = minimize(lambda x: loss(x.tolist()), [0.0, 0.0], jac=True, bounds=bounds)
    c1, c2 = torch.tensor(result.x).exp().tolist()
    return c1, c2
