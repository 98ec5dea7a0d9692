# SPDX-License-Identifier: Apache-2.0
"""The commands, one module each. Heavy imports stand inside `run`, so that `--help` is quick."""
