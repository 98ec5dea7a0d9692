# SPDX-License-Identifier: Apache-2.0
"""From files, or from nothing, to samples."""
