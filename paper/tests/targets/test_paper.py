# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers and what they claim."""

import math

import pytest

from deepbasis_paper.targets.claims import claims
from deepbasis_paper.targets.paper import METRICS, RUNTIME, TABLES, table

# From Qu, Liu and Taylor, arXiv:2103.15254: table 2, table 3, and in the supplement the tables of
# 1 % points, of turned cameras and of KITTI. One row of each, typed a second time.
PRINTED = {
    ("vkitti2", "mid", "5%", "rgbd", "snap+log"): (1.271, 3.432, 95.33, 0.142, 0.117, -1.582),
    ("nyu", "mid", "5%", "rgbd", "bdbf"): (0.026, 0.082, 99.64, 0.007, 0.039, -3.151),
    ("nyu", "mid", "1%", "rgbd", "dbf"): (0.055, 0.155, 98.45, 0.016, 0.072, -2.381),
    ("vkitti2", "low", "500", "rgb", "bdbf"): (2.569, 5.642, 88.67, 0.481, 0.015, -0.979),
    ("nyu", "low", "0", "rgb", "log"): (0.366, 0.561, 75.08, 0.161, 0.191, 0.187),
    ("vkitti2", "shift", "30-deg", "rgbd", "bdbf"): (0.627, 2.711, 98.02, 0.085, 0.143, -2.676),
    ("kitti", "mid", "5%", "rgbd", "log"): (0.899, 2.022, 98.44, 0.109, 0.133, -1.544),
}


@pytest.mark.parametrize("key", PRINTED, ids=" ".join)
def test_rows_are_those_that_the_paper_prints(key):
    data, target, *row = key
    assert tuple(table(data, target)[tuple(row)].values()) == PRINTED[key]


@pytest.mark.parametrize(("data", "not_bold"), [("vkitti2", {"auce"}), ("nyu", set())])
def test_bdbf_is_best_where_table_2_is_bold(data, not_bold):
    rows = {name: table(data, "mid")["5%", "rgbd", name] for name in ("snap", "snap+log", "log")}
    bdbf = table(data, "mid")["5%", "rgbd", "bdbf"]
    sign = dict.fromkeys(METRICS, 1) | {"delta1": -1}
    best = {m for m in METRICS if all(sign[m] * bdbf[m] < sign[m] * r[m] for r in rows.values())}
    assert set(METRICS) - best == not_bold


def test_every_row_is_possible():
    """No typing error may put a number into another column."""
    for numbers in TABLES.values():
        for row in numbers.values():
            assert 0 < row["ause"] < row["mae"] < row["rmse"] < 20
            assert 40 < row["delta1"] < 100
            assert 0 < row["auce"] < 0.5
            assert -4 < row["nll"] < 7


def test_the_ensembles_take_four_times_as_long_as_one_network():
    """Table of run times in the supplement, in milliseconds."""
    assert RUNTIME["snap"] / RUNTIME["log"] == pytest.approx(4.13, abs=0.01)
    assert RUNTIME["bdbf"] - RUNTIME["dbf"] == pytest.approx(2.13, abs=0.01)


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
