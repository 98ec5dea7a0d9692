# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# What onnxscript compiles is not typed like Python.
"""`spd_inverse` as a loop of ONNX: the sweep operator, once for each row.

After all sweeps the matrix is minus its inverse (Goodnight, The American Statistician 33, 1979).
This module needs onnxscript.
"""

from onnxscript import DOUBLE, script
from onnxscript import opset18 as op
from onnxscript.values import Opset


@script(Opset("deepbasis", 1), op)
def spd_inverse_loop(a: DOUBLE) -> DOUBLE:
    """Inverse of symmetric positive definite matrices."""
    n = op.Squeeze(op.Shape(a, start=-1))
    index = op.Range(op.Constant(value_int=0), n, op.Constant(value_int=1))
    result = op.Identity(a)
    for i in range(n):
        row = op.Gather(result, i, axis=-1)
        pivot = op.Unsqueeze(op.Gather(row, i, axis=-1), op.Constant(value_ints=[-1]))
        here = op.Equal(index, i)
        scaled = row / pivot
        along = op.Unsqueeze(scaled, op.Constant(value_ints=[-2]))
        down = op.Unsqueeze(scaled, op.Constant(value_ints=[-1]))
        swept = result - op.Unsqueeze(row, op.Constant(value_ints=[-1])) * along
        is_row = op.Unsqueeze(here, op.Constant(value_ints=[-1]))
        swept = op.Where(is_row, along, swept)
        swept = op.Where(here, down, swept)
        own = op.Unsqueeze(-op.Reciprocal(pivot), op.Constant(value_ints=[-1]))
        result = op.Where(op.And(is_row, here), own, swept)
    return -result
