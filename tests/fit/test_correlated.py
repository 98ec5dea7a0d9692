# SPDX-License-Identifier: Apache-2.0
"""Spatially correlated errors against dense kriging, gpytorch, limits and theorems."""

from dataclasses import replace
from typing import NamedTuple

import gpytorch
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Laplace, MultivariateNormal

from deepbasis import fit
from deepbasis.fit import Kernel, correlated, neighbours
from deepbasis.fit import field as field_module
from deepbasis.fit.checks import FitPoints
from deepbasis.fit.kernel import condition
from problems import bayesian, conditioned
from refusals import refusals

SIZE = (12, 16)
KERNEL = Kernel(length=0.3, colour=0.4, nugget=0.05)
M = 4
ALPHA, BETA = 2.0, 5.0


class Problem(NamedTuple):
    """Points of one image, drawn from the model, and the bases and colours of all its pixels."""

    row: Tensor
    column: Tensor
    x: Tensor
    phi: Tensor
    z: Tensor
    weight: Tensor
    prior: fit.Prior
    bases: Tensor
    guide: Tensor


def correlation(kernel, one, other):
    """The kernel as it stands in books, on places that are not scaled."""
    factor = one.new_tensor([1, 1, *[kernel.colour] * (one.shape[1] - 2)]) / kernel.length
    apart = (one * factor)[:, None] - (other * factor)[None]
    distance = apart.square().sum(-1).sqrt()
    smooth = torch.exp(-distance)
    if kernel.smoothness == 1.5:
        smooth = (1 + 3**0.5 * distance) * torch.exp(-(3**0.5) * distance)
    return (1 - kernel.rough) * smooth + kernel.rough * torch.exp(-4 * distance)


def covariance(kernel, p):
    """Of the points, weights and errors together."""
    noise = correlation(kernel, p.x, p.x) + torch.diag(kernel.nugget / p.weight)
    return p.phi @ p.prior.cov @ p.phi.mT / ALPHA + noise / BETA


def problem(n, generator, kernel=KERNEL, size=SIZE, *, duplicates=False):
    height, width = size
    at = torch.randperm(height * width, generator=generator)[:n]
    if duplicates:
        at[1::2] = at[: n - n // 2][: len(at[1::2])]
    row, column = at // width, at % width
    coarse = torch.rand(1, 3, 4, 4, generator=generator, dtype=torch.float64)
    guide = F.interpolate(coarse, size, mode="bicubic")[0]
    drawn = bayesian(height * width, M, generator)
    x = correlated.locate(row.double(), column.double(), width, guide)
    p = Problem(row, column, x, drawn.phi[at], drawn.z[:n], drawn.weight[:n], drawn.prior,
                drawn.phi.mT[None], guide)  # fmt: skip
    root = torch.linalg.cholesky(covariance(kernel, p) + 1e-12 * torch.eye(n))
    z = p.phi @ p.prior.mean + root @ torch.randn(n, generator=generator, dtype=torch.float64)
    return p._replace(z=z)


def reader(bases, width):
    """Bases of the pixels of some rows."""
    return lambda start, stop: bases[:, :, width * start : width * stop].mT


def run(p, kernel=KERNEL, k=correlated.NEIGHBOURS, size=SIZE, bounded=False, **precisions):
    """The whole way: whitened points, their posterior, every pixel."""
    innovations = correlated.whiten(kernel, p.x[None], p.phi[None], p.z[None], p.weight[None], k=k)
    at = {"alpha": ALPHA, "beta": BETA} | precisions
    post = fit.posterior(innovations.phi, innovations.z, p.prior, innovations.weight, **at)
    field = correlated.Field.of(kernel, p.x, size, p.guide, p.weight, k=k)

    mean, model_var, ratio = correlated.predict(
        [field], post, p.phi[None], p.z[None], reader(p.bases, size[1]), bounded=bounded
    )
    return innovations, post, mean[0], model_var[0], ratio[0]


def places(p, size=SIZE):
    row, column = torch.meshgrid(*map(torch.arange, size), indexing="ij")
    return correlated.locate(row.flatten().double(), column.flatten().double(), size[1], p.guide)


def dense(p, kernel=KERNEL, size=SIZE):
    """Pixels given points, by conditioning one Gaussian of all of them: mean and variance."""
    phi, x = p.bases[0].mT, places(p, size)
    between = phi @ p.prior.cov @ p.phi.mT / ALPHA + correlation(kernel, x, p.x) / BETA
    gain = torch.linalg.solve(covariance(kernel, p), between.mT).mT
    mean = phi @ p.prior.mean + gain @ (p.z - p.phi @ p.prior.mean)
    prior_var = (phi @ p.prior.cov * phi).sum(-1) / ALPHA + (1 + kernel.nugget) / BETA
    return mean, prior_var - (gain * between).sum(-1)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 40])
