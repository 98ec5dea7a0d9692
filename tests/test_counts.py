# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from torch.distributions import StudentT

from deepbasis import counts, fit
from deepbasis.counts import Tail
from deepbasis.layer import BasisFit
from deepbasis.train import learn

TAILS = [Tail(500, 0.8, 1.5, 0.3), Tail(0, 1.2, 9, 0.9), Tail(20, 1.1, 3, 0.5)]


def test_between_known_numbers_of_points_it_is_numpys_interpolation():
    points = torch.tensor([0.0, 1, 7, 20, 33, 499, 500, 20000])
    found = counts.at(counts.table(TAILS), points)
    known = np.array(sorted(TAILS))
    for column, have in enumerate(found, start=1):
        place, knots = np.log1p(points.numpy()), np.log1p(known[:, 0])
        want = np.interp(place, knots, np.log(known[:, column]))
        np.testing.assert_allclose(have, np.exp(want), rtol=1e-5)


def test_one_tail_holds_for_all_and_none_is_a_laplace():
    points = torch.tensor([0.0, 3, 1000])
    for have, want in zip(counts.at(counts.table(TAILS[:1]), points), TAILS[0][1:], strict=True):
        torch.testing.assert_close(have, torch.full((3,), want))
    assert counts.table([])[0].tolist() == list(counts.LAPLACE)
    torch.testing.assert_close(counts.at(counts.table([]), points)[0], torch.ones(3))


def test_too_many_are_refused():
    with pytest.raises(ValueError, match="9 numbers of points are too many; pass at most 8"):
        counts.table([Tail(n, 1, 2, 1) for n in range(9)])


def test_calibration_finds_the_variance_and_the_shape_that_made_the_errors(generator):
    """Noise alone, wrong by another factor at each count; a t's variance is dof / (dof - 2)."""
    torch.manual_seed(100 + generator.initial_seed())
    layer, groups = BasisFit(3, errors="local").eval(), []
    made = [Tail(500, 0.8, 5, 1), Tail(0, 1.2, 40, 1), Tail(20, 3.0, 9, 1)]
    for points, factor, dof, _ in made:
        noise = torch.rand(100_000, dtype=torch.float64, generator=generator) + 0.1
        error = StudentT(torch.tensor(float(dof)).double()).sample(noise.shape)
        error *= (factor * noise).sqrt()
        rows = torch.stack([error, noise, torch.full_like(noise, 1e-9)], 1)
        groups.append(learn.Seen(rows, torch.tensor([max(points - 1, 0.0), points + 1.0])))
    found = learn.calibrate_local(layer, groups)
    assert [tail.points for tail in found["local_tails"]] == pytest.approx([0.5, 20, 500])
    for tail, (_, factor, dof, _) in zip(found["local_tails"], sorted(made), strict=True):
        noise_factor, _ = layer.factors(torch.tensor([tail.points])).flatten()
        assert noise_factor == pytest.approx(factor * dof / (dof - 2), rel=0.05)
        assert tail.width == pytest.approx(((dof - 2) / dof) ** 0.5, rel=0.02)
        assert 1 / tail.dof == pytest.approx(1 / dof, abs=0.02)


def test_calibration_brings_nees_to_1_where_noise_and_model_mix(generator):
    """Variances that are wrong by two factors, and by one more at each count."""
    layer, groups = BasisFit(3, errors="local").eval(), []
    for points, factor, _, _ in TAILS:
        noise, model = torch.rand(2, 20_000, dtype=torch.float64, generator=generator) + 0.1
        std = (factor * (2 * noise + 0.5 * model)).sqrt()
        error = std * torch.randn(20_000, dtype=torch.float64, generator=generator)
        rows = torch.stack([error, noise, model], 1)
        groups.append(learn.Seen(rows, torch.tensor([float(points)])))
    learn.calibrate_local(layer, groups)
    for (error, noise, model), points in ((seen.rows.unbind(1), seen.points) for seen in groups):
        noise_factor, model_factor = layer.factors(points).flatten()
        var = noise_factor * noise + model_factor * model
        assert fit.nees(error, var) == pytest.approx(1, abs=0.01)


def test_too_few_pixels_tell_nothing_of_a_shape():
    layer = BasisFit(3, errors="local").eval()
    rows = torch.tensor([[0.1, 0.01, 0.01]]).repeat(learn.FEWEST_PIXELS - 1, 1)
    assert learn.learn_tails(layer, [learn.Seen(rows, torch.ones(1))], (1.0, 1.0)) == []
    assert not layer.tails[1, 0, 2]
