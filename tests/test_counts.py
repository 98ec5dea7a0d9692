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


def test_calibration_finds_the_tails_that_made_the_errors(generator):
    """Noise and model variances that are wrong by two factors, and by one more at each count."""
    torch.manual_seed(100 + generator.initial_seed())
    layer, groups = BasisFit(3, errors="local").eval(), []
    for points, factor, dof, width in TAILS:
        noise, model = torch.rand(2, 60_000, dtype=torch.float64, generator=generator) + 0.1
        var, share = factor * (2 * noise + 0.5 * model), 2 * noise / (2 * noise + 0.5 * model)
        error = StudentT(4 + dof / share).sample() * width**share * var.sqrt()
        rows = torch.stack([error, noise, model], 1)
        groups.append(learn.Seen(rows, torch.tensor([points - 0.5, points + 0.5]).clamp(min=0)))
    found = learn.calibrate_local(layer, groups)
    for seen in groups:
        error, noise, model = seen.rows.unbind(1)
        factors = layer.factors(seen.points.mean()[None]).flatten()
        var = factors[0] * noise + factors[1] * model
        assert fit.nees(error, var) == pytest.approx(1, abs=0.01)
    assert [tail.points for tail in found["local_tails"]] == pytest.approx([0.25, 20, 500])
    shape = layer.tails[1, :3, 2:]
    assert (shape[0] > shape[1]).all()
    assert (shape[1] > shape[2]).all()


def test_too_few_pixels_tell_nothing_of_a_shape():
    layer = BasisFit(3, errors="local").eval()
    rows = torch.tensor([[0.1, 0.01, 0.01]]).repeat(learn.FEWEST_PIXELS - 1, 1)
    assert learn.learn_tails(layer, [learn.Seen(rows, torch.ones(1))], (1.0, 1.0)) == []
    assert not layer.tails[1, 0, 2]
