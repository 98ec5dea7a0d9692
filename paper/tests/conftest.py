# SPDX-License-Identifier: Apache-2.0
import os

# As in tests/conftest.py: two workers share two cores. Torch reads this when imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepbasis.train.config import TrainConfig
from deepbasis_paper.config import PaperConfig
from deepbasis_paper.data.training import PaperItem
from trainings import SMALL

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(params=[0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Three seeds, as in tests/conftest.py."""
    return torch.Generator().manual_seed(request.param)


@pytest.fixture
def small() -> Callable[..., PaperConfig]:
    """`small(out, **changes)`: settings of a training of seconds."""

    plain = vars(TrainConfig())
    settings = {name: value for name, value in vars(SMALL).items() if value != plain[name]}

    def make(out: Path, **changes: Any) -> PaperConfig:
        return PaperConfig(**(settings | {"input": "rgb", "epochs": 1, "out": out} | changes))

    return make


@pytest.fixture
def item() -> PaperItem:
    """Two frames of 37 x 51 pixels with points at a fifth of the pixels, and no input points."""
    g = torch.Generator().manual_seed(0)
    image = torch.randint(0, 255, (2, 3, 37, 51), generator=g, dtype=torch.uint8)
    depth = 2 + 6 * torch.rand(2, 1, 37, 51, generator=g)
    sparse = torch.where(torch.rand(2, 1, 37, 51, generator=g) < 0.2, depth, 0)
    empty = torch.zeros_like(depth)
    return PaperItem(["a", "b"], image, depth, sparse, empty, empty > 0)
