# SPDX-License-Identifier: Apache-2.0
"""What holds for every problem that hypothesis can think of."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from deepbasis import fit


@st.composite
def problems(draw):
    """N in 0..200, M in 1..20, weights with zeros, depths from 1e-3 to 1e5 m, both precisions."""
    n, m = draw(st.integers(0, 200)), draw(st.integers(1, 20))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    metres = 10 ** draw(st.floats(-3, 5))
    spread = 10 ** draw(st.floats(-4, 1))
    size = 10 ** draw(st.floats(-3, 3))
    phi = size * torch.randn(n, m, generator=g, dtype=dtype)
    z = torch.tensor(metres).log() + spread * torch.randn(n, generator=g, dtype=dtype)
    weight = 10 ** (4 * torch.rand(n, generator=g, dtype=dtype) - 2)
    dropped = torch.rand(n, generator=g) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    prior = fit.Prior(torch.zeros(m, dtype=dtype), torch.eye(m, dtype=dtype))
    return phi, z.to(dtype), torch.where(dropped, 0, weight), prior


OPTIONS = st.sampled_from(
    [
        {},
        {"steps": 100, "tol": 1e-9},
        {"huber": 1.345},
        {"hyperprior": fit.Hyperprior(fit.Gamma(2.0, 2.0), fit.Gamma(2.0, 0.02))},
    ]
)


@given(problems(), OPTIONS)
def test_never_nan_and_never_a_negative_variance(problem, options):
    phi, z, weight, prior = problem
    post = fit.evidence(phi, z, prior, weight, **options)
    pixels = torch.randn(5, phi.shape[1], generator=torch.Generator().manual_seed(0)).to(phi)
    mean, model_var, noise_var = post.predict(pixels)
    found = (post.mean, post.cov, post.alpha, post.log_evidence, post.weight, post.loo_residual)
    for value in (mean, model_var, noise_var, *found):
        assert value.isfinite().all()
        assert value.dtype == phi.dtype
    assert (model_var >= 0).all()
    assert (noise_var >= 0).all()
    assert not post.beta.isnan()
    assert (post.alpha > 0).all()
    assert (post.beta > 0).all()


@given(problems(), st.floats(1e-2, 1e2), st.floats(1e-2, 1e4), st.integers(0, 200))
def test_more_points_never_raise_the_model_variance(problem, alpha, beta, fewer):
    phi, z, weight, prior = problem
    pixels = torch.randn(5, phi.shape[1], generator=torch.Generator().manual_seed(0)).to(phi)
    at = {"alpha": alpha, "beta": beta}
    more = fit.posterior(phi, z, prior, weight, **at).predict(pixels)[1]
    few = torch.where(torch.arange(len(z)) < fewer, weight, 0)
    less = fit.posterior(phi, z, prior, few, **at).predict(pixels)[1]
    # Rounding of one variance, of which the prior's is the largest there can be.
    rounding = 100 * torch.finfo(phi.dtype).eps * pixels.square().sum(-1) / alpha
    assert (more <= less + rounding).all()


@given(problems())
def test_ml_never_gives_nan_where_it_gives_an_answer(problem):
    phi, z, weight, _ = problem
    if (weight > 0).sum() < phi.shape[1]:
        return
    post = fit.ml(phi, z, weight)
    for value in (post.mean, post.root, post.beta, post.log_evidence, post.loo_residual):
        assert value.isfinite().all()
    assert min(v.min() for v in post.predict(phi)[1:]) >= 0
