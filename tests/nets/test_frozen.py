# SPDX-License-Identifier: Apache-2.0
"""Bases from a depth network that is not trained."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA

from deepbasis import BasisFit, FrozenBases
from deepbasis.data.worlds import Worlds

COUNT, LEARNED = 16, 10


@pytest.fixture(scope="module")
def rooms():
    frames = Worlds("rooms", COUNT, size=(48, 64))
    samples = [frames[index] for index in range(COUNT)]
    return [  # what lies beyond the sensor's reach counts as its end
        (one.image[None].float() / 255, torch.where(one.mask, one.depth, 10.0)[None])
        for one in samples
    ]


class Monocular:
    """Knows the depth of an image but for what no image tells: scale, shift, power."""

    def __init__(self, kind: str, features: int = 24) -> None:
        self.kind = kind
        self.draw = torch.Generator().manual_seed(0)
        self.mix = torch.randn(features, 6, generator=self.draw)

    def __call__(self, image, depth):
        scale, change = torch.rand(2, generator=self.draw).tolist()
        seen = {
            "power": lambda d: 5 * scale * d ** (0.7 + 0.6 * change),
            "shifted depth": lambda d: 5 * scale * (d + 0.5 * change),
            "shifted disparity": lambda d: 1 / (5 * scale * (1 / d + 0.1 * change)),
        }[self.kind](depth)
        row, column = torch.meshgrid(
            torch.linspace(-1, 1, 48), torch.linspace(-1, 1, 64), indexing="ij"
        )
        simple = torch.cat([image, torch.stack([row, column, row * column])[None]], 1)
        return seen, torch.einsum("kc,bchw->bkhw", self.mix, F.avg_pool2d(simple, 4)).tanh()


def sparse_of(depth, count, seed=0):
    where = torch.randperm(depth.numel(), generator=torch.Generator().manual_seed(seed))[:count]
    found = torch.zeros_like(depth)
    found.view(-1)[where] = depth.view(-1)[where]
    return found


def relative_error(layer, frames, count):
    errors = [
        ((layer(bases, sparse_of(depth, count)).mean.exp() - depth).abs() / depth).mean()
        for bases, depth in frames
    ]
    return float(torch.stack(errors).mean())


def learned(frames, channels):
    """One pass without a gradient: the prior."""
    layer = BasisFit(channels)
    layer.collect_weights()
    with torch.no_grad():
        for bases, depth in frames:
            layer(bases, depth)
    layer.learn_prior()
    return layer.eval()


@pytest.mark.parametrize("kind", ["power", "shifted depth", "shifted disparity"])
def test_three_points_do_what_a_hundred_cannot_without_the_recipe(rooms, kind):
    network = Monocular(kind)
    seen = [(*network(image, depth), depth) for image, depth in rooms]
    frozen = FrozenBases(24, 6)
    frozen.learn(features for _, features, _ in seen[:LEARNED])
    ours = [(frozen(relative, features), depth) for relative, features, depth in seen]
    layer = learned(ours[:LEARNED], frozen.channels)
    features_alone = [(bases[1:], depth) for bases, depth in ours]
    without = learned(features_alone[:LEARNED], 6)
    unseen = slice(LEARNED, None)
    with_three = relative_error(layer, ours[unseen], 3)
    assert with_three < 0.05
    assert with_three < 0.5 * relative_error(without, features_alone[unseen], 100)
    no_prior = BasisFit(frozen.channels).eval()
    assert with_three < 0.5 * relative_error(no_prior, ours[unseen], 3)


def test_a_power_and_a_scale_are_undone_exactly(rooms):
    """Then ln depth is linear in ln d: two points, one constant and one slope."""
    for _, depth in rooms[:3]:
        bases = FrozenBases()(7.0 * depth**1.3)
        mean = BasisFit(3).train()(bases, depth).mean
        torch.testing.assert_close(mean, depth.log(), rtol=1e-3, atol=1e-3)


def test_the_unit_of_the_network_does_not_matter(rooms):
    frozen = FrozenBases()
    one, other = (frozen(scale * rooms[0][1])[0] for scale in (1.0, 255.0))
    torch.testing.assert_close(one, other)


def test_components_are_those_of_scikit_learn():
    draw = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 5, 8, 9, generator=draw) * torch.arange(1, 6)[:, None, None] + 4
    frozen = FrozenBases(5, 3)
    frozen.learn([maps[:1], maps[1:]])  # in parts
    _, found = frozen(torch.ones(3, 1, 8, 9), maps)
    rows = maps.movedim(1, -1).reshape(-1, 5).numpy()
    want = PCA(3, whiten=True).fit_transform(rows)
    got = found.movedim(1, -1).reshape(-1, 3).numpy()
    signs = np.sign((got * want).sum(0))
    np.testing.assert_allclose(got * signs, want, atol=0.01)
    np.testing.assert_allclose(np.cov(got.T), np.eye(3), atol=0.01)


def test_it_travels_in_a_state_dict():
    frozen, copy = FrozenBases(4, 2), FrozenBases(4, 2)
    frozen.learn([torch.rand(1, 4, 6, 6)])
    copy.load_state_dict(frozen.state_dict())
    depth, features = torch.rand(1, 1, 6, 6) + 1, torch.rand(1, 4, 6, 6)
    assert all(map(torch.equal, copy(depth, features), frozen(depth, features)))
    assert not list(frozen.parameters())


def test_what_it_cannot_use_is_told_in_a_sentence():
    depth, features = torch.ones(1, 1, 6, 6), torch.rand(1, 4, 6, 6)
    with pytest.raises(ValueError, match="call `learn` first"):
        FrozenBases(4)(depth, features)
    frozen = FrozenBases(4, 2)
    with pytest.raises(ValueError, match="0 pixels are too few for 2 components"):
        frozen.learn([])
    frozen.learn([features])
    with pytest.raises(ValueError, match="need a feature map of 4 channels"):
        frozen(depth)
    with pytest.raises(ValueError, match=r"expected \[batch, 4, height, width\]"):
        frozen(depth, features[:, :3])
    with pytest.raises(ValueError, match="median is not above 0"):
        frozen(-depth, features)
