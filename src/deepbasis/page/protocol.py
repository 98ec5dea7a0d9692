# SPDX-License-Identifier: Apache-2.0
"""Messages between page and server: a header in JSON, then raw bytes.

4 bytes   length of the header, little endian
header    JSON; `arrays` lists name, dtype and shape of what follows
padding   up to a multiple of 8 bytes, so that arrays are aligned
bytes     the arrays one after the other, each padded likewise; of the page's messages, a file
"""

import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np

from deepbasis.arguments import to_number

ALIGNMENT = 8


class Request(NamedTuple):
    """What the page asks for."""

    header: dict[str, Any]
    content: bytes
    """A file, if one is sent."""

    @property
    def action(self) -> str:
        """What is to be done."""
        return self.text("do")

    def text(self, name: str) -> str:
        """A text that must be there."""
        value = self.header.get(name)
        if not isinstance(value, str):
            raise ValueError(f"the request has no text {name!r}")
        return value

    def number(self, name: str) -> float:
        """A finite number that must be there."""
        wrong = f"the request has no number {name!r}"
        try:
            value = to_number(self.header.get(name), "", "")
        except ValueError:
            raise ValueError(wrong) from None
        if not math.isfinite(value):
            raise ValueError(wrong)
        return value

    def rows(self, name: str, columns: tuple[int, ...]) -> np.ndarray:
        """A table of finite numbers, possibly empty."""
        try:
            values = np.array(self.header.get(name), np.float64)
        except (ValueError, TypeError, OverflowError):
            values = np.zeros(1)
        if values.size == 0 and self.header.get(name) == []:
            return np.zeros((0, columns[0]))
        if values.ndim != 2 or values.shape[1] not in columns or not np.isfinite(values).all():
            raise ValueError(f"the request has no table {name!r} of numbers")
        return values


def pack(header: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> bytes:
    """A message to the page."""
    arrays = arrays or {}
    listed = [[name, a.dtype.str[1:], list(a.shape)] for name, a in arrays.items()]
    text = json.dumps(header | {"arrays": listed}, allow_nan=False).encode()
    parts = [struct.pack("<I", len(text)), text, _padding(4 + len(text))]
    for array in arrays.values():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        parts += [little.tobytes(), _padding(little.nbytes)]
    return b"".join(parts)


def unpack(message: bytes) -> Request:
    """Parse a message of the page; invalid ones are refused."""
    try:
        (length,) = struct.unpack_from("<I", message)
        start = 4 + length + len(_padding(4 + length))
        if 4 + length > len(message):
            raise ValueError("it is too short")
        header = json.loads(message[4 : 4 + length])
    except (struct.error, ValueError, RecursionError) as error:
        raise ValueError(f"this is not a message of the page ({str(error)[:80]})") from None
    if not isinstance(header, dict):
        raise ValueError("this is not a message of the page (its header is not an object)")
    return Request(header, bytes(message[start:]))


def _padding(size: int) -> bytes:
    return b"\0" * (-size % ALIGNMENT)
