# SPDX-License-Identifier: Apache-2.0
"""Numbers and arrays as users pass them; what cannot be read as one is refused in one sentence."""

import os
import reprlib
import warnings

import numpy as np
import torch
from torch import Tensor

from deepbasis.shapes import Float


def to_number(value: object, name: str, wanted: str) -> float:
    """A real number, possibly infinite or NaN: of Python, numpy, or a tensor of no dimension.

    Args:
        value: as passed.
        name: of the argument, as the beginning of a sentence.
        wanted: what is to be passed instead.
    """
    scalar = value.item() if isinstance(value, Tensor) and not value.ndim else value
    if isinstance(scalar, int | float | np.integer | np.floating) and not isinstance(scalar, bool):
        try:
            return float(scalar)
        except OverflowError:
            pass
    raise ValueError(f"{name} is {show(value)}; pass {wanted}")


def to_count(value: object, name: str, wanted: str) -> int:
    """A whole number that 63 bits hold."""
    number = to_number(value, name, wanted)
    if not (abs(number) < 2**63 and number == int(number)):
        raise ValueError(f"{name} is {show(value)}; pass {wanted}")
    return int(value) if isinstance(value, int) else int(number)


def to_bool(value: object, name: str) -> bool:
    """True or False, of Python or numpy."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} is {show(value)}; pass True or False")


def to_numbers(values: object, name: str, *readers: str) -> Float[np.ndarray, "..."]:
    """Real numbers in float64; masked elements become NaN.

    Args:
        values: an array, a tensor or nested lists.
        name: what they are, for the error message.
        readers: functions of `deepbasis.data` that read such numbers from a file.

    Returns:
        The array.

    Raises:
        ValueError: if they are a path, or not real numbers.
    """
    if isinstance(values, str | os.PathLike):
        names = " or ".join(f"`deepbasis.data.{reader}`" for reader in readers)
        raise ValueError(
            f"{name}: numbers are needed, not the path {os.fspath(values)!r}"
            + (f"; read the file with {names}" if names else "")
        )
    if isinstance(values, Tensor):
        values = values.detach().cpu().to(torch.float64).numpy()
    mask = np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None
    array = to_array(values, name)
    if not array.size:
        return np.zeros(array.shape)
    if array.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} hold {array.dtype} values, a {type(values).__name__}; expected real numbers"
        )
    numbers = array.astype(np.float64)
    return numbers if mask is None else np.where(mask, np.nan, numbers)


def to_array(values: object, name: str) -> np.ndarray:
    """An array of anything, as numpy makes it of lists, arrays and tensors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lists of tensors, or of masked numbers
            return np.asarray(values)
    except Exception as error:  # rows of different lengths, types that numpy does not know
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{name} cannot be read as an array of numbers ({reason})") from error


def show(value: object) -> str:
    """A value for a message, cut if it is long."""
    try:
        return " ".join(reprlib.repr(value).split())
    except Exception:  # whatever an object of others does
        return f"a {type(value).__name__}"
