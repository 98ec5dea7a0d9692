# SPDX-License-Identifier: Apache-2.0
import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(params=[0, 1, 2])
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Three seeds: a test that passes by luck of one draw fails on another."""
    return torch.Generator().manual_seed(request.param)
