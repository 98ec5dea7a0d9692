# SPDX-License-Identifier: Apache-2.0
"""fit.evidence and fit.posterior against other libraries, other forms and theorems."""

import gpytorch
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import BayesianRidge

import reference
from deepbasis import fit
from problems import bayesian

# Points to bases: none, one, two, fewer, equal, more, many.
COUNTS = [0, 1, 2, 5, 8, 20, 300]
M = 8
TO_CONVERGENCE = {"steps": 3000, "tol": 1e-12}


@pytest.mark.parametrize("n", COUNTS)
def test_posterior_agrees_with_the_formula_and_with_inverses(generator, n):
    p = bayesian(n, M, generator)
    post = fit.posterior(p.phi, p.z, p.prior, p.weight, alpha=2.0, beta=50.0)
    mean, cov = reference.posterior(p.phi, p.z, p.prior, p.weight, 2.0, 50.0)
    torch.testing.assert_close(post.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(post.cov, cov, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", COUNTS)
def test_evidence_agrees_with_the_density_of_the_points(generator, n):
    """M x M form here, N x N form in scipy."""
    p = bayesian(n, M, generator)
    post = fit.posterior(p.phi, p.z, p.prior, p.weight, alpha=2.0, beta=50.0)
    cov = p.phi @ p.prior.cov @ p.phi.mT / 2 + torch.diag(1 / (50 * p.weight))
    mean = p.phi @ p.prior.mean
    want = stats.multivariate_normal(mean, cov).logpdf(p.z) if n else 0.0
    assert post.log_evidence.item() == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_evidence_agrees_with_gpytorch(generator):
    p = bayesian(60, M, generator)
    alpha, beta = 2.0, 50.0

    class Linear(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(p.phi, p.z, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.LinearKernel()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Linear(likelihood).double()
    likelihood.noise, model.covar_module.variance = 1 / beta, 1 / alpha
    model.train()
    with gpytorch.settings.fast_computations(False, False, False), torch.no_grad():
        want = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(p.phi), p.z) * 60
    prior = fit.Prior(torch.zeros(M, dtype=torch.float64), torch.eye(M, dtype=torch.float64))
    post = fit.posterior(p.phi, p.z, prior, alpha=alpha, beta=beta)
    torch.testing.assert_close(post.log_evidence, want, rtol=1e-6, atol=0.0)


def test_converged_em_agrees_with_scikit_learn(generator):
    """Its letters are swapped: `alpha_` is the noise precision, `lambda_` the prior's."""
    p = bayesian(200, M, generator)
    flat = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0}
    ridge = BayesianRidge(max_iter=10_000, tol=1e-14, fit_intercept=False, **flat)
    ridge.fit(p.phi.numpy(), p.z.numpy())
    prior = fit.Prior(torch.zeros(M, dtype=torch.float64), torch.eye(M, dtype=torch.float64))
    post = fit.evidence(p.phi, p.z, prior, **TO_CONVERGENCE)
    assert post.converged
    assert post.alpha.item() == pytest.approx(ridge.lambda_, rel=1e-6)
    assert post.beta.item() == pytest.approx(ridge.alpha_, rel=1e-6)
    np.testing.assert_allclose(post.mean, ridge.coef_, rtol=1e-6)
    mean, model_var, noise_var = post.predict(p.phi)
    want_mean, want_std = ridge.predict(p.phi.numpy(), return_std=True)
    np.testing.assert_allclose(mean, want_mean, rtol=1e-6)
    np.testing.assert_allclose((model_var + noise_var).sqrt(), want_std, rtol=1e-6)


@pytest.mark.parametrize("n", [3, 8, 20, 300])
def test_paper_rule_agrees_with_the_paper_formulas_step_by_step(generator, n):
    p = bayesian(n, M, generator)
    post = fit.evidence(p.phi, p.z, p.prior, p.weight)
    mean, cov, alpha, beta, steps = reference.em(p.phi, p.z, p.prior, p.weight)
    assert post.steps == steps <= 8
    assert post.alpha.item() == pytest.approx(alpha, rel=1e-8)
    assert post.beta.item() == pytest.approx(beta, rel=1e-8)
    torch.testing.assert_close(post.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(post.cov, cov, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("n", [1, 5, 8, 20, 300])
def test_em_never_lowers_the_evidence(generator, n):
    p = bayesian(n, M, generator)
    values = [
        fit.evidence(p.phi, p.z, p.prior, p.weight, steps=steps, tol=0.0).log_evidence.item()
        for steps in range(25)
    ]
    assert np.diff(values).min() > -1e-9 * abs(values[-1])
    assert values[-1] > values[0]


HYPER = fit.Hyperprior(fit.Gamma(3.0, 3.0), fit.Gamma(2.0, 0.02))


@pytest.mark.parametrize("n", [0, 1, 5, 8, 20])
def test_em_with_hyperpriors_never_lowers_the_posterior_of_the_precisions(generator, n):
    """MAP in the logarithms of alpha and beta: Gamma density times the precision."""
    p = bayesian(n, M, generator)

    def objective(steps):
        post = fit.evidence(p.phi, p.z, p.prior, p.weight, steps=steps, tol=0.0, hyperprior=HYPER)
        value = post.log_evidence.item()
        for x, gamma in ((post.alpha, HYPER.alpha), (post.beta, HYPER.beta)):
            value += gamma.shape * np.log(x.item()) - gamma.rate * x.item()
        return value

    values = [objective(steps) for steps in range(25)]
    assert np.diff(values).min() > -1e-9 * abs(values[-1])


@pytest.mark.parametrize("hyperprior", [None, HYPER])
def test_converged_precisions_are_a_stationary_point(generator, hyperprior):
    p = bayesian(200, M, generator)
    post = fit.evidence(p.phi, p.z, p.prior, p.weight, hyperprior=hyperprior, **TO_CONVERGENCE)
    gammas = hyperprior or fit.Hyperprior()

    def objective(log_alpha, log_beta):
        at = {"alpha": np.exp(log_alpha), "beta": np.exp(log_beta)}
        value = fit.posterior(p.phi, p.z, p.prior, p.weight, **at).log_evidence.item()
        for x, gamma in zip(at.values(), gammas, strict=True):
            value += gamma.shape * np.log(x) - gamma.rate * x
        return value

    here, step = np.log([post.alpha.item(), post.beta.item()]), 1e-4
    for direction in np.eye(2) * step:
        up, down = objective(*(here + direction)), objective(*(here - direction))
        assert abs(up - down) / (2 * step) < 1e-4
        assert objective(*here) > max(up, down)


def test_hyperprior_keeps_the_noise_where_fewer_points_than_bases_would_lose_it(generator):
    """The true precision is 100, which is the hyperprior's mean too."""
    p = bayesian(4, M, generator, batch=(50,))
    plain, kept = (
        fit.evidence(p.phi, p.z, p.prior, p.weight, steps=500, tol=0.0, hyperprior=hyperprior)
        for hyperprior in (None, HYPER)
    )
    assert (plain.beta / 100).log().abs().max() > np.log(30)
    assert (kept.beta / 100).log().abs().max() < np.log(5)


def test_model_variance_agrees_with_posterior_samples(generator):
    """Draw from the prior and correct by the points, in the N x N form (Matheron's rule)."""
    p = bayesian(20, M, generator)
    alpha, beta, draws = 2.0, 50.0, 200_000
    post = fit.posterior(p.phi, p.z, p.prior, p.weight, alpha=alpha, beta=beta)
    noise = torch.diag(1 / (beta * p.weight))
    gain = (
        p.prior.cov
        / alpha
        @ p.phi.mT
        @ torch.linalg.inv(p.phi @ p.prior.cov @ p.phi.mT / alpha + noise)
    )
    root = torch.linalg.cholesky(p.prior.cov / alpha)
    w0 = p.prior.mean + torch.randn(draws, M, dtype=torch.float64, generator=generator) @ root.mT
    eps = torch.randn(draws, 20, dtype=torch.float64, generator=generator) @ noise.sqrt()
    samples = w0 + (p.z - w0 @ p.phi.mT - eps) @ gain.mT
    pixels = torch.randn(5, M, dtype=torch.float64, generator=generator)
    mean, model_var, noise_var = post.predict(pixels)
    drawn = samples @ pixels.mT
    assert ((drawn.mean(0) - mean).abs() < 4 * (model_var / draws).sqrt()).all()
    assert ((drawn.var(0) / model_var - 1).abs() < 4 * (2 / draws) ** 0.5).all()
    assert (noise_var == 1 / beta).all()


def test_without_points_the_posterior_is_the_prior(generator):
    p = bayesian(0, M, generator, batch=(2,))
    for hyperprior, noise in ((None, 0.0), (HYPER, 0.01)):
        post = fit.evidence(p.phi, p.z, p.prior, hyperprior=hyperprior)
        torch.testing.assert_close(post.mean, p.prior.mean.expand(2, -1))
        torch.testing.assert_close(post.cov, p.prior.cov.expand(2, -1, -1))
        assert (post.alpha == 1).all()
        assert post.converged.all()
        noise_var = post.predict(p.phi.new_ones(2, 1, M))[2]
        torch.testing.assert_close(noise_var, torch.full_like(noise_var, noise))


def test_leave_one_out_residuals_are_those_of_leaving_one_out(generator):
    p = bayesian(20, M, generator)
    post = fit.evidence(p.phi, p.z, p.prior, p.weight)
    at = {"alpha": post.alpha, "beta": post.beta}
    for n in range(20):
        weight = p.weight.clone()
        weight[n] = 0
        without = fit.posterior(p.phi, p.z, p.prior, weight, **at)
        want = p.z[n] - p.phi[n] @ without.mean
        torch.testing.assert_close(post.loo_residual[n], want, rtol=1e-8, atol=1e-10)


def test_leave_one_out_residuals_survive_float32_where_points_are_met_exactly(generator):
    """Four points and eight bases: residuals of 1e-7, leverages of 1 - 1e-7, and yet."""
    p = bayesian(4, M, generator, noise=0.0)
    points = p.phi.float(), p.z.float(), fit.Prior(p.prior.mean.float(), p.prior.cov.float())
    post = fit.evidence(*points, steps=2000, tol=0.0)
    without = [
        fit.posterior(p.phi[keep], p.z[keep], p.prior, alpha=post.alpha, beta=post.beta).mean
        for keep in (torch.arange(4) != n for n in range(4))
    ]
    want = p.z - torch.stack([p.phi[n] @ w for n, w in enumerate(without)])
    torch.testing.assert_close(post.loo_residual.double(), want, rtol=1e-2, atol=1e-3)


def test_batch_of_unequal_counts_agrees_with_one_at_a_time(generator):
    """Also: padding may hold NaN, and leading dimensions may be any."""
    p = bayesian(40, M, generator, batch=(2, 3))
    counts = torch.tensor([[0, 3, 40], [8, 1, 20]])
    used = torch.arange(40) < counts[..., None]
    phi = torch.where(used[..., None], p.phi, torch.nan)
    for options in ({}, {"hyperprior": HYPER}, {"huber": 1.345}):
        batch = fit.evidence(phi, p.z, p.prior, p.weight * used, **options)
        for i in np.ndindex(2, 3):
            cut = slice(0, counts[i])
            one = fit.evidence(p.phi[i][cut], p.z[i][cut], p.prior, p.weight[i][cut], **options)
            for name in ("mean", "cov", "alpha", "beta", "log_evidence", "steps", "converged"):
                got, want = getattr(batch, name)[i], getattr(one, name)
                torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


def test_a_point_twice_is_a_point_of_double_weight(generator):
    p = bayesian(20, M, generator)
    twice = torch.cat([p.phi, p.phi]), torch.cat([p.z, p.z])
    once = fit.posterior(p.phi, p.z, p.prior, beta=100.0)
    double = fit.posterior(*twice, p.prior, beta=50.0)
    torch.testing.assert_close(double.mean, once.mean)
    torch.testing.assert_close(double.cov, once.cov)
    weighted = fit.posterior(p.phi, p.z, p.prior, torch.full_like(p.z, 2.0), beta=50.0)
    torch.testing.assert_close(weighted.cov, once.cov)


def test_order_of_points_and_choice_of_bases_do_not_matter(generator):
    p = bayesian(20, M, generator)
    want = fit.evidence(p.phi, p.z, p.prior, p.weight)
    order = torch.randperm(20, generator=generator)
    got = fit.evidence(p.phi[order], p.z[order], p.prior, p.weight[order])
    torch.testing.assert_close(got.mean, want.mean)
    torch.testing.assert_close(got.loo_residual, want.loo_residual[order])
    mix = torch.eye(M, dtype=torch.float64) + 0.2 * torch.randn(
        M, M, dtype=torch.float64, generator=generator
    )
    unmix = torch.linalg.inv(mix)
    prior = fit.Prior(unmix @ p.prior.mean, unmix @ p.prior.cov @ unmix.mT)
    mixed = fit.evidence(p.phi @ mix, p.z, prior, p.weight)
    torch.testing.assert_close(mixed.log_evidence, want.log_evidence)
    torch.testing.assert_close(mix @ mixed.mean, want.mean)
    torch.testing.assert_close(mixed.predict(p.phi @ mix)[1], want.predict(p.phi)[1])


def test_singular_prior_agrees_with_the_bases_that_vary(generator):
    """A weight that the prior knows exactly is not fitted."""
    p = bayesian(20, M, generator)
    cov = p.prior.cov.clone()
    cov[-1] = cov[:, -1] = 0
    post = fit.evidence(p.phi, p.z, fit.Prior(p.prior.mean, cov), p.weight)
    rest = fit.evidence(
        p.phi[:, :-1],
        p.z - p.phi[:, -1] * p.prior.mean[-1],
        fit.Prior(p.prior.mean[:-1], cov[:-1, :-1]),
        p.weight,
        steps=0,
    )
    same = fit.posterior(p.phi, p.z, fit.Prior(p.prior.mean, cov), p.weight, beta=rest.beta)
    torch.testing.assert_close(same.mean[:-1], rest.mean)
    torch.testing.assert_close(post.mean[-1], p.prior.mean[-1])
    torch.testing.assert_close(post.cov[-1, -1], torch.tensor(0.0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, TO_CONVERGENCE | {"steps": 300}, {"huber": 1.345}])
def test_degenerate_points_give_finite_answers(generator, dtype, options):
    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    prior = fit.Prior(torch.zeros(M, dtype=dtype), torch.eye(M, dtype=dtype))
    phi = normal(30, M)
    cases = {
        "one point thirty times": (phi[:1].expand(30, -1), torch.full((30,), 1.0, dtype=dtype)),
        "one place, thirty depths": (phi[:1].expand(30, -1), normal(30)),
        "collinear bases": (phi[:, :1].expand(-1, M).clone(), normal(30)),
        "constant targets": (phi, torch.full((30,), 2.0, dtype=dtype)),
        "zero targets": (phi, torch.zeros(30, dtype=dtype)),
        "no noise": (phi, phi @ normal(M)),
        "pure noise": (phi, normal(30)),
        "bases that are zero": (torch.zeros_like(phi), normal(30)),
    }
    for name, (bases, z) in cases.items():
        post = fit.evidence(bases, z, prior, **options)
        values = (post.mean, post.cov, post.alpha, post.beta, post.log_evidence, post.loo_residual)
        assert all(v.isfinite().all() for v in values), name
        assert post.mean.dtype == dtype
        assert min(v.min() for v in post.predict(phi)[1:]) >= 0, name


def test_float32_is_as_good_as_its_condition_allows(generator):
    p = bayesian(200, M, generator)
    want = fit.evidence(p.phi, p.z, p.prior, p.weight)
    prior = fit.Prior(p.prior.mean.float(), p.prior.cov.float())
    got = fit.evidence(p.phi.float(), p.z.float(), prior, p.weight.float())
    cond = float(torch.linalg.cond(p.prior.cov) * torch.linalg.cond(p.phi))
    rtol = 10 * torch.finfo(torch.float32).eps * cond
    assert rtol < 0.05, "the problem is too ill-conditioned to show anything"
    for name in ("mean", "cov", "alpha", "beta", "log_evidence"):
        torch.testing.assert_close(
            getattr(got, name).double(), getattr(want, name), rtol=rtol, atol=rtol * 1e-2
        )


def test_posterior_mean_is_that_of_the_posterior_and_has_its_derivatives(generator):
    p = bayesian(9, 4, generator, batch=(2,))
    prior = fit.Prior(
        torch.arange(4.0).double(), torch.diag(torch.tensor([2.0, 1, 0.5, 0])).double()
    )
    want = fit.posterior(p.phi, p.z, prior, p.weight, beta=3.0).mean
    torch.testing.assert_close(fit.posterior_mean(p.phi, p.z, prior, p.weight, beta=3.0), want)
    none = fit.posterior_mean(p.phi[:, :0], p.z[:, :0], prior, beta=3.0)
    torch.testing.assert_close(none, prior.mean.expand(2, 4))
    inputs = [t.clone().requires_grad_() for t in (p.phi, p.z, p.weight)]
    assert torch.autograd.gradcheck(
        lambda phi, z, weight: fit.posterior_mean(phi, z, prior, weight, beta=3.0), inputs
    )
