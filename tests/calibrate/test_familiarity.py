# SPDX-License-Identifier: Apache-2.0
"""What is learned from distorted frames."""

import math

import pytest
import torch

from deepbasis.calibrate.distortions import ZOOMS, zoom_name
from deepbasis.calibrate.familiarity import (
    PLAIN,
    Judged,
    focal_power,
    left_out_distances,
    worst,
)
from deepbasis.nets.familiarity import Familiarity


def test_the_worst_distortion_sets_the_widening():
    judged = {
        PLAIN: Judged(0.1, 0.02, 0.03, 0.02, 0.01),
        "zoom": Judged(0.5, 0.32, 0.03, 0.02, 0.01),
        "upside down": Judged(0.2, 0.05, 0.13, 0.04, 0.01),
    }
    found = worst(judged)
    assert (found["offset_from"], found["scale_from"]) == ("zoom", "upside down")
    assert found["offset_var"] == pytest.approx(0.30)
    assert found["scale"] == pytest.approx(3)


@pytest.mark.parametrize(("slope", "power"), [(0.4, 0.4), (-0.3, 0.0), (1.7, 1.0)])
def test_the_share_of_a_zoom_that_is_not_seen_is_found(slope, power):
    judged = {
        zoom_name(factor): Judged(0.1 + slope * math.log(factor), 0, 0, 0, 0) for factor in ZOOMS
    }
    judged[PLAIN] = Judged(0.1, 0, 0, 0, 0)
    assert focal_power(judged) == pytest.approx(power)


def test_frames_are_judged_without_their_distorted_copies(generator):
    x = torch.randn(64, 12, generator=generator)
    copies = torch.cat([x, x]) + 1
    changed = copies.clone()
    changed[[62, 63, 126, 127]] += 5 * torch.randn(4, 12, generator=generator)
    one, other = (left_out_distances(Familiarity(), x, c, (2, 3, 1, 6)) for c in (copies, changed))
    torch.testing.assert_close(one[62:], other[62:], rtol=0, atol=0)
    assert not torch.isclose(one[:62], other[:62]).any()
