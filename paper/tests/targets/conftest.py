# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from deepbasis.model import Card
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import PaperArchitecture
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.plan import Training

# Four frames of 32 x 48 pixels, of which 5 % are 77 points.
TINY = Plan(frames=4, size=(32, 48), epochs=1, no_train=True)
# The models that the tests have; all others are missing.
FINISHED = (
    ("mid", "log", "rgbd", "paper"), ("mid", "bdbf", "rgbd", "paper"),
    ("mid", "bdbf", "rgbd", "corrected"), ("low", "bdbf", "rgb", "paper"),
    ("low", "bdbf", "rgb", "corrected"),
)  # fmt: skip


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of some trainings of a plan, untrained."""
    folder = tmp_path_factory.mktemp("runs")
    for regime, method, depth_input, recipe in FINISHED:
        torch.manual_seed(0)  # recipes share their network
        plan = replace(TINY, runs=folder)
        training = Training(plan, regime, method, depth_input, recipe=recipe)
        training.model.parent.mkdir()
        settings = json.loads(json.dumps(asdict(training.config), default=str))
        architecture = PaperArchitecture(method=method, input=depth_input)
        card = Card(settings, metrics={"two_term": [0.8, 1.2]})
        Ensemble(architecture, card=card).save(training.model)
    return folder


@pytest.fixture
def plan(runs: Path, tmp_path: Path) -> Plan:
    """A plan that finds them."""
    return replace(TINY, runs=runs, out=tmp_path)
