# SPDX-License-Identifier: Apache-2.0
"""Test frames completed by the pretrained models, with their failures."""

from deepbasis import model
from deepbasis.data.sources import subsample
from deepbasis.demo import Case, draw
from deepbasis_paper.targets.cells import source_of
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.pages import write_figure
from deepbasis_paper.targets.qualitative import RENDERED

MODELS = {
    "rooms": "indoor", "nyu": "indoor", "roads": "outdoor", "kitti": "outdoor", "vkitti2": "outdoor"
}  # fmt: skip
INDOOR = ("5%", "500", "lidar16", "tof8x8", "features300", "50", "5", "0")
POINTS = {
    "rooms": INDOOR,
    "nyu": INDOOR,
    "roads": ("lidar64", "lidar16", "500", "50", "5", "0"),
    "vkitti2": ("lidar64", "lidar16", "500", "50", "5", "0"),
    "kitti": ("sensor", "500", "50", "0"),
}
# Rows of one figure.
ROWS = 4
# Failures are searched among this many frames, with this many points.
SEARCHED, WITH = 24, "50"


def write(plan: Plan, _: str) -> None:
    """Draw some frames, evenly spread, at many kinds of points, and the two worst."""
    completer, frames = model.load(MODELS[plan.data]), source_of(plan).open("test")
    with_image = plan.with_images or plan.data in RENDERED
    words = POINTS[plan.data]
    shown = subsample(frames, len(words))
    cases = [
        Case.of(completer, shown[index % len(shown)], points, plan.seed)
        for index, points in enumerate(words)
    ]
    for start in range(0, len(cases), ROWS):
        figure = draw(cases[start : start + ROWS], with_image=with_image)
        write_figure(plan, f"cases-{1 + start // ROWS}", figure)
    searched = subsample(frames, SEARCHED)
    tried = [Case.of(completer, searched[i], WITH, plan.seed) for i in range(len(searched))]
    worst = max(tried, key=lambda case: case.errors[0])
    boldest = min(tried, key=lambda case: case.errors[2])
    write_figure(plan, "failures", draw([worst, boldest], with_image=with_image))
