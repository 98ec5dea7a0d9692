# SPDX-License-Identifier: Apache-2.0
"""Frames with input points, and KITTI's submission file."""
