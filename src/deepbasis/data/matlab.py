# SPDX-License-Identifier: Apache-2.0
"""Numeric arrays of MATLAB 5 files, such as the official split of NYU Depth V2.

A file is a header of 128 bytes and a list of elements, each a type, a size and its bytes, padded to
8. A matrix is an element whose parts are elements: flags, dimensions, name, and the numbers, column
by column, in any numeric type. Elements may be compressed. (MathWorks, *MAT-File Format*.)

`scipy.io.loadmat` reads these files, too, but a damaged one can end the process.
"""

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

HEADER, PAD = 128, 8
MATRIX, COMPRESSED = 14, 15
# By type: int8, uint8, int16, uint16, int32, uint32, single, double, int64, uint64.
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8",
           13: "u8"}  # fmt: skip
# Classes of matrices that hold real numbers: double to uint64.
NUMERIC = range(6, 16)
COMPLEX = 0x0800
# Bytes that a compressed element may have.
LARGEST = 1 << 24


def read_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The real numeric matrices of a file, by name.

    Args:
        content: of the file.

    Returns:
        Arrays with the dimensions of the matrices.

    Raises:
        ValueError: if the file is not a MATLAB 5 file, or is damaged.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[HEADER - 2 : HEADER])
    if order is None:
        raise ValueError("it has no header of a MATLAB 5 file")
    found = {}
    try:
        for kind, data in _elements(content[HEADER:], order):
            if kind == COMPRESSED:
                ((kind, data),) = _elements(_decompress(data), order)
            if kind == MATRIX and (named := _matrix(data, order)) is not None:
                found[named[0]] = named[1]
    except (struct.error, zlib.error) as error:
        raise ValueError(f"it is damaged: {error}") from error
    return found


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of each element."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, place)
        start, room = place + PAD, len(data) - place - PAD
        if kind >> 16:  # at most 4 bytes, which follow in place of the size
            kind, size, start, room = kind & 0xFFFF, kind >> 16, place + PAD // 2, PAD // 2
        if size > room:
            raise ValueError(f"an element of {size} bytes is cut off")
        yield kind, data[start : start + size]
        padding = 0 if kind == COMPRESSED else -(start + size) % PAD
        place = max(start + size + padding, place + PAD)


def _decompress(data: bytes) -> bytes:
    packed = zlib.decompressobj()
    found = packed.decompress(data, LARGEST)
    if packed.unconsumed_tail:
        raise ValueError(f"a compressed element has more than {LARGEST} bytes")
    return found


def _matrix(data: bytes, order: str) -> tuple[str, np.ndarray] | None:
    """Name and numbers of a matrix, if these are real."""
    parts = list(_elements(data, order))
    if len(parts) < 4 or len(parts[0][1]) < 4 or len(parts[1][1]) % 4:
        raise ValueError("a matrix lacks flags, dimensions, name or numbers")
    (flags,) = struct.unpack_from(f"{order}I", parts[0][1])
    kind, numbers = parts[3]
    if flags & 0xFF not in NUMERIC or flags & COMPLEX or kind not in NUMBERS:
        return None
    shape = np.frombuffer(parts[1][1], f"{order}i4").tolist()
    item = np.dtype(f"{order}{NUMBERS[kind]}")
    if min(shape, default=-1) < 0 or math.prod(shape) * item.itemsize != len(numbers):
        raise ValueError(f"a matrix of dimensions {shape} has {len(numbers)} bytes of numbers")
    name = parts[2][1].decode("latin1")
    return name, np.frombuffer(numbers, item).reshape(shape, order="F")
