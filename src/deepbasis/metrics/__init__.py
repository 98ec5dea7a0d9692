# SPDX-License-Identifier: Apache-2.0
"""Numbers that say how good a depth map and its error bars are."""

from deepbasis.fit.calibration import nees
from deepbasis.metrics.error import mae, rmse
from deepbasis.metrics.uncertainty import coverage

__all__ = ["coverage", "mae", "nees", "rmse"]
