# SPDX-License-Identifier: Apache-2.0
"""Models for other runtimes: the network and the fit as graphs of ONNX."""
