# SPDX-License-Identifier: Apache-2.0
"""Metrics of depth maps and of their error bars."""

from deepbasis.fit.calibration import nees
from deepbasis.latent import ErrorDistribution, Laplace, StudentT
from deepbasis.metrics.bootstrap import confidence, paired
from deepbasis.metrics.error import delta, imae, irmse, mae, rel, rmse
from deepbasis.metrics.sparsification import SparsificationCurve, ause, sparsification_curve
from deepbasis.metrics.tally import CONVENTIONS, Tally
from deepbasis.metrics.uncertainty import (
    CalibrationCurve,
    auce,
    calibration_curve,
    coverage,
    nll,
    sharpness,
)

__all__ = [
    "CONVENTIONS", "CalibrationCurve", "ErrorDistribution", "Laplace", "SparsificationCurve",
    "StudentT", "Tally", "auce", "ause", "calibration_curve", "confidence", "coverage", "delta",
    "imae", "irmse", "mae", "nees", "nll", "paired", "rel", "rmse", "sharpness",
    "sparsification_curve",
]  # fmt: skip
