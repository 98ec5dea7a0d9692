# SPDX-License-Identifier: Apache-2.0
"""The last layer of a depth network, and what it is made of."""

from deepbasis.layer.basis_fit import BasisFit
from deepbasis.layer.calibration_table import Calibration, CalibrationRow
from deepbasis.layer.errors import Correlated, ErrorModel, Errors, Fitted, Independent, Observed
from deepbasis.layer.learned_prior import LearnedPrior, PriorCollector
from deepbasis.layer.prediction import LeaveOneOut, Prediction
from deepbasis.layer.pyramid import Pyramid

__all__ = [
    "BasisFit",
    "Calibration",
    "CalibrationRow",
    "Correlated",
    "ErrorModel",
    "Errors",
    "Fitted",
    "Independent",
    "LearnedPrior",
    "LeaveOneOut",
    "Observed",
    "Prediction",
    "PriorCollector",
    "Pyramid",
]
