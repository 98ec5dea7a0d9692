# SPDX-License-Identifier: Apache-2.0
"""The paper's tables and figures, and our claims about them, each made by one command."""
