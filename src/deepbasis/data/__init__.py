# SPDX-License-Identifier: Apache-2.0
"""Data sets: readers of files, and rendered worlds, as samples for training and evaluation."""
