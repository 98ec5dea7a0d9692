# SPDX-License-Identifier: Apache-2.0
"""Calibration of variances: NEES, and factors on the variances."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepbasis.shapes import Float

# Factors of the two-term calibration lie within e^-10 ... e^10: a term that explains nothing is
# negligible there, and a likelihood without a minimum still gives a result.
LOG_BOUND = 10.0


def nees(error: Float[Tensor, "*n"], var: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Normalised estimation error squared, the mean of error^2 / var.

    Its expected value is 1 if the variance is correct, for any distribution; 4 means that the
    standard deviation is half of what it should be. As a factor on the variance it is the paper's
    calibration.
    """
    _check(error, var)
    return _finite((error.square() / var).mean())


def laplace_factor(error: Float[Tensor, "*n"], var: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Factor on the variance that maximises the likelihood of a Laplace with 2 b^2 = var.

    It is the square of the mean of |error| / b; less sensitive to outliers than `nees`.
    """
    _check(error, var)
    return _finite((error.abs() / (var / 2).sqrt()).mean().square())


def two_term(
    error: Float[Tensor, "*n"],
    noise_var: Float[Tensor, "*n"],
    model_var: Float[Tensor, "*n"],
) -> tuple[float, float]:
    """Factors (c1, c2) for which c1 noise_var + c2 model_var has the largest Laplace likelihood.

    Pass pixels of many images at mixed point counts: with few points the model variance dominates,
    with many the noise variance; both are needed to identify the two factors.
    """
    from scipy.optimize import minimize  # only training needs it

    _check(error, noise_var + model_var)
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


def match_nees(groups: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[float, float]:
    """Factors (c1, c2) for which the NEES of c1 noise_var + c2 model_var is near 1 in each group of
    (error, noise_var, model_var): the sum of its squared logarithms is minimal.

    A group is one number of points. All groups have equal weight, whatever the size of their
    errors.
    """
    from scipy.optimize import minimize  # only training needs it

    for error, noise_var, model_var in groups:
        _check(error, noise_var + model_var)

    def loss(log_c: Any) -> float:
        c1, c2 = torch.tensor(log_c).exp().tolist()
        logs = [nees(error, c1 * noise + c2 * model).log() for error, noise, model in groups]
        return float(torch.stack(logs).double().square().sum())

    result = minimize(loss, [0.0, 0.0], method="Nelder-Mead", bounds=[(-LOG_BOUND, LOG_BOUND)] * 2)
    c1, c2 = torch.tensor(result.x).exp().tolist()
    return c1, c2


def _finite(factor: Float[Tensor, ""]) -> Float[Tensor, ""]:
    if not factor.isfinite():
        raise ValueError("an error is so large, or a variance so small, that their ratio overflows")
    return factor


def _check(error: Tensor, var: Tensor) -> None:
    if error.shape != var.shape:
        raise ValueError(f"errors are {list(error.shape)} but variances {list(var.shape)}")
    if error.numel() == 0:
        raise ValueError("no pixel to calibrate with; is the mask empty?")
    if not ((var > 0) & error.isfinite()).all():
        raise ValueError(
            "a variance is not positive, or an error is not finite; exclude such pixels"
        )
