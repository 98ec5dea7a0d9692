# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers and what they claim."""

import math
import re
from pathlib import Path

import pytest

from deepbasis.reproduce.claims import claims
from deepbasis.reproduce.paper import METRICS, RUNTIME, TABLES, table

TEX = Path(__file__).parents[3] / "shared" / "paper" / "bdbf.tex"


@pytest.mark.skipif(not TEX.exists(), reason="the paper's source is not here")
def test_every_row_stands_in_the_papers_source():
    text = re.sub(r"\\textbf\{([^}]*)\}", r"\1", TEX.read_text())
    text = re.sub(r"[\s&]+", " ", text)
    for (data, target), numbers in TABLES.items():
        for key, values in numbers.items():
            pattern = " ".join(rf"{values[name]:.9g}0*" for name in METRICS)
            assert re.search(pattern, text), (data, target, key)
    for milliseconds in RUNTIME.values():
        assert f" {milliseconds}" in text


def invented(**changed: float):
    """Numbers at 5 % and 50 with one metric each, all 1."""
    names = ("snap", "snap+log", "log", "dbf", "bdbf")
    numbers = {
        (p, "rgbd", name): dict.fromkeys(METRICS, 1.0) for p in ("5%", "50") for name in names
    }
    numbers |= {("50", "rgb", "bdbf"): dict.fromkeys(METRICS, 1.0)}
    numbers |= {("0", "rgb", name): dict.fromkeys(METRICS, 1.0) for name in ("bdbf", "log")}
    return numbers


def test_claims_at_5_percent_are_ratios_to_the_best_baseline():
    numbers = invented()
    numbers["5%", "rgbd", "bdbf"] |= {"mae": 0.3, "nll": -0.5, "ause": 0.8}
    numbers["5%", "rgbd", "log"] |= {"mae": 0.6, "nll": 0.4, "ause": 2.0}
    numbers["5%", "rgbd", "dbf"] |= {"mae": 0.1, "nll": -9.0, "ause": 0.4}
    mae, nll, ause = claims("mid", numbers)
    assert (mae.value, mae.met) == (0.5, True)
    assert (nll.value, nll.met) == (-0.9, False)
    assert (ause.value, ause.met) == (2.0, False)


def test_claims_at_50_points_are_against_every_rgbd_method():
    numbers = invented()
    numbers["50", "rgb", "bdbf"] |= {"mae": 0.9, "nll": 0.5}
    numbers["50", "rgbd", "bdbf"] |= {"nll": 0.4}
    numbers["0", "rgb", "bdbf"]["mae"] = 3.0
    mae, rmse, _, nll, blind = claims("low", numbers)
    assert mae.met
    assert not rmse.met
    assert nll.value == pytest.approx(0.1)
    assert not nll.met
    assert (blind.value, blind.met) == (3.0, True)


def test_without_a_baseline_nothing_is_claimed():
    numbers = invented()
    del numbers["5%", "rgbd", "snap"]
    assert all(math.isnan(verdict.value) for verdict in claims("mid", numbers))
    assert not any(verdict.met for verdict in claims("mid", numbers))
    assert str(claims("mid", {})[0]) == "unknown"


def test_the_paper_meets_its_own_claims_on_nyu():
    met = [verdict.met for half in ("mid", "low") for verdict in claims(half, table("nyu", half))]
    assert all(met)
    assert claims("mid", table("nyu", "mid"))[0].value == pytest.approx(0.026 / 0.057)
