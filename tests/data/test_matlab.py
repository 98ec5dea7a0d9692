# SPDX-License-Identifier: Apache-2.0
"""Arrays of MATLAB 5 files, against SciPy's writer and reader."""

import io
import random
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from deepbasis.data import matlab
from deepbasis.data.matlab import read_arrays

ARRAYS = {
    "trainNdxs": np.arange(1, 796, dtype=np.uint16)[:, None],
    "small": np.array([[7.5]]),
    "byte": np.array([[1, 2, 3]], np.int8),
    "cube": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "empty": np.zeros((0, 3)),
    "long_name_of_an_array": np.array([[2**40, -1]], np.int64),
}


def write(arrays, **options):
    file = io.BytesIO()
    savemat(file, arrays, **options)
    return file.getvalue()


@pytest.mark.parametrize("do_compression", [False, True])
def test_numbers_are_those_that_were_written(do_compression):
    content = write(ARRAYS, do_compression=do_compression)
    found, theirs = read_arrays(content), loadmat(io.BytesIO(content))
    assert set(found) == set(ARRAYS)
    for name, values in ARRAYS.items():
        assert found[name].dtype.kind == values.dtype.kind
        np.testing.assert_array_equal(found[name], values)
        np.testing.assert_array_equal(found[name], theirs[name])


def test_what_is_not_real_numbers_is_left_out():
    content = write(
        {"text": "abc", "complex": np.array([1j]), "cell": np.array([1, "a"], object), "n": 3}
    )
    assert set(read_arrays(content)) == {"n"}


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0 MAT-file", bytes(200)])
def test_other_files_are_refused(content):
    with pytest.raises(ValueError, match="no header"):
        read_arrays(content)


def test_a_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(matlab, "LARGEST", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        read_arrays(write({"zeros": np.zeros((100, 100))}, do_compression=True))


@pytest.mark.parametrize("do_compression", [False, True])
def test_damaged_files_are_refused_or_read(do_compression):
    content, rng = write(ARRAYS, do_compression=do_compression), random.Random(0)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(128, len(damaged))] = rng.randrange(256)
        cut = bytes(damaged[: rng.choice([len(damaged), rng.randrange(128, len(damaged))])])
        try:
            read_arrays(cut)
        except ValueError:
            refused += 1
    assert refused > 500


def test_a_big_endian_file():
    """Written by hand: two numbers, with the short form for the name."""
    numbers = np.array([3.0, 4.0], ">f8").tobytes()
    parts = (
        b"\0\0\0\6\0\0\0\10" + b"\0\0\0\6\0\0\0\0"
        + b"\0\0\0\5\0\0\0\10" + b"\0\0\0\1\0\0\0\2"
        + b"\0\1\0\1ab\0\0"[:4] + b"a\0\0\0"
        + b"\0\0\0\11\0\0\0\20" + numbers
    )  # fmt: skip
    header = b" " * 124 + b"\1\0MI"
    matrix = b"\0\0\0\16" + len(parts).to_bytes(4, "big") + parts
    packed = zlib.compress(matrix)
    whole = b"\0\0\0\17" + len(packed).to_bytes(4, "big") + packed
    for content in (header + matrix, header + whole):
        assert read_arrays(content)["a"].tolist() == [[3.0, 4.0]]
