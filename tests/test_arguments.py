# SPDX-License-Identifier: Apache-2.0
"""Arguments of any type end in a number or in one sentence."""

import math

import numpy as np
import pytest
import torch

from deepbasis.arguments import to_count, to_number
from refusals import refusals

NUMBERS = [2, 2.0, np.float32(2), np.int64(2), torch.tensor(2.0)]
ODD = ["'2'", "None", "True", "[]", "{}", "1j", "10**400", "torch.ones(2)", "object()", "b'2'"]
CALLS = [
    "out.sample({})", "out.sample(1, {})", "out.next_points({})", "out.interval({})",
    "out.probability_closer({})", "out.size(mask, camera, level={})",
    "model.complete(image, huber={})", "model.complete(image, max_depth={})",
    "list(model.stream([image], max_depth={}))", "fit.evidence(*bases, huber={})",
]  # fmt: skip
SETUP = """
import numpy as np
from deepbasis import Points, load
if "model" not in globals():
    image = np.zeros((24, 32, 3), np.uint8)
    model = load(lambda image: 1 + image[:, :1], prediction="depth")
    out = model.complete(image, [[1, 2, 3.0]])
    mask, camera = np.ones((24, 32), bool), [[40, 0, 16], [0, 40, 12], [0, 0, 1]]
    bases = torch.ones(1, 2, 1), torch.ones(1, 2), fit.Prior(torch.zeros(1), torch.eye(1))
"""
ARRAYS = {
    "model.prepare(image, np.ones(3))": "intrinsics are [3]",
    "model.prepare(image, {})": "hold object values, a dict",
    "model.prepare(image, np.zeros((0, 3)))": "intrinsics are [0, 3]",
    "list(model.stream([image], intrinsics=[[1j] * 3] * 3))": "hold complex128 values",
    "out.distance([1, 2], {}, camera)": "hold object values",
    "out.size(np.full((24, 32), np.nan), camera)": "pass booleans",
    "out.size('mask', camera)": "pass booleans",
    "out.size(np.ma.masked_array(mask, mask), camera)": "pass booleans",
    "out.probability_closer(2.0, [[1], [2, 3]])": "cannot be read as an array of numbers",
    "out.sample(10**7)": "draw at most 651041 maps of this size at a time",
    "Points.from_rows(np.ones(4))": "rows of points are [4]",
    "model.complete(image, [[torch.ones(3).bfloat16()]])": "cannot be read as an array",
    "model.prepare(image).complete([None, [[1, 2], [3]]])": "cannot be read as an array",
    "load(lambda image: torch.ones(1, 1, 0, 0), prediction='depth')": "depth of [1, 1, 0, 0]",
}


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: type(value).__name__)
def test_numbers_of_any_library(value):
    assert to_number(value, "`x`", "a number") == 2.0
    assert to_count(value, "`n`", "a whole number") == 2
    assert math.isnan(to_number(math.nan, "`x`", "a number"))
    assert to_count(2**62 + 1, "`n`", "a whole number") == 2**62 + 1


def test_what_is_odd_is_refused_in_one_sentence():
    numbers = [
        call.format(odd)
        for call in CALLS
        for odd in ODD
        if odd != "None" or not ("huber" in call or "max_depth" in call)
    ]
    said = refusals(SETUP, [*numbers, *ARRAYS])
    assert {*numbers, *ARRAYS} - said.keys() == set()
    for case in numbers:
        assert "; pass " in said[case], (case, said[case])
        assert len(said[case]) < 200
    for case, part in ARRAYS.items():
        assert part in said[case], (case, said[case])
    assert not any("\n" in text for text in said.values())
