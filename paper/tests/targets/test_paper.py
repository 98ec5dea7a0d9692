# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers and what they claim."""

import math

import pytest

from deepbasis_paper.targets.claims import claims, runtime_claims, shift_claims
from deepbasis_paper.targets.paper import METRICS, PUBLISHED, RUNTIME, TABLES, UNGUIDED, table

# From Qu, Liu and Taylor, arXiv:2103.15254: table 2, table 3, and in the supplement the tables of
# 1 % points, of turned cameras and of KITTI. One row of each, typed a second time.
PRINTED = {
    ("vkitti2", "mid", "5%", "rgbd", "snap+log"): (1.271, 3.432, 95.33, 0.142, 0.117, -1.582),
    ("nyu", "mid", "5%", "rgbd", "bdbf"): (0.026, 0.082, 99.64, 0.007, 0.039, -3.151),
    ("nyu", "mid", "1%", "rgbd", "dbf"): (0.055, 0.155, 98.45, 0.016, 0.072, -2.381),
    ("vkitti2", "low", "500", "rgb", "bdbf"): (2.569, 5.642, 88.67, 0.481, 0.015, -0.979),
    ("nyu", "low", "0", "rgb", "log"): (0.366, 0.561, 75.08, 0.161, 0.191, 0.187),
    ("vkitti2", "shift", "30-deg", "rgbd", "bdbf"): (0.627, 2.711, 98.02, 0.085, 0.143, -2.676),
    ("kitti", "mid", "sensor", "rgbd", "log"): (0.899, 2.022, 98.44, 0.109, 0.133, -1.544),
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
    by_log, by_snap = runtime_claims(RUNTIME)
    assert (by_log.value, by_log.met) == (pytest.approx(1.437, abs=1e-3), True)
    assert (by_snap.value, by_snap.met) == (pytest.approx(0.348, abs=1e-3), True)


def test_on_other_domains_bdbf_is_best_in_the_paper():
    found = shift_claims("vkitti2", table("vkitti2", "shift"))
    values = [verdict.value for verdict in found]
    assert values == pytest.approx([0.686 / 1.164, 0.627 / 1.084, 0.469 / 0.853])


def test_the_tables_on_kitti_are_those_that_the_paper_prints():
    """Columns typed a second time, from top to bottom."""
    rmse = [814.73, 772.87, 777.05, 758.38, 752.88, 743.69, 741.68, 736.24, 900.38]
    imae = [1.21, 0.93, 1.13, 1.15, 1.14, 0.90, 0.84, 0.99, 0.89]
    assert [row[2] for row in PUBLISHED.values()] == rmse
    assert [row[1] for row in PUBLISHED.values()] == imae
    assert all(row[0] < 3 and 190 < row[3] < 250 for row in PUBLISHED.values())
    assert [row[0] for row in UNGUIDED.values()] == [258.68, 283.41, 251.77, 206.70]
    assert [row[2] for row in UNGUIDED.values()] == [0.70, 0.055, 0.065, 0.057]


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
    numbers["5%", "rgbd", "bdbf"]["auce"], numbers["5%", "", "linear"] = 0.5, {"mae": 0.4}
    numbers["1%", "rgbd", "bdbf"], numbers["1%", "", "linear"] = {"mae": 0.9}, {"mae": 0.8}
    for name, nees in (("bdbf", 2.0), ("snap", 16.0), ("snap+log", 1 / 4), ("log", 8.0)):
        numbers["5%", "rgbd", name]["nees"] = nees
    mae, nll, ause, auce, nees, linear, linear_1, fewer = claims("mid", numbers)
    assert (nees.value, nees.met) == (pytest.approx(0.5), True)
    assert (auce.value, auce.met) == (0.5, True)
    assert (linear.value, linear.met) == (pytest.approx(0.75), True)
    assert (linear_1.value, linear_1.met) == (pytest.approx(1.125), False)
    assert (fewer.value, fewer.met) == (pytest.approx(1.5), False)
    assert (mae.value, mae.met) == (0.5, True)
    assert (nll.value, nll.met) == (-0.9, False)
    assert (ause.value, ause.met) == (2.0, False)


def test_claims_at_50_points_are_against_every_rgbd_method():
    numbers = invented()
    numbers["50", "rgb", "bdbf"] |= {"mae": 0.9, "nll": 0.5}
    numbers["50", "rgbd", "bdbf"] |= {"nll": 0.4}
    numbers["0", "rgb", "bdbf"]["mae"] = 3.0
    numbers |= {("500", "rgbd", name): {"mae": 0.5} for name in ("snap", "snap+log", "log", "bdbf")}
    numbers["500", "rgb", "bdbf"] = {"mae": 0.6}
    first, mae, rmse, _, nll, growth, blind = claims("low", numbers)
    assert (first.value, first.met) == (1.0, True)
    assert (growth.value, growth.met) == (pytest.approx(1.5 / 2), True)
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
    found = [verdict for half in ("mid", "low") for verdict in claims(half, table("nyu", half))]
    known = [verdict.met for verdict in found if not math.isnan(verdict.value)]
    assert all(known)
    assert len(known) == len(found) - 3  # it prints neither interpolation nor NEES
    assert claims("mid", table("nyu", "mid"))[0].value == pytest.approx(0.026 / 0.057)
