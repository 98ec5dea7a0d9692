# SPDX-License-Identifier: Apache-2.0
"""Calibration learned from errors whose distribution is known."""

import pytest
import torch
from lightning_fabric import Fabric
from torch.distributions import StudentT

import deepbasis
from deepbasis import BasisFit, fit
from deepbasis.calibrate import learn
from deepbasis.calibrate.measure import predict
from deepbasis.data.sources import Source
from deepbasis.data.with_points import WithPoints
from deepbasis.layer import CalibrationRow
from deepbasis.patterns import parse

MADE = [
    CalibrationRow(500, 0.8, 5, 1),
    CalibrationRow(0, 1.2, 40, 1),
    CalibrationRow(20, 3.0, 9, 1),
]


def test_calibration_finds_the_variance_and_the_distribution_of_the_errors(generator):
    """Noise alone, off by another factor at each count; a t's variance is dof / (dof - 2)."""
    torch.manual_seed(100 + generator.initial_seed())
    model, groups = BasisFit(3).eval().error_model("correlated"), []
    for points, factor, dof, _ in MADE:
        noise = torch.rand(50_000, dtype=torch.float64, generator=generator) + 0.1
        error = StudentT(torch.tensor(float(dof)).double()).sample(noise.shape)
        error *= (factor * noise).sqrt()
        rows = torch.stack([error, noise, torch.full_like(noise, 1e-9)], 1)
        groups.append(learn.Sampled(rows, torch.tensor([max(points - 1, 0.0), points + 1.0])))
    found = learn.calibrate(model, groups)["rows"]
    assert [row.points for row in found] == pytest.approx([0.5, 20, 500])
    for row, (_, factor, dof, _) in zip(found, sorted(MADE), strict=True):
        noise_factor = model.calibration.at(torch.tensor([row.points])).noise_factor
        assert float(noise_factor) == pytest.approx(factor * dof / (dof - 2), rel=0.05)
        assert row.width == pytest.approx(((dof - 2) / dof) ** 0.5, rel=0.02)
        assert 1 / row.dof == pytest.approx(1 / dof, abs=0.02)


def test_calibration_brings_nees_to_1_where_noise_and_model_mix(generator):
    """Variances that are off by two factors, and by one more at each count."""
    model, groups = BasisFit(3).eval().error_model("correlated"), []
    for points, factor in ((500, 0.8), (0, 1.2), (20, 1.1)):
        noise, var = torch.rand(2, 20_000, dtype=torch.float64, generator=generator) + 0.1
        std = (factor * (2 * noise + 0.5 * var)).sqrt()
        error = std * torch.randn(20_000, dtype=torch.float64, generator=generator)
        rows = torch.stack([error, noise, var], 1)
        groups.append(learn.Sampled(rows, torch.tensor([float(points)])))
    learn.calibrate(model, groups)
    for group in groups:
        error, noise, var = group.rows.unbind(1)
        found = model.calibration.at(group.points)
        calibrated = float(found.noise_factor) * noise + float(found.model_factor) * var
        assert fit.nees(error, calibrated) == pytest.approx(1, abs=0.01)


def test_too_few_pixels_teach_no_distribution():
    model = BasisFit(3).eval().error_model("correlated")
    rows = torch.tensor([[0.1, 0.01, 0.01]]).repeat(learn.FEWEST_PIXELS - 1, 1)
    assert learn.calibrate(model, [learn.Sampled(rows, torch.ones(1))])["rows"] == []
    assert model.calibration.at(torch.ones(1)).dof is None


class Wrong(WithPoints):
    """Every tenth point is four times as far away."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        sparse = sample.sparse.clone()
        sparse.view(-1)[sparse.view(-1).nonzero()[::10]] *= 4
        return sample._replace(sparse=sparse)


def test_points_of_the_own_sensor_are_calibrated_beside_others():
    """Those that contradict the others do not count."""
    fabric = Fabric(accelerator="cpu", devices=1)
    frames = Source("rooms", count=2, size=(64, 96)).open("test")
    measured = WithPoints(frames, parse("300"))
    network = deepbasis.load("indoor").network
    none = learn.own_points(learn.Draw(fabric, ["300"]), network, frames, "correlated")
    assert none == learn.own_points(learn.Draw(fabric, ["sensor"]), network, measured, "correlated")
    assert none == []
    (own,) = learn.own_points(learn.Draw(fabric, ["300"]), network, measured, "correlated")
    (same,) = learn.sample_pixels(learn.Draw(fabric, ["sensor"]), network, measured, "correlated")
    assert own.rows.shape == same.rows.shape == (2 * learn.PIXELS, 3)
    assert (own.points <= same.points).all()
    assert (own.points > 250).all()
    wild = Wrong(frames, parse("300"))
    (left,) = learn.own_points(learn.Draw(fabric, ["300"]), network, wild, "correlated")
    assert (left.points < own.points).all()
    assert left.rows[:, 0].abs().mean() < 1.3 * own.rows[:, 0].abs().mean()


def test_sensors_are_calibrated_with_as_many_random_points():
    """Their pixels follow those of the random points, and all others are as without them."""
    fabric = Fabric(accelerator="cpu", devices=1)
    frames = Source("rooms", count=2, size=(64, 96)).open("test")
    network = deepbasis.load("indoor").network

    def sample(*patterns):
        return learn.sample_pixels(learn.Draw(fabric, patterns), network, frames, "correlated")

    found = sample("63", "20", "1%")
    for group, alone in zip(found, [("63", "tof8x8"), ("20",), ("1%", "features500")], strict=True):
        parts = [
            (one.rows, one.points)
            for points in alone
            for (one,) in predict(fabric, network, frames, [points], errors="correlated")
        ]
        assert group.points.tolist() == [float(points) for _, points in parts]
        rows = torch.cat([learn.some(rows, learn.PIXELS) for rows, _ in parts])
        assert torch.equal(group.rows, rows)
    model = BasisFit(3).eval().error_model("correlated")
    assert learn.calibrate(model, found)["frames"] == 2


def test_more_groups_take_the_places_of_the_first(generator):
    model = BasisFit(3).eval().error_model("correlated")
    groups = [
        learn.Sampled(torch.rand(500, 3, generator=generator) + 0.1, torch.tensor([float(points)]))
        for points in (400, 20, 0, 900)
    ]
    found = learn.calibrate(model, groups[:3], groups[3:])["rows"]
    assert [row.points for row in found] == [0, 20, 900]
