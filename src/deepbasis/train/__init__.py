# SPDX-License-Identifier: Apache-2.0
"""Training: one written-out loop that runs on one process or many and never loses work."""
