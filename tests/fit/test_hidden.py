# SPDX-License-Identifier: Apache-2.0
"""Points behind a surface that other points measured."""

import torch

from deepbasis.fit.hidden import find_hidden

WIDTH = 600


def grid(rows: int, columns: int) -> torch.Tensor:
    """Every second pixel, in image widths."""
    return torch.cartesian_prod(torch.arange(rows) * 2.0, torch.arange(columns) * 2.0) / WIDTH


def test_a_wall_seen_through_a_car_is_hidden_and_beside_it_is_not():
    """The sensor sees the wall behind the car between every third column of the car's points."""
    car = grid(12, 20) + 100 / WIDTH
    through = car.view(12, 20, 2)[4:7, 2:18:3].reshape(-1, 2) + 1 / WIDTH
    wall = grid(12, 40) + torch.tensor([100.0, 141.0]) / WIDTH
    position = torch.cat([car, through, wall])
    depth = torch.tensor([6.0] * len(car) + [30.0] * len(through) + [30.0] * len(wall))
    hidden = find_hidden(position, depth.log())
    assert hidden[len(car) : len(car) + len(through)].all()
    assert hidden.sum() == len(through)


def test_slopes_steps_and_no_points_hide_nothing():
    position = grid(30, 40)
    for depth in (1 + 20 * position[:, 0], torch.where(position[:, 1] < 0.05, 2.0, 9.0)):
        assert not find_hidden(position, depth.log()).any()
    assert find_hidden(torch.zeros(0, 2), torch.zeros(0)).shape == (0,)
