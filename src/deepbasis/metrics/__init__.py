# SPDX-License-Identifier: Apache-2.0
"""Numbers that say how good a depth map and its error bars are."""

from deepbasis.fit.calibration import nees
from deepbasis.latent import Laplace, Shape, StudentT
from deepbasis.metrics.bootstrap import confidence, paired
from deepbasis.metrics.error import delta, imae, irmse, mae, rel, rmse
from deepbasis.metrics.sparsification import Sparsification, ause, sparsification_curve
from deepbasis.metrics.tally import CONVENTIONS, Tally
from deepbasis.metrics.uncertainty import (
    Calibration,
    auce,
    calibration_curve,
    coverage,
    nll,
    sharpness,
)

__all__ = [
    "CONVENTIONS", "Calibration", "Laplace", "Shape", "Sparsification", "StudentT", "Tally",
    "auce", "ause", "calibration_curve", "confidence", "coverage", "delta", "imae", "irmse", "mae",
    "nees", "nll", "paired", "rel", "rmse", "sharpness", "sparsification_curve",
]  # fmt: skip
