# SPDX-License-Identifier: Apache-2.0
"""Factors of maximum Laplace likelihood against known distributions and torch's likelihood."""

import pytest
import torch
from torch.distributions import Laplace

from deepbasis_paper.laplace import laplace_factor, two_term


def laplace(var: torch.Tensor) -> torch.Tensor:
    """Errors whose variance is `var`."""
    return Laplace(torch.zeros_like(var), (var / 2).sqrt()).sample()


@pytest.mark.parametrize("wrong", [0.25, 1.0, 4.0])
def test_the_factor_undoes_a_wrong_variance(generator, wrong):
    torch.manual_seed(100 + generator.initial_seed())
    n = 200_000
    var = torch.rand(n, dtype=torch.float64, generator=generator) + 0.1
    for error, ratio in ((laplace(var), 1.0), (torch.randn(n).double() * var.sqrt(), 4 / torch.pi)):
        # E|x| / b of a Gaussian with 2 b^2 = 1 is sqrt(2 / pi) sqrt(2): its square is 4 / pi.
        factor = laplace_factor(error, var / wrong)
        assert factor == pytest.approx(wrong * ratio, rel=8 * (1 / n) ** 0.5)


def test_laplace_factor_maximises_the_likelihood(generator):
    var = torch.rand(500, dtype=torch.float64, generator=generator) + 0.1
    error = torch.randn(500, dtype=torch.float64, generator=generator)

    def likelihood(factor):
        return Laplace(torch.zeros_like(var), (factor * var / 2).sqrt()).log_prob(error).sum()

    best = laplace_factor(error, var)
    assert likelihood(best) > max(likelihood(0.99 * best), likelihood(1.01 * best))


def test_two_terms_are_told_apart_over_mixed_counts(generator):
    torch.manual_seed(100 + generator.initial_seed())
    n = 100_000
    noise_var = 0.01 * torch.rand(n, dtype=torch.float64, generator=generator)
    model_var = 0.01 * torch.rand(n, dtype=torch.float64, generator=generator).square()
    error = laplace(0.5 * noise_var + 3.0 * model_var)
    assert two_term(error, noise_var, model_var) == pytest.approx((0.5, 3.0), rel=0.1)


def test_two_terms_beat_their_neighbours(generator):
    """The optimum found is one: every step away from it lowers torch's own likelihood."""
    noise_var = torch.rand(2000, dtype=torch.float64, generator=generator) + 0.01
    model_var = torch.rand(2000, dtype=torch.float64, generator=generator) + 0.01
    error = torch.randn(2000, dtype=torch.float64, generator=generator)

    def likelihood(c1, c2):
        scale = ((c1 * noise_var + c2 * model_var) / 2).sqrt()
        return Laplace(torch.zeros_like(scale), scale).log_prob(error).sum()

    c1, c2 = two_term(error, noise_var, model_var)
    around = [(0.97, 1), (1.03, 1), (1, 0.97), (1, 1.03)]
    assert likelihood(c1, c2) > max(likelihood(c1 * i, c2 * j) for i, j in around)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="not positive"):
        laplace_factor(torch.ones(2), torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="no pixel"):
        two_term(torch.ones(0), torch.ones(0), torch.ones(0))
