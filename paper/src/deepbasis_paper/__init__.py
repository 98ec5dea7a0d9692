# SPDX-License-Identifier: Apache-2.0
"""The paper's experiments: methods that the fit is compared with, tables, figures, benchmarks."""
