# SPDX-License-Identifier: Apache-2.0
"""Bases at several scales, sparse depth, and layers with a prior, for the tests of the layer."""

import torch

from deepbasis import BasisFit
from deepbasis.points import Points
from problems import bayesian

CHANNELS = (2, 3, 4)


def make_scales(generator, size=(24, 32), strides=(8, 2, 1), batch=1, dtype=torch.float64):
    return [
        torch.randn(batch, c, -(-size[0] // s), -(-size[1] // s), generator=generator, dtype=dtype)
        for c, s in zip(CHANNELS, strides, strict=True)
    ]


def make_sparse(generator, counts, size=(24, 32), dtype=torch.float64):
    """Depths of 1 to 5 m at random pixels, as many as asked for in each image."""
    sparse = torch.zeros(len(counts), size[0] * size[1], dtype=dtype)
    for depth, count in zip(sparse, counts, strict=True):
        at = torch.randperm(len(depth), generator=generator)[:count]
        depth[at] = 1 + 4 * torch.rand(count, generator=generator, dtype=dtype)
    return sparse.view(len(counts), 1, *size)


def make_layer(generator, **options):
    """A layer with some prior of its own."""
    layer = BasisFit(sum(CHANNELS), **options).double().eval()
    layer.set_prior(bayesian(1, sum(CHANNELS) + 1, generator).prior)
    return layer


def observe(layer, bases, sparse, guide=None):
    """The points of sparse depth maps with their bases."""
    size = (sparse.shape[2], sparse.shape[3])
    return layer.observe(bases, Points.from_maps(sparse), size, guide)
