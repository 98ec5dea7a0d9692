# SPDX-License-Identifier: Apache-2.0
"""What is learned after the network: prior, noise, kernel, calibration, familiarity."""
