# SPDX-License-Identifier: Apache-2.0
"""A training of a method, from its settings to its model."""

from dataclasses import replace
from pathlib import Path

from deepbasis.train.loop import run
from deepbasis.train.record import Record
from deepbasis.train.report import print_report
from deepbasis_paper.config import PaperConfig
from deepbasis_paper.train.finish import Trained, finish
from deepbasis_paper.train.job import PaperJob, make_jobs


def train(config: PaperConfig) -> Path:
    """Train all networks of a method, and learn what comes after; returns the model's file."""
    config = config.with_epochs()
    jobs = make_jobs(config)
    trained = [train_one(job) for job in jobs]
    job = replace(jobs[0], config=config)
    model = finish(job, trained)
    Record(job).finish(model.card.metrics)
    if job.fabric.is_global_zero:
        print_report(model.card.metrics, job.model)
    return job.model


def train_one(job: PaperJob) -> Trained:
    """One training of the method."""
    with Record(job) as record:
        network, state = run(job, record)
    return job, network, state
