# SPDX-License-Identifier: Apache-2.0
"""The simulation behind "what the paper's variance leaves out"."""

import pytest

from deepbasis_paper.targets.noise_term import TRAINED_AT, noise_term


def test_simulation_shows_the_missing_noise_term():
    for row in noise_term(seed=1):
        if row.points >= 4 * 63:  # theory is for N well above M
            assert row.paper == pytest.approx(row.theory, rel=0.25)
        if row.points != 63:  # there eight EM steps stop early and the noise is overestimated
            assert row.ours == pytest.approx(1, abs=0.1)
        if row.points == TRAINED_AT:
            assert row.factor == 1
