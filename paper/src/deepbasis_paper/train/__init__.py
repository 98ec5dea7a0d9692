# SPDX-License-Identifier: Apache-2.0
"""Trainings of the paper's methods, by the library's loop."""
