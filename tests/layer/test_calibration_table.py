# SPDX-License-Identifier: Apache-2.0
"""Calibration by the number of points, against numpy's interpolation."""

import numpy as np
import pytest
import torch

from deepbasis import latent
from deepbasis.layer import Calibration, CalibrationRow, LeaveOneOut, Prediction
from deepbasis.layer.calibration_table import LAPLACE, ROWS
from refusals import refusals

KNOWN = [
    CalibrationRow(500, 0.8, 1.5, 0.3),
    CalibrationRow(0, 1.2, 9, 0.9),
    CalibrationRow(20, 1.1, 3, 0.5),
]


def make_calibration(rows, noise=1.0, model=1.0):
    calibration = Calibration()
    calibration.set_factors(noise, model)
    calibration.set_rows(rows)
    return calibration


def test_between_known_numbers_of_points_it_is_numpys_interpolation():
    points = torch.tensor([0.0, 1, 7, 20, 33, 499, 500, 20000])
    found = make_calibration(KNOWN, 2.0, 5.0).at(points)
    known = np.array(sorted(KNOWN))
    place, knots = np.log1p(points.numpy()), np.log1p(known[:, 0])
    want = [np.exp(np.interp(place, knots, np.log(known[:, column]))) for column in (1, 2, 3)]
    np.testing.assert_allclose(found.noise_factor.flatten(), 2 * want[0], rtol=1e-5)
    np.testing.assert_allclose(found.model_factor.flatten(), 5 * want[0], rtol=1e-5)
    np.testing.assert_allclose(found.dof.flatten(), want[1], rtol=1e-5)
    np.testing.assert_allclose(found.width.flatten(), want[2], rtol=1e-5)


def test_one_row_holds_for_all_numbers_and_none_is_a_laplace():
    points = torch.tensor([0.0, 3, 1000])
    found = make_calibration(KNOWN[:1]).at(points)
    for have, want in zip((found.noise_factor, found.dof, found.width), KNOWN[0][1:], strict=True):
        torch.testing.assert_close(have.flatten(), torch.full((3,), want))
    none = make_calibration([]).at(points)
    assert none.dof is None
    torch.testing.assert_close(none.noise_factor.flatten(), torch.ones(3))
    torch.testing.assert_close(none.model_factor.flatten(), torch.ones(3))
    prediction = Prediction(*torch.ones(3, 3, 1, 2, 2))
    assert none.distribution(prediction) == latent.LAPLACE
    assert CalibrationRow(0, 1, 0, 1) == LAPLACE


def test_reset_forgets_factors_and_rows():
    calibration, fresh = make_calibration(KNOWN, 3.0, 4.0), Calibration()
    calibration.reset()
    state = calibration.state_dict()
    assert state.keys() == fresh.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in fresh.state_dict().items())


def test_variances_and_distributions_are_those_of_each_image():
    found = make_calibration(KNOWN, 2.0, 5.0).at(torch.tensor([0.0, 500]))
    plain = Prediction(*(torch.rand(3, 2, 1, 4, 5) + 0.1))
    mean, model_var, noise_var = found.apply(plain)
    factor = torch.tensor([1.2, 0.8]).view(2, 1, 1, 1)
    assert torch.equal(mean, plain.mean)
    torch.testing.assert_close(model_var, 5 * factor * plain.model_var)
    torch.testing.assert_close(noise_var, 2 * factor * plain.noise_var)
    applied = Prediction(mean, model_var, noise_var)
    distribution = found.distribution(applied)
    assert torch.equal(distribution.noise_share, noise_var / (noise_var + model_var))
    for i, row in enumerate((KNOWN[1], KNOWN[0])):
        own = latent.StudentT(row.dof, row.width, distribution.noise_share[i])
        half = own.half_width(applied.var[i], 0.9)
        torch.testing.assert_close(distribution.half_width(applied.var, 0.9)[i], half)


def test_points_of_one_image_have_its_distribution():
    found = make_calibration(KNOWN).at(torch.tensor([20.0]))
    left_out = LeaveOneOut(torch.zeros(7), torch.ones(7), torch.linspace(0.1, 1, 7))
    distribution = found.distribution(left_out)
    assert (distribution.dof, distribution.width) == pytest.approx((3, 0.5))
    assert torch.equal(distribution.noise_share, left_out.noise_share)


def test_what_is_looked_up_does_not_change_with_the_table():
    calibration = make_calibration(KNOWN, 2.0, 5.0)
    found = calibration.at(torch.tensor([7.0]))
    before = [value.clone() for value in found]
    calibration.set_rows([CalibrationRow(0, 9, 9, 9)])
    calibration.set_factors(8.0, 7.0)
    assert all(map(torch.equal, found, before))


def test_bad_calibrations_are_refused():
    setup = (
        "from deepbasis.layer import Calibration, CalibrationRow; table = Calibration()\n"
        f"rows = [CalibrationRow(n, 1, 2, 1) for n in range({ROWS + 1})]"
    )
    cases = {
        "table.set_rows(rows)": f"{ROWS + 1} numbers of points are too many; pass at most {ROWS}",
        "table.set_factors(1.0, 0.0)": "calibration factors are 1.0 and 0.0; both must be > 0",
        "table.set_factors(nan, 1.0)": "calibration factors are nan and 1.0; both must be > 0",
    }
    said = refusals(setup, cases)
    for case, message in cases.items():
        assert message in said[case]
