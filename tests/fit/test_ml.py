# SPDX-License-Identifier: Apache-2.0
"""fit.ml against problems built from their answer, numpy, and its own derivatives."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from deepbasis import fit
from problems import bayesian, least_squares


@pytest.mark.parametrize("cond", [1e0, 1e3])
@pytest.mark.parametrize(("n", "m"), [(5, 1), (63, 63), (100, 63), (500, 20)])
def test_finds_the_weights_that_the_problem_was_built_from(generator, n, m, cond):
    p = least_squares(n, m, generator, cond=cond, batch=(2,))
    post = fit.ml(p.phi, p.z)
    torch.testing.assert_close(post.mean, p.w, rtol=1e-6, atol=1e-6)
    if n > m:
        torch.testing.assert_close(1 / post.beta, p.squares / n, rtol=1e-6, atol=0)


@pytest.mark.parametrize("cond", [1e0, 1e3, 1e6])
def test_float32_is_as_good_as_its_condition_allows(generator, cond):
    # What is left over multiplies the square of the condition, so it must be small to allow this.
    p = least_squares(200, 20, generator, cond=cond, rest=0.3 / cond)
    post = fit.ml(p.phi.float(), p.z.float())
    assert post.mean.dtype == torch.float32
    error = (post.mean.double() - p.w).norm() / p.w.norm()
    assert error < 10 * torch.finfo(torch.float32).eps * cond


def test_agrees_with_numpy_on_weighted_points(generator):
    p = bayesian(120, 7, generator)
    root = p.weight.sqrt()
    want, squares, *_ = np.linalg.lstsq(p.phi * root[:, None], p.z * root, rcond=None)
    post = fit.ml(p.phi, p.z, p.weight)
    np.testing.assert_allclose(post.mean, want, rtol=1e-9)
    np.testing.assert_allclose(1 / post.beta, squares[0] / 120, rtol=1e-9)
    normal = p.phi.mT @ (p.weight[:, None] * p.phi)
    np.testing.assert_allclose(post.beta * post.cov @ normal, np.eye(7), atol=1e-9)


def test_evidence_is_the_limit_of_an_ever_wider_prior(generator):
    """Flat prior p(w) = 1: the wide Gaussian's evidence divided by its density at the weights."""
    p = bayesian(60, 4, generator)
    post = fit.ml(p.phi, p.z, p.weight)
    wide = 1e5
    cov = wide * p.phi @ p.phi.mT + torch.diag(1 / (post.beta * p.weight))
    marginal = stats.multivariate_normal(np.zeros(60), cov).logpdf(p.z)
    assert post.log_evidence.item() == pytest.approx(
        marginal + 4 / 2 * math.log(2 * math.pi * wide), abs=1e-3
    )


def test_padding_changes_nothing_and_may_hold_anything(generator):
    p = bayesian(80, 6, generator, batch=(3,))
    weight = p.weight.clone()
    weight[0, 40:] = 0
    phi, z = p.phi.clone(), p.z.clone()
    phi[0, 40:], z[0, 40:] = torch.nan, torch.inf
    padded, cut = fit.ml(phi, z, weight), fit.ml(phi[0, :40], z[0, :40], weight[0, :40])
    for name in ("mean", "root", "beta", "log_evidence"):
        torch.testing.assert_close(getattr(padded, name)[0], getattr(cut, name), rtol=1e-9, atol=0)


def test_gradcheck_through_every_differentiable_result(generator):
    p = bayesian(12, 3, generator, batch=(2,))

    def results(phi, z, weight):
        post = fit.ml(phi, z, weight)
        return post.mean, post.root, post.beta, post.log_evidence, *post.predict(phi)

    inputs = [t.clone().requires_grad_() for t in (p.phi, p.z, p.weight)]
    assert torch.autograd.gradcheck(results, inputs)
    assert torch.autograd.gradgradcheck(lambda *args: fit.ml(*args).mean, inputs)


def test_gradient_is_not_zero_and_ignores_padding(generator):
    p = bayesian(30, 3, generator)
    phi = p.phi.clone().requires_grad_()
    weight = p.weight.clone()
    weight[20:] = 0
    fit.ml(phi, p.z, weight).mean.sum().backward()
    assert phi.grad[:20].abs().min() > 0
    assert (phi.grad[20:] == 0).all()


def test_collinear_bases_get_a_jitter_on_their_own_image_only(generator):
    p = bayesian(50, 4, generator, batch=(2,))
    phi = p.phi.clone()
    phi[1, :, 3] = phi[1, :, 2]
    with pytest.warns(fit.JitterWarning, match=r"batch items \[1\] of 2"):
        post = fit.ml(phi, p.z)
    torch.testing.assert_close(post.mean[0], fit.ml(phi[0], p.z[0]).mean)
    together = post.mean[1, 2] + post.mean[1, 3]
    alone = fit.ml(phi[1, :, :3], p.z[1]).mean[2]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=0)


def test_too_few_points_names_the_image(generator):
    p = bayesian(10, 6, generator, batch=(3,))
    weight = torch.ones_like(p.z)
    weight[2, 5:] = 0
    with pytest.raises(ValueError, match=r"bases, 6, but batch items \[2\] of 3 has 5"):
        fit.ml(p.phi, p.z, weight)
