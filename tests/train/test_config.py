# SPDX-License-Identifier: Apache-2.0
"""Learning rates, and settings that cannot work."""

import pytest
from lightning_fabric import Fabric

from deepbasis.data.packaged import packaged
from deepbasis.data.sources import Subset
from deepbasis.train.config import TrainConfig
from deepbasis.train.job import Job


def make_job(steps_per_epoch, **settings):
    fabric = Fabric(accelerator="cpu", devices=1)
    none = Subset(packaged(), [])
    return Job(fabric, TrainConfig(**settings), none, none, None, {}, steps_per_epoch)


def test_the_rate_rises_then_falls_to_nothing():
    job = make_job(100, epochs=10, lr=2e-4)
    rates = [job.rate(step) for step in range(job.steps)]
    top = rates.index(max(rates))
    assert top == pytest.approx(100, abs=2)
    assert max(rates) == pytest.approx(2e-4, rel=0.02)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] < 1e-3 * max(rates)
    middle = job.rate(550)  # half way down the cosine
    assert middle == pytest.approx(1e-4, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "--batch 0 must be at least 1"),
        ({"epochs": 0}, "--epochs 0 must be at least 1"),
        ({"eval_frames": -1}, "--eval-frames -1 must not be negative"),
        ({"few_points_weight": -1.0}, "--few-points-weight -1.0 must not be negative"),
        ({"kernel_only": True}, "--kernel-only needs a model to start from"),
        ({"lr": 0.0}, "--lr 0.0 and --clip 1.0 must be above 0"),
        ({"fit_points": "63"}, "cannot determine 63 weights in training; use at least 64"),
        ({"fit_points": "0-500"}, "cannot determine 63 weights"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings).check()
