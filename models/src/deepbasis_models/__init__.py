# SPDX-License-Identifier: Apache-2.0
"""The pretrained models `indoor` and `outdoor` of deepbasis, which have terms of their own."""

__version__ = "0.2.0"
