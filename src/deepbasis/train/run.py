# SPDX-License-Identifier: Apache-2.0
"""A training from its settings to its model."""

from pathlib import Path

from deepbasis.nets import Network
from deepbasis.train.config import TrainConfig
from deepbasis.train.finish import finish
from deepbasis.train.job import make_job
from deepbasis.train.loop import run
from deepbasis.train.record import Record
from deepbasis.train.report import print_report


def train(config: TrainConfig) -> Path:
    """Train, learn the prior, calibrate; returns the model's file."""
    job = make_job(config)
    with Record(job) as record:
        network, state = run(job, record)
        assert isinstance(network, Network)
        model = finish(job, network, state)
        record.finish(model.card.metrics)
    if job.fabric.is_global_zero:
        print_report(model.card.metrics, job.model)
    return job.model
