# SPDX-License-Identifier: Apache-2.0
"""Predictions that reuse the blocks of the previous one, against those that compute everything."""

import pickle
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch

from deepbasis import fit
from deepbasis.fit import Kernel, correlated, memory
from deepbasis.fit.field import Field
from deepbasis.fit.memory import Memory

SIZE, M = (40, 56), 4
KERNEL = Kernel(length=0.3, colour=0.4, nugget=0.05, smoothness=1.5, rough=0.1)


class Image:
    """An image with bases, an embedding and an amplitude, and possible points in it."""

    def __init__(self, generator, dtype=torch.float64):
        height, width = SIZE
        draw = {"generator": generator, "dtype": dtype}
        self.at = torch.randperm(height * width, generator=generator)
        self.z = torch.randn(height * width, **draw)
        self.phi = torch.randn(height * width, M, **draw)
        self.amplitude = 0.5 + torch.rand(1, *SIZE, **draw)
        self.guide = torch.rand(3, *SIZE, **draw)
        self.weight = 0.5 + torch.rand(height * width, **draw)

    def predict(self, some, memory=None, kernel=KERNEL, **changed):
        """The prediction from some of the points."""
        at, width = self.at[some], SIZE[1]
        weight, z = (changed.get(name, getattr(self, name))[some] for name in ("weight", "z"))
        row, column = (at // width).to(z), (at % width).to(z)
        x = correlated.locate(row, column, width, self.guide)
        s = self.amplitude.flatten()[at]
        phi, z, weight = self.phi[at] / s[:, None], z / s, weight * s.square()
        white = correlated.whiten(kernel, x[None], phi[None], z[None], weight[None])
        prior = fit.Prior(torch.zeros(M).to(z), torch.eye(M).to(z))
        post = fit.posterior(white.phi, white.z, prior, white.weight, alpha=2.0, beta=5.0)
        field = correlated.Field.of(kernel, x, SIZE, self.guide, weight, self.amplitude)

        def bases(start, stop):
            return self.phi[None, start * width : stop * width]

        return correlated.predict([field], post, phi[None], z[None], bases, memory=memory)


@pytest.fixture
def image(generator):
    return Image(generator)


@pytest.fixture
def computed(monkeypatch):
    """How many blocks were computed, call by call."""
    counts, compute = [], memory._condition

    def count(field, rows, which, near, *rest):
        counts.append(len(near))
        return compute(field, rows, which, near, *rest)

    monkeypatch.setattr(memory, "_condition", count)
    return counts


def assert_same(have, want):
    for one, other in zip(have, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("many", [0.0, memory.MANY, 2.0])
def test_points_added_moved_and_removed_in_any_order_give_what_they_give_alone(
    image, generator, monkeypatch, many
):
    monkeypatch.setattr(memory, "MANY", many)
    used, kept = list(range(60)), Memory()
    for step in range(20):
        i = int(torch.randint(len(used), (1,), generator=generator))
        if step % 3 == 0:
            used.insert(i, 60 + step)
        elif step % 3 == 1:
            used[i] = 60 + step
        else:
            used.pop(i)
        assert_same(image.predict(used, kept), image.predict(used))


def test_only_blocks_with_other_neighbours_are_computed(image, computed, monkeypatch):
    monkeypatch.setattr(memory, "MANY", 2.0)
    kept, blocks = Memory(), 5 * 7
    image.predict(range(60), kept)
    assert sum(computed) == blocks
    computed.clear()
    changed = image.predict(range(60), kept, z=-image.z)  # other depths at the same places
    assert not computed
    assert_same(changed, image.predict(range(60), z=-image.z))
    computed.clear()
    image.predict(range(61), kept)
    assert 0 < sum(computed) < blocks


def test_other_noise_is_another_point(image):
    kept, weight = Memory(), image.weight.clone()
    image.predict(range(30), kept)
    weight[7] /= 10
    found = image.predict(range(30), kept, weight=weight)
    assert_same(found, image.predict(range(30), weight=weight))
    assert (found[1] - image.predict(range(30))[1]).abs().max() > 1e-3


@pytest.mark.parametrize("other", [0, 1, 5, 400])
def test_other_kernels_and_numbers_of_points_are_kept_apart(image, other):
    """Few points have fewer neighbours, and many have smaller blocks."""
    kept, kernel = Memory(), replace(KERNEL, length=0.2)
    for some in (range(60), range(other), range(60)):
        assert_same(image.predict(some, kept), image.predict(some))
        assert_same(image.predict(some, kept, kernel), image.predict(some, kernel=kernel))


def test_places_of_pixels_are_computed_once(image, monkeypatch):
    calls = []

    def count(name, compute):
        return lambda field: calls.append(name) or compute(field)

    for name in memory.OF_PIXELS:
        known = getattr(Field, name)
        monkeypatch.setattr(known, "func", count(name, known.func))
    kept = Memory()
    for n in (60, 61, 62):
        image.predict(range(n), kept)
    assert sorted(calls) == sorted(memory.OF_PIXELS)


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)]
)
def test_other_modes_of_torch_are_kept_apart(mode, monkeypatch, generator):
    """Their tensors cannot be changed outside, or have another type."""
    monkeypatch.setattr(memory, "MANY", 2.0)
    image, kept = Image(generator, torch.float32), Memory()
    for within, n in ((True, 60), (False, 59), (True, 58), (False, 57)):
        with mode() if within else nullcontext():
            found = image.predict(range(n), kept)
        if not within:
            assert_same(found, image.predict(range(n)))


def test_while_it_is_in_use_and_for_large_images_everything_is_computed(
    image, computed, monkeypatch
):
    kept, want = Memory(), image.predict(range(60))
    image.predict(range(60), kept)
    computed.clear()
    with kept._lock:
        assert_same(image.predict(range(60), kept), want)
    assert sum(computed) == 35
    monkeypatch.setattr(memory, "MOST_PIXELS", 40 * 56 - 1)
    computed.clear()
    assert_same(image.predict(range(60), kept), want)
    assert sum(computed) == 35


def test_an_interrupted_prediction_leaves_nothing_behind(image, monkeypatch):
    kept = Memory()
    image.predict(range(60), kept)

    def interrupt(self, which, other):
        self.points.index_copy_(0, which, other.points)
        self.noise.index_copy_(0, which, other.noise)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(memory.Conditioned, "replace", interrupt)
        patch.setattr(memory, "MANY", 2.0)
        with pytest.raises(KeyboardInterrupt):
            image.predict(range(58), kept)
    assert_same(image.predict(range(58), kept), image.predict(range(58)))


def test_a_copy_is_empty(image, computed):
    kept = Memory()
    image.predict(range(60), kept)
    computed.clear()
    image.predict(range(60), pickle.loads(pickle.dumps(kept)))
    assert sum(computed) == 35
