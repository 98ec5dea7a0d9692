# SPDX-License-Identifier: Apache-2.0
import os
import sys
from collections.abc import Callable

# Two workers share two cores, so neither they nor the programs they start take more than one each:
# threads that wait for a busy core make a test ten times slower. Torch reads this when imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=200)
settings.load_profile("default")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # should a plugin have imported torch before


@pytest.fixture(params=[0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Three seeds: a test that passes by luck of one draw fails on another."""
    return torch.Generator().manual_seed(request.param)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run deepbasis with these words; gives exit code and what was printed to both streams."""
    from deepbasis.cli import main

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deepbasis", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
