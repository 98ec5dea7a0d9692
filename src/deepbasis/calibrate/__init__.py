# SPDX-License-Identifier: Apache-2.0
"""What is learned after the network: prior, noise, kernel and calibration; for train and adapt."""
