# SPDX-License-Identifier: Apache-2.0
"""The command `deepbasis complete`: files in, files out."""
