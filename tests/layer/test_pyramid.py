# SPDX-License-Identifier: Apache-2.0
"""Bases read at points and at pixels, against the full-size basis and torch's grid_sample."""

import pytest
import torch
import torch.nn.functional as F

import reference
from deepbasis.layer import pyramid
from deepbasis.layer.pyramid import Pyramid, project, project_in_blocks
from layer.scenes import CHANNELS, make_scales

SIZES = [((23, 37), (16, 4, 1)), ((24, 32), (8, 2, 1)), ((7, 5), (4, 2, 2))]


def places(generator, size, count=50, batch=2):
    """Rows and columns anywhere in the image, also in the outer half of the border's pixels."""
    v, u = (
        torch.rand(batch, count, generator=generator, dtype=torch.float64) * n - 0.5 for n in size
    )
    return v, u


def sample(full, v, u):
    """Torch's own bilinear interpolation of full-size bases."""
    height, width = full.shape[2:]
    grid = torch.stack([(2 * u + 1) / width - 1, (2 * v + 1) / height - 1], -1)[:, None]
    found = F.grid_sample(full, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return found[:, :, 0].mT


def test_a_point_reads_the_bases_of_its_pixel_to_the_bit(generator):
    scales = make_scales(generator, (23, 37), (16, 4, 1), dtype=torch.float32)
    read = Pyramid(scales, (23, 37))
    row, column = (torch.randint(n, (1, 50), generator=generator) for n in (23, 37))
    full = read.rows(0, 23).unflatten(-1, (23, 37))
    want = full[0][:, row[0], column[0]]
    assert torch.equal(read.at(row.float(), column.float())[0].mT, want)
    # Other points of the batch, between pixels, change nothing.
    beside = torch.tensor([[3.3, 7.0, 8.25]])
    mixed = read.at(torch.cat([row, beside], 1), torch.cat([column, beside.flip(1)], 1))
    assert torch.equal(mixed[0].mT[:, :50], want)


@pytest.mark.parametrize(("size", "strides"), SIZES)
def test_between_pixels_it_is_grid_sample_of_the_full_basis(generator, size, strides):
    scales = make_scales(generator, size, strides, batch=2)
    full = reference.full_basis(scales, size)
    v, u = places(generator, size)
    have, want = Pyramid(scales, size).at(v, u), sample(full, v, u)
    torch.testing.assert_close(have, want, rtol=1e-9, atol=1e-9)
    nearest = full[0][:, v[0].round().long().clamp(0), u[0].round().long().clamp(0)].mT
    assert (have[0] - nearest)[:, 1:].abs().mean() > 0.1


def test_a_basis_linear_in_rows_and_columns_is_read_exactly(generator):
    """And half way between two pixels it is the mean of the two."""
    size = (12, 16)
    row, column = torch.meshgrid(*(torch.arange(n).double() for n in size), indexing="ij")
    read = Pyramid([(2 * row - 3 * column + 1)[None, None]], size)
    v, u = (torch.rand(1, 40, generator=generator).double() * (n - 1) for n in size)
    have = read.at(v, u)
    assert torch.equal(have[..., 0], torch.ones(1, 40).double())
    torch.testing.assert_close(have[..., 1], 2 * v - 3 * u + 1)
    noisy = torch.randn(1, 1, *size, generator=generator).double()
    between = Pyramid([noisy], size).at(torch.tensor([[4.0, 4.5]]), torch.tensor([[7.5, 7.0]]))
    want = noisy[0, 0, [4, 4], [7, 7]] + noisy[0, 0, [4, 5], [8, 7]]
    torch.testing.assert_close(between[0, :, 1], want / 2)


def test_rows_and_columns_are_treated_alike(generator):
    """Transposed bases at transposed places."""
    scales = make_scales(generator, (24, 32), (8, 2, 1), batch=2)
    v, u = places(generator, (24, 32))
    have = Pyramid([scale.mT for scale in scales], (32, 24)).at(u, v)
    torch.testing.assert_close(have, Pyramid(scales, (24, 32)).at(v, u), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("size", "strides"), SIZES)
def test_rows_and_sums_are_those_of_the_full_basis(generator, size, strides):
    scales = make_scales(generator, size, strides, batch=2)
    full, read = reference.full_basis(scales, size), Pyramid(scales, size)
    torch.testing.assert_close(read.rows(2, 6), full[:, :, 2:6].flatten(2))
    weights = torch.randn(2, sum(CHANNELS) + 1, generator=generator).double()
    torch.testing.assert_close(read.combine(weights), torch.einsum("bmhw,bm->bhw", full, weights))


@pytest.mark.parametrize("block", [1, 100, 10**9])
def test_projection_in_blocks_is_projection_at_once(generator, monkeypatch, block):
    monkeypatch.setattr(pyramid, "BLOCK_PIXELS", block)
    scales = make_scales(generator, (23, 37), (16, 4, 1), batch=2)
    read = Pyramid(scales, (23, 37))
    onto = torch.randn(2, 5, sum(CHANNELS) + 1, generator=generator).double()
    product = onto @ reference.full_basis(scales, (23, 37)).flatten(2)
    want = product[:, 0], product[:, 1:].square().sum(1)
    for found in (project(read, onto), project_in_blocks(read, onto)):
        for have, expected in zip(found, want, strict=True):
            torch.testing.assert_close(have, expected)


def test_gradients_reach_bases_read_between_pixels(generator):
    scales = [s.requires_grad_() for s in make_scales(generator, (4, 5), (4, 2, 1))]
    v, u = places(generator, (4, 5), count=6, batch=1)
    assert torch.autograd.gradcheck(lambda *s: Pyramid(s, (4, 5)).at(v, u), scales)
