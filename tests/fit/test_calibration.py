# SPDX-License-Identifier: Apache-2.0
"""Calibration factors against known distributions and a search."""

import pytest
import torch
from torch.distributions import Laplace

from deepbasis import fit
from problems import bayesian

# Frames that leave no weight to a prior.
MANY = 1e9


def laplace(var: torch.Tensor) -> torch.Tensor:
    """Errors whose variance is `var`."""
    return Laplace(torch.zeros_like(var), (var / 2).sqrt()).sample()


@pytest.mark.parametrize("wrong", [0.25, 1.0, 4.0])
def test_nees_undoes_a_wrong_variance(generator, wrong):
    torch.manual_seed(100 + generator.initial_seed())
    n = 200_000
    var = torch.rand(n, dtype=torch.float64, generator=generator) + 0.1
    for error in (laplace(var), torch.randn(n).double() * var.sqrt()):
        # Four standard errors; the fourth moment of a Laplace is 6 variances squared.
        assert fit.nees(error, var / wrong) == pytest.approx(wrong, rel=4 * (5 / n) ** 0.5)


def test_paper_definition_of_nees_would_be_two():
    """For a Laplace, E[x^2 / b^2] = 2, not 1; NEES must divide by the variance."""
    torch.manual_seed(0)
    b = torch.full((200_000,), 0.7, dtype=torch.float64)
    error = Laplace(torch.zeros_like(b), b).sample()
    assert (error.square() / b.square()).mean() == pytest.approx(2, rel=0.02)
    assert fit.nees(error, 2 * b.square()) == pytest.approx(1, rel=0.02)


def test_matching_gives_each_pure_group_its_nees(generator):
    """A group of noise alone fixes the one factor, a group of model variance alone the other."""
    error = torch.randn(2, 500, dtype=torch.float64, generator=generator)
    var = torch.rand(2, 500, dtype=torch.float64, generator=generator) + 0.1
    nothing = torch.zeros(500, dtype=torch.float64)
    found = fit.match_nees([(error[0], var[0], nothing), (error[1], nothing, var[1])], MANY)
    want = float(fit.nees(error[0], var[0])), float(fit.nees(error[1], var[1]))
    assert found == pytest.approx(want, rel=1e-3)


def test_matching_finds_the_factors_over_mixed_counts_and_tails(generator):
    torch.manual_seed(100 + generator.initial_seed())
    groups = []
    for share in (0.02, 0.4, 0.9):
        noise_var = share * (torch.rand(100_000, dtype=torch.float64, generator=generator) + 0.1)
        model_var = (1 - share) * torch.rand(100_000, dtype=torch.float64, generator=generator)
        groups.append((laplace(0.5 * noise_var + 3.0 * model_var), noise_var, model_var))
    assert fit.match_nees(groups, MANY) == pytest.approx((0.5, 3.0), rel=0.1)
    with pytest.raises(ValueError, match="a variance is not positive"):
        fit.match_nees([(groups[0][0], 0 * groups[0][1], 0 * groups[0][2])], MANY)


def test_few_frames_do_not_drive_a_factor_off(generator):
    """Errors that are matched best by no model variance at all, as chance has it in a few frames;
    so many frames alone may say so.
    """
    torch.manual_seed(100 + generator.initial_seed())
    one = torch.ones(10_000, dtype=torch.float64)
    groups = [(laplace(0.9 * one), one, one), (laplace(0.85 * one), one, 2 * one)]
    assert fit.match_nees(groups, MANY)[1] < 1e-3
    noise, model = fit.match_nees(groups, 15)
    assert model > 0.1
    for error, noise_var, model_var in groups:
        total = noise * noise_var + model * model_var
        assert float(fit.nees(error, total)) == pytest.approx(1, abs=0.25)


def test_a_well_specified_model_needs_no_factor(generator):
    """Fresh pixels of the model itself, at point counts from 30 to 500."""
    parts = []
    for n in (30, 100, 500):
        p = bayesian(n + 200, 8, generator, batch=(50,))
        post = fit.evidence(p.phi[:, :n], p.z[:, :n], p.prior, p.weight[:, :n])
        mean, model_var, noise_var = post.predict(p.phi[:, n:])
        error = p.z[:, n:] - mean
        parts.append((error, noise_var / p.weight[:, n:], model_var))
        assert fit.nees(error, model_var + noise_var / p.weight[:, n:]) == pytest.approx(1, abs=0.3)
    error, noise_var, model_var = (torch.cat(part) for part in zip(*parts, strict=True))
    assert fit.nees(error, noise_var + model_var) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("error", "var", "message"),
    [
        (torch.ones(0), torch.ones(0), "no pixel"),
        (torch.ones(2), torch.tensor([1.0, 0.0]), "not positive"),
        (torch.tensor([torch.nan]), torch.ones(1), "not finite"),
    ],
)
def test_bad_input_is_refused(error, var, message):
    with pytest.raises(ValueError, match=message):
        fit.nees(error, var)
