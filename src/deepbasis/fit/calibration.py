# SPDX-License-Identifier: Apache-2.0
"""Calibration of variances: NEES, and factors on the variances."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepbasis.shapes import Float

# Factors lie within e^-10 ... e^10: a term that explains nothing is negligible there, and a loss
# without a minimum still gives a result.
LOG_BOUND = 10.0
# Beforehand both factors are 1, as if this many frames had said so.
PRIOR_FRAMES = 1.0


def nees(error: Float[Tensor, "*n"], var: Float[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Normalised estimation error squared, the mean of error^2 / var.

    Its expected value is 1 if the variance is correct, for any distribution; 4 means that the
    standard deviation is half of what it should be. As a factor on the variance it is the paper's
    calibration.

    Args:
        error: of the mean, in log depth.
        var: its predicted variance.

    Returns:
        The mean, a scalar tensor.

    Raises:
        ValueError: if shapes differ, there is no pixel, or a variance is not positive.
    """
    check_pixels(error, var)
    return _finite((error.square() / var).mean())


def match_nees(
    groups: Sequence[tuple[Tensor, Tensor, Tensor]], frames: float
) -> tuple[float, float]:
    """Factors (c1, c2) for which the NEES of c1 noise_var + c2 model_var is near 1 in each group of
    (error, noise_var, model_var): the sum of its squared logarithms is minimal.

    A group is one number of points. All groups have equal weight, whatever the size of their
    errors. Which of the two factors explains an error is badly determined by few frames, and one
    of them would then vanish; so ln c1 and ln c2 have a normal prior around 0. Its variance is that
    of ln NEES between frames, so that it counts as `PRIOR_FRAMES` frames.

    Args:
        groups: some pixels of frames.
        frames: how many frames they are from; pixels of one frame have correlated errors.

    Returns:
        The factor on the noise variance and that on the model variance.

    Raises:
        ValueError: as in `nees`.
    """
    from scipy.optimize import minimize  # only training needs it

    for error, noise_var, model_var in groups:
        check_pixels(error, noise_var + model_var)

    def loss(log_c: Any) -> float:
        c1, c2 = torch.tensor(log_c).exp().tolist()
        logs = [nees(error, c1 * noise + c2 * model).log() for error, noise, model in groups]
        prior = PRIOR_FRAMES / frames * sum(x * x for x in log_c)
        return float(torch.stack(logs).double().square().sum()) + float(prior)

    result = minimize(loss, [0.0, 0.0], method="Nelder-Mead", bounds=[(-LOG_BOUND, LOG_BOUND)] * 2)
    c1, c2 = torch.tensor(result.x).exp().tolist()
    return c1, c2


def _finite(factor: Float[Tensor, ""]) -> Float[Tensor, ""]:
    if not factor.isfinite():
        raise ValueError("an error is so large, or a variance so small, that their ratio overflows")
    return factor


def check_pixels(error: Tensor, var: Tensor) -> None:
    """Refuse errors and variances that no factor can be found from."""
    if error.shape != var.shape:
        raise ValueError(f"errors are {list(error.shape)} but variances {list(var.shape)}")
    if error.numel() == 0:
        raise ValueError("no pixel to calibrate with; is the mask empty?")
    if not ((var > 0) & error.isfinite()).all():
        raise ValueError(
            "a variance is not positive, or an error is not finite; exclude such pixels"
        )
