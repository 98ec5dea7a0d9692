# SPDX-License-Identifier: Apache-2.0
"""Figures: colour maps that draw no edges, and bars that say what they cut off."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from deepbasis.commands.complete.inputs import Frame, Loaded
from deepbasis.commands.complete.outputs import draw
from deepbasis.plots import DEPTH_COLOURS, ERROR_COLOURS, show_map
from models import make_model


@pytest.mark.parametrize("name", [DEPTH_COLOURS, ERROR_COLOURS])
def test_lightness_rises_evenly(name):
    """Turbo and jet fail this: their lightness goes up and down, which looks like edges."""
    rgb = colormaps[name](np.linspace(0, 1, 64))[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    lightness = np.diff(116 * np.cbrt(luminance.clip(0.008856)) - 16)
    assert (lightness > -0.1).all()


@pytest.mark.parametrize(
    ("bounds", "extend"),
    [((0, 1), "neither"), ((0.5, 1), "min"), ((0, 0.5), "max"), ((0.2, 0.5), "both")],
)
def test_a_bar_marks_what_it_cuts_off(bounds, extend):
    ax = Figure().subplots()
    show_map(ax, torch.linspace(0, 1, 12).view(3, 4), "depth", DEPTH_COLOURS, bounds)
    assert ax.images[0].colorbar.extend == extend


@pytest.mark.parametrize(("size", "stacked"), [((32, 48), False), ((32, 100), True)])
def test_panels_of_wide_images_stand_below_each_other(size, stacked):
    image = np.zeros((*size, 3), np.uint8)
    answer = make_model(errors="independent").complete(image, [[1, 2, 3.0], [20, 9, 3.1]])
    figure = draw(
        Loaded(Frame("a", Path("a.png"), None, None, None), image, None, None, None), answer
    )
    panels = [ax for ax in figure.axes if ax.images]
    assert len(panels) == 3
    place = [ax.get_subplotspec() for ax in panels]
    assert len({one.rowspan.start for one in place}) == (3 if stacked else 1)
    assert len({one.colspan.start for one in place}) == (1 if stacked else 3)
