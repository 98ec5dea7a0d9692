# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out predictions, against fits that were really made without it."""

import pytest
import torch

from deepbasis import fit
from deepbasis.fit import correlated
from deepbasis.fit.checks import FitPoints
from deepbasis.fit.neighbours import others
from deepbasis.fit.outliers import leave_one_out, leave_one_out_correlated

M, N, ALPHA, BETA = 4, 9, 1.7, 30.0


@pytest.fixture
def problem(generator):
    phi = torch.randn(N, M, generator=generator).double()
    z = phi @ torch.randn(M, generator=generator).double()
    z = z + 0.2 * torch.randn(N, generator=generator).double()
    weight = 0.2 + torch.rand(N, generator=generator).double()
    prior = fit.Prior(torch.full((M,), 0.3).double(), 0.5 * torch.eye(M).double())
    return phi, z, weight, prior


def test_independent_errors_as_if_refitted_without_the_point(problem):
    phi, z, weight, prior = problem
    post = fit.posterior(phi, z, prior, weight, alpha=ALPHA, beta=BETA)
    error, model_var = leave_one_out(post, phi, z, 1 / weight)
    torch.testing.assert_close(error, post.loo_residual)
    for i in range(N):
        kept = weight * (torch.arange(N) != i)
        without = fit.posterior(phi, z, prior, kept, alpha=ALPHA, beta=BETA)
        mean, var, _ = without.predict(phi[i : i + 1])
        assert float(error[i]) == pytest.approx(float(z[i] - mean), rel=1e-8)
        assert float(model_var[i]) == pytest.approx(float(var), rel=1e-8)


def test_correlated_errors_as_in_a_dense_gaussian_process(problem, generator):
    """With all others as neighbours nothing is approximated: C^-1 r / diag(C^-1)."""
    phi, z, weight, prior = problem
    kernel = fit.Kernel(length=0.3, nugget=0.1)
    x = torch.rand(N, 2, generator=generator).double()
    innovations = correlated.whiten(kernel, x, phi, z, weight, k=N)
    post = fit.posterior(innovations.phi[None], innovations.z[None], prior, alpha=ALPHA, beta=BETA)
    error, model_var, ratio = leave_one_out_correlated(kernel, post, x, phi, z, weight, k=N)
    scaled = kernel.scale(x)
    noise = kernel.correlation(scaled, scaled) + kernel.noise(weight).diag()
    precision = torch.linalg.inv(noise / BETA + phi @ prior.cov @ phi.mT / ALPHA)
    diagonal = precision.diagonal()
    torch.testing.assert_close(error, precision @ (z - phi @ prior.mean) / diagonal)
    torch.testing.assert_close(model_var + ratio / BETA, 1 / diagonal)


@pytest.mark.parametrize("correlate", [False, True])
def test_points_that_were_not_used_are_predicted_as_new_ones(problem, generator, correlate):
    phi, z, weight, prior = problem
    used, x = torch.arange(N) % 3 > 0, torch.rand(N, 2, generator=generator).double()
    kernel = fit.Kernel(length=0.3 if correlate else 1e-6, nugget=0.1)
    kept = torch.where(used, weight, 0)
    white = correlated.whiten(kernel, x, phi, z, kept, k=N)
    post = fit.posterior(white.phi[None], white.z[None], prior, white.weight[None], beta=BETA)
    found = leave_one_out_correlated(kernel, post, x, phi, z, weight, used, k=N)
    want = leave_one_out_correlated(kernel, post, x[used], phi[used], z[used], weight[used], k=N)
    for some, all_points in zip(want, found, strict=True):
        torch.testing.assert_close(all_points[used], some)
    points = FitPoints(phi[used], z[used], weight[used])
    near = torch.arange(int(used.sum())).expand(N - int(used.sum()), -1)
    weights = post.mean[0], post.root[0], post.beta[0]
    at = x[~used], phi[~used], weight[~used]
    mean, var = correlated.predict_at(kernel, x[used], points, near, weights, at)
    torch.testing.assert_close(z[~used] - mean, found[0][~used])
    torch.testing.assert_close(var, (found[1] + found[2] / BETA)[~used])


def test_others_are_the_nearest_and_never_the_point_itself():
    place = torch.tensor([[0.0, 0], [0, 1], [0, 3], [0, 7]]).double()
    assert others(place, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    assert others(place[:2], 3).tolist() == [[1, 3, 4], [0, 3, 4]]  # 2 + slot where there is none
    assert others(place[:1], 2).tolist() == [[1, 2]]
    used = torch.tensor([True, False, True, True])
    assert others(place, 2, used).tolist() == [[2, 3], [0, 2], [0, 3], [2, 0]]
    assert others(place, 2, used & (place[:, 1] < 3)).tolist() == [[4, 5], [0, 5], [0, 5], [0, 5]]
