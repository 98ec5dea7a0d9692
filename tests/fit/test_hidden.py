# SPDX-License-Identifier: Apache-2.0
"""Points behind a surface that other points measured."""

import torch

from deepbasis.fit import hidden
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


def test_many_points_are_searched_like_few(monkeypatch):
    """All pairs, and a few points at a time with those of no nearer neighbour left out."""
    draw = torch.Generator().manual_seed(0)
    position = torch.rand(3000, 2, generator=draw) * 0.2
    z = 2 * torch.rand(3000, generator=draw)
    apart = position[None] - position[:, None]
    hides = (apart.norm(dim=-1) <= hidden.REACH) & (z[:, None] - z[None] > hidden.NEARER)
    quadrant = 2 * (apart[..., 0] > 0) + (apart[..., 1] > 0)
    seen = torch.stack([(hides & (quadrant == q)).any(1) for q in range(4)])
    expected = seen.sum(0) >= hidden.QUADRANTS
    assert 0.05 < expected.double().mean() < 0.95
    for chunk in (hidden.CHUNK, 100):
        monkeypatch.setattr(hidden, "CHUNK", chunk)
        assert torch.equal(find_hidden(position, z), expected)