@pytest.mark.parametrize(("smoothness", "rough"), [(0.5, 0.0), (1.5, 0.0), (1.5, 0.2)])
def test_with_all_points_as_neighbours_it_is_universal_kriging(generator, n, smoothness, rough):
    kernel = replace(KERNEL, smoothness=smoothness, rough=rough)
    p = problem(n, generator, kernel)
    innovations, post, mean, model_var, ratio = run(p, kernel, k=max(n, 1))
    want_mean, want_var = dense(p, kernel)
    torch.testing.assert_close(mean, want_mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(model_var + ratio / BETA, want_var, rtol=1e-7, atol=1e-8)
    if n:
        density = MultivariateNormal(p.phi @ p.prior.mean, covariance(kernel, p)).log_prob(p.z)
        have = post.log_evidence + innovations.log_jacobian
        torch.testing.assert_close(have, density[None], rtol=1e-8, atol=1e-8)


def test_two_measurements_of_one_pixel_are_two(generator):
    p = problem(30, generator, duplicates=True)
    assert len({*zip(p.row.tolist(), p.column.tolist(), strict=True)}) < 30
    _, _, mean, model_var, ratio = run(p, k=30)
    want_mean, want_var = dense(p)
    torch.testing.assert_close(mean, want_mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(model_var + ratio / BETA, want_var, rtol=1e-7, atol=1e-8)
    heavy = p._replace(weight=torch.full_like(p.weight, 1e9))
    for part in run(heavy)[2:]:
        assert part.isfinite().all()


@pytest.mark.parametrize(("smoothness", "rough"), [(0.5, 0.0), (1.5, 0.0), (0.5, 0.3), (1.5, 0.3)])
def test_kernel_agrees_with_gpytorch(generator, smoothness, rough):
    p = problem(20, generator)
    kernel = replace(KERNEL, smoothness=smoothness, rough=rough)
    matern = gpytorch.kernels.MaternKernel(nu=smoothness, ard_num_dims=5).double()
    lengths = [kernel.length] * 2 + [kernel.length / kernel.colour] * 3
    matern.lengthscale = torch.tensor(lengths, dtype=torch.float64)
    scaled = kernel.scale(p.x)
    exponential = gpytorch.kernels.MaternKernel(nu=0.5, ard_num_dims=5).double()
    exponential.lengthscale = matern.lengthscale.detach() / 4
    want = (1 - rough) * matern(p.x).to_dense() + rough * exponential(p.x).to_dense()
    want = want.detach()
    got = kernel.correlation(scaled, scaled)
    assert torch.equal(got.diagonal(), torch.ones_like(got[0]))
    # Gpytorch's squared distance is a difference of squares, so that 0 may come out as sqrt(eps).
    apart = ~torch.eye(len(got), dtype=torch.bool)
    torch.testing.assert_close(got[apart], want[apart], rtol=1e-10, atol=1e-12)
    trained = kernel.correlation(scaled.clone().requires_grad_(), scaled)
    torch.testing.assert_close(trained.detach(), got, rtol=1e-12, atol=1e-14)


def test_few_neighbours_come_close_to_all(generator):
    """In nats for each point, and in standard deviations for each pixel."""
    size = (24, 32)
    p = problem(300, generator, size=size)
    innovations, post, mean, model_var, ratio = run(p, size=size)
    density = MultivariateNormal(p.phi @ p.prior.mean, covariance(KERNEL, p)).log_prob(p.z)
    assert (post.log_evidence + innovations.log_jacobian - density).abs() / 300 < 0.02
    want_mean, want_var = dense(p, size=size)
    off = (mean - want_mean) / want_var.sqrt()
    assert off.square().mean().sqrt() < 0.15
    assert ((model_var + ratio / BETA) / want_var).log().abs().max() < 0.3


def test_without_length_errors_are_independent(generator):
    """What points and pixels share with nobody, 1 + nugget, is absorbed in beta."""
    p = problem(40, generator)
    p = p._replace(weight=torch.ones_like(p.weight))
    _, post, mean, model_var, ratio = run(p, replace(KERNEL, length=1e-6))
    alone = {"alpha": ALPHA, "beta": BETA / (1 + KERNEL.nugget)}
    want = fit.posterior(p.phi, p.z, p.prior, **alone)
    torch.testing.assert_close(post.mean[0], want.mean)
    torch.testing.assert_close(post.cov[0], want.cov)
    elsewhere = torch.ones(SIZE, dtype=torch.bool).index_put((p.row, p.column), torch.tensor(False))
    pixels = elsewhere.flatten()
    want_mean, want_model, want_noise = want.predict(p.bases[0].mT[pixels])
    torch.testing.assert_close(mean[pixels], want_mean)
    torch.testing.assert_close(model_var[pixels], want_model)
    torch.testing.assert_close(ratio[pixels] / BETA, want_noise)


def test_far_from_all_points_only_the_bases_predict(generator):
    size = (16, 96)
    p = problem(60, generator, size=size)
    near = p.column < 10
    p = p._replace(
        **{name: getattr(p, name)[near] for name in ("row", "column", "x", "phi", "z", "weight")}
    )
    kernel = replace(KERNEL, length=0.02)
    _, post, mean, model_var, ratio = run(p, kernel, size=size)
    want_mean, want_var, _ = post.predict(p.bases.mT)
    far = (torch.arange(16 * 96) % 96) > 70
    torch.testing.assert_close(mean[far], want_mean[0, far])
    torch.testing.assert_close(model_var[far], want_var[0, far])
    torch.testing.assert_close(ratio[far], torch.full_like(ratio[far], 1 + kernel.nugget))


def test_dropped_points_are_nobodys_neighbours(generator):
    """A batch is padded with them; what stands there does not matter."""
    p = problem(30, generator)
    gone = torch.arange(30) % 3 == 0
    marred = p._replace(
        phi=torch.where(gone[:, None], torch.nan, p.phi),
        z=torch.where(gone, torch.nan, p.z),
        weight=torch.where(gone, 0, p.weight),
    )
    names = ("row", "column", "x", "phi", "z", "weight")
    kept = p._replace(**{name: getattr(p, name)[~gone] for name in names})
    innovations, post, *pixels = run(marred)
    want_news, want_post, *want_pixels = run(kept)
    torch.testing.assert_close(innovations.z[0, ~gone], want_news.z[0])
    assert (innovations.weight[0] == (~gone).double()).all()
    torch.testing.assert_close(innovations.log_jacobian, want_news.log_jacobian)
    torch.testing.assert_close(post.mean, want_post.mean)
    for have, want in zip(pixels, want_pixels, strict=True):
        torch.testing.assert_close(have, want)


def test_a_batch_is_its_images(generator):
    ps = [problem(n, generator) for n in (20, 20, 20)]
    together = correlated.whiten(KERNEL, *(torch.stack([getattr(p, name) for p in ps])
                            for name in ("x", "phi", "z", "weight")))  # fmt: skip
    for i, p in enumerate(ps):
        alone = correlated.whiten(KERNEL, p.x, p.phi, p.z, p.weight)
        for have, want in zip(together, alone, strict=True):
            assert torch.equal(have[i], want)


def test_whitened_errors_are_white(generator):
    """Over many draws of the process, innovations have variance 1 / beta and no correlation."""
    p = problem(150, generator, size=(24, 32))
    noise = correlation(KERNEL, p.x, p.x) + torch.diag(KERNEL.nugget / p.weight)
    draws = torch.randn(4000, 150, dtype=torch.float64, generator=generator)
    z = draws @ torch.linalg.cholesky(noise).mT
    innovations = correlated.whiten(
        KERNEL, p.x, z.mT, p.z, p.weight
    )  # as bases: the same combination
    cov = torch.cov(innovations.phi)
    assert (cov.diagonal() - 1).abs().max() < 6 * (2 / 4000) ** 0.5
    rest = cov - torch.diag(cov.diagonal())
    assert rest.square().mean().sqrt() < 1.5 * (1 / 4000) ** 0.5
    assert torch.cov(z.mT).sub(torch.diag(torch.ones(150))).square().mean().sqrt() > 0.1


def test_the_order_of_the_points_does_not_matter(generator):
    p = problem(60, generator)
    turn = torch.randperm(60, generator=generator)
    names = ("row", "column", "x", "phi", "z", "weight")
    turned = p._replace(**{name: getattr(p, name)[turn] for name in names})
    for have, want in zip(run(turned)[2:], run(p)[2:], strict=True):
        torch.testing.assert_close(have, want)


def test_order_among_points_of_one_pixel_matters_little(generator):
    p = problem(60, generator, duplicates=True)
    names = ("row", "column", "x", "phi", "z", "weight")
    turned = p._replace(**{name: getattr(p, name).flip(0) for name in names})
    (_, _, mean, model_var, ratio), (_, _, *want) = run(turned), run(p)
    std = (model_var + ratio / BETA).sqrt()
    assert ((mean - want[0]).abs() < 0.25 * std).all()
    assert ((mean - want[0]).abs() < 0.02 * std).double().mean() > 0.7


def test_rows_do_not_depend_on_the_blocks(generator, monkeypatch):
    size = (37, 53)
    p = problem(80, generator, size=size)
    want = run(p, size=size)[2:]
    monkeypatch.setattr(correlated, "BLOCK_PIXELS", 1)
    monkeypatch.setattr(correlated, "BLOCK_POINTS", 7)
    for have, expected in zip(run(p, size=size)[2:], want, strict=True):
        torch.testing.assert_close(have, expected)
    field = correlated.Field.of(KERNEL, p.x, size, p.guide, p.weight)
    whole, part = conditioned(field, 0, field.down), conditioned(field, 1, 3)
    some = slice(field.across, 3 * field.across)
    for name in ("points", "noise", "b", "left"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[some])
    want = torch.arange(37 * 53)
    for blocks in (field.pixels_of(0, field.down), field.pixels_of(0, 2)):
        rows = field.in_reading_order(blocks[..., None])[: 37 * 53, 0]
        assert torch.equal(rows, want[: len(rows)])


def test_predictions_of_overlapping_blocks_are_blended(generator):
    """By plain loops: at each corner, blocks are brought to their mean, unless points leave little
    of the variance; then each pixel is the mean of its blocks' predictions, with weights that fall
    towards the border of their rings.
    """
    size = (21, 37)
    p = problem(60, generator, size=size)
    field = correlated.Field.of(KERNEL, p.x, size, p.guide, p.weight)
    side, ring, whole = field.side, field.ring, field.side + 2 * field.ring
    assert ring == 1
    _, post, mean, _, ratio = run(p, size=size)
    residual = F.pad(p.z - p.phi @ post.mean[0], (0, field.k))
    given = conditioned(field, 0, field.down)
    left = given.left.view(field.down, field.across, whole, whole).numpy()
    values = (given.b @ residual[field.near][..., None]).view(left.shape).numpy()
    expected = []
    for part in (values, left):
        at, shared = {}, {}
        for i, j, a, b in np.ndindex(field.down, field.across, 2, 2):
            window = np.s_[i, j, a * side : a * side + 2, b * side : b * side + 2]
            at[i, j, a, b] = part[window].mean()
            shared.setdefault((i + a, j + b), []).append(at[i, j, a, b])
        sums, weights = np.zeros(size), np.zeros(size)
        for i, j, y, x in np.ndindex(*part.shape):
            row, column = i * side + y - ring, j * side + x - ring
            if not (0 <= row < size[0] and 0 <= column < size[1]):
                continue
            down, right = (y - ring + 0.5) / side, (x - ring + 0.5) / side
            off = sum(
                (down if a else 1 - down) * (right if b else 1 - right)
                * (np.mean(shared[i + a, j + b]) - at[i, j, a, b])
                for a in (0, 1) for b in (0, 1)
            )  # fmt: skip
            falls = [min(1, (min(step, whole - 1 - step) + 0.5) / 2) for step in (y, x)]
            weights[row, column] += falls[0] * falls[1]
            value = part[i, j, y, x] + min(left[i, j, y, x] / 0.3, 1) * off
            sums[row, column] += falls[0] * falls[1] * value
        expected.append(torch.from_numpy(sums / weights).flatten())
    torch.testing.assert_close(mean, p.bases[0].mT @ post.mean[0] + expected[0])
    torch.testing.assert_close(ratio, expected[1].clamp(min=0) + KERNEL.nugget)


def test_a_mismatch_of_blocks_changes_nothing_at_a_point(generator):
    size = (40, 56)
    p = problem(50, generator, size=size)
    p = p._replace(weight=torch.full_like(p.weight, 1e9))  # no noise
    _, _, mean, _, ratio = run(p, size=size)
    at = p.row * size[1] + p.column
    torch.testing.assert_close(mean[at], p.z, rtol=0, atol=1e-4)
    torch.testing.assert_close(ratio[at], torch.full_like(p.z, KERNEL.nugget), rtol=0, atol=1e-4)


def test_neighbours_of_a_block_are_on_its_surface():
    """With a learned kernel, which has an amplitude: of points equally far from a block, those of
    similar features are taken; two of each quadrant are taken in any case.
    """
    size = (8, 64)
    guide = torch.zeros(1, *size).double()
    guide[:, :, 32:] = 1.0
    column = torch.arange(64).repeat(2).double()
    x = correlated.locate(torch.tensor([0.0, 7.0]).repeat_interleave(64), column, 64, guide)
    kernel = Kernel(length=0.2, colour=20.0, nugget=0.05)
    near = {}
    for learned in (False, True):
        amplitude = torch.ones(1, *size).double() if learned else None
        field = correlated.Field.of(kernel, x, size, guide, amplitude=amplitude)
        block = field.near[field.across // 2 - 1]
        near[learned] = (column[block.long()] < 32).sum()
    assert near[False] < near[True]


def test_sharing_neighbours_changes_little(generator, monkeypatch):
    size = (48, 64)
    p = problem(150, generator, size=size)
    _, _, mean, model_var, ratio = run(p, size=size)
    assert correlated.Field.of(KERNEL, p.x, size, p.guide, p.weight).side > 4
    monkeypatch.setattr(field_module, "choose_side", lambda *_: 1)
    _, _, want_mean, want_model, want_ratio = run(p, size=size)
    want_var = want_model + want_ratio / BETA
    assert ((mean - want_mean) / want_var.sqrt()).square().mean().sqrt() < 0.1
    assert ((model_var + ratio / BETA) / want_var).log().abs().mean() < 0.02


def test_a_measured_pixel_has_its_measurement_among_its_neighbours(monkeypatch):
    """Even in the corner of its block's ring, with twelve points beside it nearer to the centre."""
    monkeypatch.setattr(field_module, "choose_side", lambda *_: 8)
    beside = [(row, column) for row in (10, 11, 12, 13) for column in (6, 17)]
    beside += [(column, row) for row, column in beside]
    points = torch.tensor([(7, 7), *beside[:12]])
    x = correlated.locate(*points.double().unbind(1), 32)
    near = correlated.Field.of(KERNEL, x, (24, 32)).near.view(3, 4, 12)
    assert (near[1, 1] == 0).any()


def test_float32_comes_close_to_float64(generator):
    p = problem(100, generator, size=(24, 32))
    single = Problem(p.row, p.column, *(part.float() for part in p[2:6]),
                     fit.Prior(p.prior.mean.float(), p.prior.cov.float()),
                     p.bases.float(), p.guide.float())  # fmt: skip
    for have, want in zip(run(single, size=(24, 32))[2:], run(p, size=(24, 32))[2:], strict=True):
        assert have.dtype == torch.float32
        torch.testing.assert_close(have.double(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("smoothness", "rough"), [(0.5, 0.0), (1.5, 0.2)])
def test_blocks_in_float32_are_conditioned_as_in_float64(generator, smoothness, rough):
    """Also a pixel at the place of a point, and places far from the origin."""
    kernel = replace(KERNEL, smoothness=smoothness, rough=rough)
    near, at = (torch.rand(7, n, 5, generator=generator).double() + 3 for n in (6, 20))
    at[:, 4] = near[:, 2]
    noise = torch.full((7, 6), 0.05).double()
    want = condition(kernel, at, near, noise)
    have = condition(kernel, at.float(), near.float(), noise.float())
    for one, other in zip(have, want, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_points_are_whitened_side_by_side_as_one_by_one(generator, monkeypatch):
    p = problem(40, generator)
    one_by_one = correlated.whiten(KERNEL, p.x, p.phi, p.z, p.weight)
    monkeypatch.setattr(correlated, "FEW_POINTS", 1)
    for have, want in zip(
        correlated.whiten(KERNEL, p.x, p.phi, p.z, p.weight), one_by_one, strict=True
    ):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_others_are_searched_once_for_all_choices(generator, share):
    position = torch.rand(80, 2, generator=generator).double()
    used = torch.rand(80, generator=generator) >= share
    have, want = neighbours.Others(position, 6).of(used), neighbours.others(position, 6, used)
    assert torch.equal(have, want)


@pytest.mark.parametrize("smoothness", [0.5, 1.5])
def test_gradients_reach_kernel_and_places(generator, smoothness):
    """Of the prediction of single places from whitened points, as a kernel is learned."""
    p = problem(9, generator, size=(4, 5))
    kept, asked = slice(0, 6), slice(6, 9)
    near = neighbours.earlier(p.x[kept, :2], 3)
    near_asked = neighbours.Surroundings(p.x[kept, :2]).of(p.x[asked, :2], 3)

    def whole(x, phi, z, weight, length, nugget, rough):
        kernel = Kernel(length, length, nugget, smoothness, rough)
        points = FitPoints(phi[kept], z[kept], weight[kept])
        white = correlated.whiten_at(kernel, x[kept], points, near)
        mean, root = fit.posterior_moments(white.phi, white.z, p.prior, alpha=ALPHA, beta=BETA)
        weights = mean, root, torch.tensor(BETA, dtype=torch.float64)
        return correlated.predict_at(
            kernel, x[kept], points, near_asked, weights, (x[asked], phi[asked], weight[asked])
        )

    numbers = (torch.tensor(value).double() for value in (0.3, 0.05, 0.2))
    inputs = [t.clone().requires_grad_() for t in (p.x, p.phi, p.z, p.weight, *numbers)]
    assert torch.autograd.gradcheck(whole, inputs)


def test_differentiable_moments_are_those_of_the_posterior(generator):
    p = problem(9, generator)
    at = {"alpha": ALPHA, "beta": BETA}
    want = fit.posterior(p.phi, p.z, p.prior, p.weight, **at)
    mean, root = fit.posterior_moments(p.phi, p.z, p.prior, p.weight, **at)
    torch.testing.assert_close(mean, want.mean)
    torch.testing.assert_close(root @ root.mT, want.cov)


@pytest.mark.parametrize("smoothness", [0.5, 1.5])
def test_kernels_are_positive_definite_whatever_a_network_makes_of_an_image(generator, smoothness):
    """With embeddings and amplitudes over six orders of magnitude, and places that coincide."""
    x = torch.randn(60, 10, dtype=torch.float64, generator=generator)
    x = x * 10 ** (6 * torch.rand(60, 1, dtype=torch.float64, generator=generator) - 3)
    x[30:40] = x[:10]
    s = 10 ** (6 * torch.rand(60, dtype=torch.float64, generator=generator) - 3)
    kernel = Kernel(0.2, 0.2, 1e-4, smoothness)
    scaled = kernel.scale(x)
    cov = torch.outer(s, s) * kernel.correlation(scaled, scaled)
    lowest = torch.linalg.eigvalsh(cov / torch.outer(s, s))[0]
    assert lowest > -1e-12
    assert torch.equal(cov, cov.mT)


def test_neighbours_surround_a_place_between_scan_lines():
    """The twelve nearest points of a place near one of two lines all lie on that line."""
    column = torch.arange(40.0)
    lines = torch.cat([torch.stack([torch.full((40,), v), column], 1) for v in (10.0, 30.0)])
    at = torch.tensor([[13.0, 20.3]])
    tree = neighbours.make_tree(lines.double().numpy())
    plain = neighbours.query(tree, at.double().numpy(), 12, p=2)
    assert (lines[torch.from_numpy(plain[0]), 0] == 10).all()
    near = neighbours.Surroundings(lines).of(at, 12)[0]
    assert len(set(near.tolist())) == 12
    above, left = lines[near, 0] == 10, lines[near, 1] < 20.3
    for one in (above, ~above):
        for other in (left, ~left):
            assert (one & other).sum() >= 2
    nearest = (lines[near] - at).norm(dim=1).min()
    assert nearest == (lines - at).norm(dim=1).min()


def test_neighbours_by_quadrant_are_those_of_a_plain_search(generator):
    points = torch.rand(30, 2, generator=generator).double()
    at = torch.rand(20, 2, generator=generator).double()
    near = neighbours.Surroundings(points).of(at, 12)
    for place, found in zip(at, near, strict=True):
        off = points - place
        order = off.norm(dim=1).argsort().tolist()
        quadrant = {i: (bool(off[i, 0] > 0), bool(off[i, 1] > 0)) for i in order}
        want = []
        for q in set(quadrant.values()):
            want += [i for i in order if quadrant[i] == q][:2]
        want += [i for i in order if i not in want][: 12 - len(want)]
        assert set(found.tolist()) == set(want)


def test_gradients_reach_points_and_bases(generator):
    """Through the whitened maximum-likelihood fit, as in training."""
    size = (4, 5)
    p = problem(9, generator, size=size)
    field = correlated.Field.of(KERNEL, p.x, size, p.guide, p.weight, k=3)

    def whole(phi, z, bases):
        innovations = correlated.whiten(KERNEL, p.x[None], phi, z, p.weight[None], k=3)
        post = fit.ml(innovations.phi, innovations.z, innovations.weight)
        mean, model_var, ratio = correlated.predict([field], post, phi, z, reader(bases, 5))
        return mean, model_var, ratio / post.beta[:, None]

    inputs = [t.clone().requires_grad_() for t in (p.phi[None], p.z[None], p.bases)]
    assert torch.autograd.gradcheck(whole, inputs)


@st.composite
def cases(draw):
    """Anything from no point to a measured line or square, weights over eight orders, any size."""
    height, width = draw(st.integers(1, 20)), draw(st.integers(1, 24))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    n = draw(st.integers(0, 60))
    pattern = draw(st.sampled_from(["any", "line", "square"]))
    row = torch.randint(height, (n,), generator=g)
    column = torch.randint(width, (n,), generator=g)
    row = row if pattern == "any" else row % (1 if pattern == "line" else 5)
    column = column % 5 if pattern == "square" else column
    kernel = Kernel(
        length=10 ** draw(st.floats(-3, 2)),
        colour=draw(st.sampled_from([0.0, 0.2, 10.0])),
        nugget=10 ** draw(st.floats(-4, 1)),
        smoothness=draw(st.sampled_from([0.5, 1.5])),
    )
    weight = 10 ** (8 * torch.rand(n, generator=g) - 4)
    weight = torch.where(torch.rand(n, generator=g) < 0.2, 0, weight)
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    guide = torch.rand(3, height, width, generator=g, dtype=dtype).round()
    bases = torch.randn(1, M, height * width, generator=g, dtype=dtype)
    z = torch.randn(n, generator=g, dtype=dtype)
    phi = bases[0].mT[row * width + column]
    prior = fit.Prior(torch.zeros(M, dtype=dtype), torch.eye(M, dtype=dtype))
    x = correlated.locate(row.double(), column.double(), width, guide)
    p = Problem(row, column, x, phi, z, weight.to(dtype), prior, bases, guide)
    return p, kernel, (height, width), draw(st.sampled_from([1, 3, 12]))


@given(cases())
def test_never_nan_and_a_measured_pixel_is_known(case):
    p, kernel, size, k = case
    innovations, _, mean, model_var, ratio = run(p, kernel, k, size)
    for part in (*innovations, mean, model_var, ratio):
        assert part.isfinite().all()
        assert part.dtype == p.z.dtype
    assert (model_var >= 0).all()
    eps = torch.finfo(p.z.dtype).eps
    assert (ratio >= kernel.nugget * (1 - eps)).all()
    assert (ratio <= (1 + kernel.nugget) * (1 + eps)).all()
    pixel = p.row * size[1] + p.column
    many = torch.bincount(pixel[p.weight > 0], minlength=1).max() > k
    if not many:  # more measurements of one pixel than neighbours
        noise = kernel.noise(p.weight)
        bound = kernel.nugget + noise / (1 + noise)
        used = p.weight > 0
        # Rounding of correlations, as much as the least noise lets it grow.
        assert (ratio[pixel] <= bound + 1e4 * eps)[used].all()


def test_blending_leaves_no_more_variance_than_the_own_measurement_of_a_pixel(generator):
    """Even a weak measurement, of which blocks with other neighbours know nothing."""
    size = (24, 48)
    p = problem(20, generator, size=size)
    p = p._replace(weight=10 ** (2 * torch.rand(20, generator=generator).double() - 2))
    kernel = replace(KERNEL, length=0.05, nugget=0.5)
    field = correlated.Field.of(kernel, p.x, size, p.guide, p.weight, k=8)
    assert field.ring
    ratio = run(p, kernel, 8, size)[-1]
    noise = kernel.noise(p.weight)
    assert (ratio[p.row * size[1] + p.column] <= kernel.nugget + noise / (1 + noise) + 1e-5).all()


@pytest.mark.slow
@given(cases())
def test_fits_of_any_points_are_finite(case):
    p, kernel, _, k = case
    innovations = correlated.whiten(kernel, p.x, p.phi, p.z, p.weight, k=k)
    post = fit.evidence(innovations.phi, innovations.z, p.prior, innovations.weight, huber=1.345)
    lowered = innovations.lower(kernel, p.weight, post.weight)
    assert post.mean.isfinite().all()
    assert lowered.isfinite().all()
    assert (lowered <= p.weight * (1 + 1e-5)).all()
    assert ((lowered == 0) == (p.weight == 0)).all()


def test_huber_keeps_an_outlier_from_its_surroundings(generator):
    p = problem(120, generator, replace(KERNEL, length=1.0), size=(24, 32))
    p = p._replace(weight=torch.ones_like(p.weight))
    marred = p._replace(z=p.z.clone())
    marred.z[60] += 20
    kernel = replace(KERNEL, length=1.0)

    def pixel(q, huber):
        innovations = correlated.whiten(kernel, q.x[None], q.phi[None], q.z[None])
        post = fit.evidence(innovations.phi, innovations.z, q.prior, huber=huber)
        weight = innovations.lower(kernel, q.weight[None], post.weight)
        field = correlated.Field.of(kernel, q.x, (24, 32), q.guide, weight[0])
        parts = post, q.phi[None], q.z[None], reader(q.bases, 32)
        mean = correlated.predict([field], *parts)[0]
        return mean.view(24, 32)[q.row[60], q.column[60]]

    plain = abs(pixel(marred, None) - pixel(p, None))
    robust = abs(pixel(marred, 1.345) - pixel(p, 1.345))
    assert plain > 10
    assert robust < 0.1 * plain


def test_neighbours_come_earlier_and_are_the_nearest(generator):
    position = torch.rand(500, 2, dtype=torch.float64, generator=generator)
    order = neighbours.coarse_to_fine(position)
    assert torch.equal(order.sort()[0], torch.arange(500))
    rank = torch.empty(500, dtype=torch.long)
    rank[order] = torch.arange(500)
    near = neighbours.earlier(position, 12)
    there = near < 500
    assert (rank[near.clamp(max=499)] < rank[:, None])[there].all()
    assert (near[~there] == (500 + torch.arange(12)).expand(500, 12)[~there]).all()
    assert torch.equal(there.sum(1)[order][:13], torch.arange(13))
    distance = torch.cdist(position, position)
    distance[rank[None] >= rank[:, None]] = torch.inf
    want = distance.topk(12, largest=False)[1]
    found = (near[:, :, None] == want[:, None]).any(1)[order][12:]
    assert found.double().mean() > 0.9


def test_the_first_points_are_spread_over_all(generator):
    """Largest gap around 32 of 1000 points: less than that of 32 random ones."""
    position = torch.rand(1000, 2, dtype=torch.float64, generator=generator)
    first = position[neighbours.coarse_to_fine(position)[:32]]
    gap = torch.cdist(position, first).min(1)[0].max()
    random = torch.cdist(position, position[:32]).min(1)[0].max()
    assert gap < random


@pytest.mark.slow
def test_learning_finds_the_kernel_that_made_the_points(generator):
    truth = Kernel(length=0.2, colour=0.3, nugget=0.1)
    problems = [problem(n, generator, truth, size=(36, 48)) for n in (150, 300, 300, 300)]
    frames = [fit.FramePoints(p.x, p.phi, p.z, p.weight) for p in problems]
    prior = problems[0].prior
    found = fit.learn_kernel(frames, prior, Kernel(0.5, 0.1, 0.02))
    for name in ("length", "colour", "nugget"):
        assert abs(np.log(getattr(found, name) / getattr(truth, name))) < np.log(2.5), name

    def score(kernel):
        return sum(fit.log_likelihood(kernel, f, prior) / len(f.z) for f in frames)

    assert score(found) > max(score(truth), score(Kernel(0.5, 0.1, 0.02))) - 1e-3


def test_single_places_are_predicted_as_whole_images_are(generator):
    """Against the image in blocks, and, with all points as neighbours, against dense kriging."""
    p = problem(20, generator)
    innovations, _, mean, model_var, ratio = run(p, k=20)
    near = neighbours.Surroundings(p.x[:, :2]).of(places(p)[:, :2], 20)
    alone = fit.posterior(
        innovations.phi[0], innovations.z[0], p.prior, innovations.weight[0], alpha=ALPHA, beta=BETA
    )
    points, bases = FitPoints(p.phi, p.z, p.weight), p.bases[0].mT
    found = correlated.predict_at(
        KERNEL, p.x, points, near, (alone.mean, alone.root, alone.beta),
        (places(p), bases, torch.ones_like(bases[:, 0])), bounded=False,
    )  # fmt: skip
    want = mean, model_var + ratio / BETA
    for have, whole, exact in zip(found, want, dense(p), strict=True):
        torch.testing.assert_close(have, whole, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(have, exact, rtol=1e-6, atol=1e-8)


def test_corrections_stay_within_the_residuals_of_the_neighbours(generator, monkeypatch):
    """Between two surfaces a smooth kernel overshoots; a line through the means is what is left."""
    monkeypatch.setattr(field_module, "choose_side", lambda *_: 2)  # blocks are not blended
    kernel = Kernel(length=0.5, colour=0.0, nugget=1e-3, smoothness=1.5)
    p = problem(40, generator, kernel)
    near_far = torch.where(torch.rand(40, generator=generator) < 0.5, -1.0, 1.0).double()
    p = p._replace(z=near_far, weight=torch.ones_like(p.weight))
    _, post, linear, *variances = run(p, kernel)
    _, _, bounded, *same = run(p, kernel, bounded=True)
    bases = p.bases[0].mT @ post.mean[0]
    residual = torch.cat([p.z - p.phi @ post.mean[0], torch.zeros(correlated.NEIGHBOURS).double()])

    def bounds(amplitude):
        field = correlated.Field.of(kernel, p.x, SIZE, p.guide, p.weight, amplitude)
        near = field.near[:, None].expand(-1, field.side**2, -1)
        near = field.in_reading_order(near)[: len(bases)].long()
        around = [residual[row].tolist() for row in near]
        low, high = ([f([*row, 0.0]) for row in around] for f in (min, max))
        return field, torch.tensor(low).double(), torch.tensor(high).double()

    _, low, high = bounds(None)
    torch.testing.assert_close(bounded, bases + (linear - bases).clamp(low, high))
    assert (bounded - linear).abs().max() > 0.1
    for have, before in zip(same, variances, strict=True):
        assert torch.equal(have, before)
    amplitude = 0.5 + torch.rand(1, *SIZE, generator=generator).double()
    s, (scaled, low, high) = amplitude.flatten(), bounds(amplitude)
    parts = post, p.phi[None], p.z[None], reader(p.bases, SIZE[1])
    free = correlated.predict([scaled], *parts, bounded=False)[0][0]
    kept = correlated.predict([scaled], *parts)[0][0]
    torch.testing.assert_close(kept, bases + (free - bases).clamp(s * low, s * high))


def split(p, points):
    """The first of a problem's points are measured, the others asked for."""
    parts = [part[:points] for part in (p.x, p.phi, p.z, p.weight)]
    return fit.FramePoints(*parts, fit.FramePoints(p.x[points:], p.phi[points:], p.z[points:]))


@pytest.mark.slow
def test_learning_from_pixels_finds_what_predicts_them(generator):
    truth = Kernel(length=0.2, colour=0.3, nugget=0.1)
    problems = [problem(600, generator, truth, size=(36, 48)) for _ in range(4)]
    problems = [p._replace(weight=torch.ones_like(p.weight)) for p in problems]
    frames, prior = [split(p, 300) for p in problems], problems[0].prior
    start = Kernel(1.0, 0.05, 0.02)
    found, loss = fit.search_kernel(frames, prior, start)
    assert found == fit.learn_kernel(frames, prior, start)
    for name in ("length", "nugget"):
        assert abs(np.log(getattr(found, name) / getattr(truth, name))) < np.log(3), name
    for other in (start, replace(found, length=found.length / 4), replace(found, nugget=3.0)):
        assert fit.search_kernel(frames, prior, other, evaluations=1)[1] > loss


def test_the_loss_is_the_best_laplace_likelihood(generator):
    """Against torch's Laplace at a grid of factors, the same for two frames, around the mean and
    variance of `run`.
    """
    factors = torch.logspace(-3, 3, 20001, dtype=torch.float64)[:, None]
    frames, likelihood, prior = [], 0.0, problem(40, generator).prior
    for _ in range(2):
        p = problem(40, generator)
        p = p._replace(weight=torch.ones_like(p.weight), prior=prior)
        frame = split(p, 20)
        innovations = correlated.whiten(KERNEL, *frame[:4], k=20)
        post = fit.evidence(innovations.phi, innovations.z, p.prior)
        q = Problem(p.row[:20], p.column[:20], *frame[:4], p.prior, p.bases, p.guide)
        precisions = {"alpha": post.alpha[None], "beta": post.beta[None]}
        _, _, mean, model_var, ratio = run(q, k=20, bounded=True, **precisions)
        at = p.row[20:] * SIZE[1] + p.column[20:]
        b = ((model_var + ratio / post.beta)[at] / 2).sqrt()
        likelihood = likelihood + Laplace(mean[at], factors * b).log_prob(p.z[20:]).mean(-1) / 2
        frames.append(frame)
    _, loss = fit.search_kernel(frames, p.prior, KERNEL, k=20, evaluations=1)
    assert loss == pytest.approx(-float(likelihood.max()), abs=1e-4)


def test_likelihood_is_the_density_of_the_points(generator):
    p = problem(25, generator)
    frame = fit.FramePoints(p.x, p.phi, p.z, p.weight)
    post = fit.evidence(*correlated.whiten(KERNEL, p.x, p.phi, p.z, p.weight, k=25)[:2], p.prior)
    mean, cov = p.phi @ p.prior.mean, p.phi @ p.prior.cov @ p.phi.mT / post.alpha
    noise = correlation(KERNEL, p.x, p.x) + torch.diag(KERNEL.nugget / p.weight)
    want = MultivariateNormal(mean, cov + noise / post.beta).log_prob(p.z)
    have = fit.log_likelihood(KERNEL, frame, p.prior, k=25)
    assert have == pytest.approx(want.item(), rel=1e-8)


def test_without_features_colour_is_not_learned(generator):
    p = problem(60, generator)
    found = fit.learn_kernel(
        [fit.FramePoints(p.x[:, :2], p.phi, p.z)], p.prior, KERNEL, evaluations=20
    )
    assert found.colour == KERNEL.colour
    with pytest.raises(ValueError, match="no frame has a point"):
        fit.learn_kernel([], p.prior)


REFUSED = {
    "fit.Kernel(length=0.0)": "`length` and `nugget` must be positive",
    "fit.Kernel(nugget=0.0)": "`length` and `nugget` must be positive",
    "fit.Kernel(colour=-1.0)": "`colour` not negative",
    "fit.Kernel(length=nan)": "`length` and `nugget` must be positive",
    "fit.Kernel(smoothness=2.5)": "`smoothness` is 2.5; choose 0.5 or 1.5",
    "whiten(fit.Kernel(), ones(3, 1), ones(3, 2), ones(3))": "`x` is [3, 1] for [3] points",
    "whiten(fit.Kernel(), ones(4, 2), ones(3, 2), ones(3))": "`x` is [4, 2] for [3] points",
    "whiten(fit.Kernel(), ones(3, 2), ones(3, 2), ones(3), -ones(3))": "`weight` is negative",
    "whiten(fit.Kernel(), ones(3, 2), ones(3, 2), ones(3), k=0)": "`k` is 0",
}  # fmt: skip


@pytest.fixture(scope="module")
def said():
    return refusals("from deepbasis.fit.correlated import whiten", REFUSED)


@pytest.mark.parametrize("case", REFUSED)
def test_says_what_was_wrong(said, case):
    assert REFUSED[case] in said[case]
