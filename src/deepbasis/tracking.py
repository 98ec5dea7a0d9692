# SPDX-License-Identifier: Apache-2.0
"""Where pixels of one frame are in the next: pyramidal tracking of small patches.

Lucas and Kanade's method (IJCAI 1981), from coarse to fine over a pyramid: a patch around a pixel
is moved until it matches the next frame, by Gauss-Newton steps on the squared differences. Patches
are brought to one mean and contrast, so that a change of exposure does not matter.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.shapes import Bool, Float, UInt8

# Half the side of a patch without its centre, in pixels of each level.
RADIUS = 4
# Levels of the pyramid, at most, the smallest side of a level, and steps at each level.
LEVELS, SMALLEST, STEPS = 5, 16, 5
# A patch can be located if its grey values, 0..1, change by this much in every direction: the
# smaller eigenvalue of the mean squared gradient.
TEXTURE = 2e-5
# Correlation of the patches before and after from which a track counts as found.
CORRELATION = 0.8
# The coarsest level at which a track counts as found, 0 for the full size.
COARSEST = 2


class Tracks(NamedTuple):
    """Pixels of one frame, found again in the next."""

    before: Float[Tensor, "k 2"]
    """Row and column."""
    after: Float[Tensor, "k 2"]
    found: Bool[Tensor, "n"]
    """Which of the pixels that were searched for these are."""
    textured: Bool[Tensor, "n"]
    """Which of them should be found, unless they have left the image or it is another one."""


def to_grey(image: UInt8[Tensor, "1 3 h w"]) -> Float[Tensor, "1 1 h w"]:
    """Grey values in 0..1, slightly smoothed."""
    grey = image.float().mean(1, keepdim=True) / 255
    return F.avg_pool2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), 3, 1)


def lattice(size: tuple[int, int], count: int) -> Float[Tensor, "k 2"]:
    """Rows and columns of about this many pixels, spread evenly over an image."""
    height, width = size
    step = max((height * width / count) ** 0.5, 1.0)
    lines = (
        ((torch.arange(max(int(n / step), 1)) + 0.5) * n / max(int(n / step), 1)).floor()
        for n in size
    )
    return torch.cartesian_prod(*lines)


@torch.no_grad()
def track(
    before: Float[Tensor, "1 1 h w"], after: Float[Tensor, "1 1 h w"], places: Float[Tensor, "n 2"]
) -> Tracks:
    """Find pixels of one frame in the next.

    A pixel is not found if its patch has no texture, looks different in the next frame, or leaves
    the image.
    """
    height, width = before.shape[2:]
    pyramid = [(before, after)]
    while len(pyramid) < LEVELS and min(pyramid[-1][0].shape[2:]) >= 2 * SMALLEST:
        pyramid.append(tuple(F.avg_pool2d(one, 2) for one in pyramid[-1]))  # type: ignore[arg-type]
    move = _shift(*pyramid[-1]).expand_as(places) * 2.0 ** (len(pyramid) - 1)
    good = textured = torch.zeros(len(places), dtype=torch.bool)
    for level in reversed(range(len(pyramid))):
        scale = 2.0**level
        here = (places + 0.5) / scale - 0.5
        found, sharp, alike = _match(*pyramid[level], here, move / scale)
        better = sharp & (alike > CORRELATION)
        # What is blurred or without texture at a fine level is as a coarser level found it.
        move = torch.where((better | ~good)[:, None], found * scale, move)
        good = good | (better & (level <= COARSEST))
        if level == min(COARSEST, len(pyramid) - 1):  # at finer levels noise may look like texture
            textured = sharp
    found = places + move
    inside = ((found > -0.5) & (found < found.new_tensor([height, width]) - 0.5)).all(1)
    good = good & inside
    return Tracks(places[good], found[good], good, textured)


def _shift(before: Float[Tensor, "1 1 h w"], after: Float[Tensor, "1 1 h w"]) -> Float[Tensor, "2"]:
    """Rows and columns by which most of the image moved: the largest correlation of all shifts.

    A shift that leaves less than half of the image in view is not considered.
    """
    height, width = before.shape[2:]
    down, right = height // 2, width // 2
    one, other = (x - x.mean() for x in (before, after))
    there = F.pad(torch.ones_like(other), (right, right, down, down))
    padded = F.pad(other, (right, right, down, down))
    inside = torch.ones_like(one)
    count = F.conv2d(there, inside)
    # Means and squares over the overlap of each shift.
    mean_one, mean_other = F.conv2d(there, one) / count, F.conv2d(padded, inside) / count
    cov = F.conv2d(padded, one) / count - mean_one * mean_other
    var_one = F.conv2d(there, one.square()) / count - mean_one.square()
    var_other = F.conv2d(padded.square(), inside) / count - mean_other.square()
    alike = cov / (var_one * var_other).clamp(min=1e-12).sqrt()
    alike = torch.where(count >= height * width / 2, alike, -1.0)[0, 0]
    row, column = divmod(int(alike.argmax()), alike.shape[1])
    return torch.tensor([row - down, column - right], dtype=before.dtype)


def _match(
    before: Float[Tensor, "1 1 h w"],
    after: Float[Tensor, "1 1 h w"],
    places: Float[Tensor, "k 2"],
    move: Float[Tensor, "k 2"],
) -> tuple[Float[Tensor, "k 2"], Bool[Tensor, "k"], Float[Tensor, "k"]]:
    """Refine the moves of patches at one level; which have texture, and how alike they are."""
    patch = _patches(before, places)
    down = (_patches(before, places, 1.0) - _patches(before, places, -1.0)) / 2
    right = (_patches(before, places, 0.0, 1.0) - _patches(before, places, 0.0, -1.0)) / 2
    slope = torch.stack([down, right], -1)
    slope = slope - slope.mean(1, keepdim=True)
    template = patch - patch.mean(1, keepdim=True)
    normal = slope.mT @ slope / patch.shape[1]
    a, b, c = normal[:, 0, 0], normal[:, 0, 1], normal[:, 1, 1]
    weaker = (a + c) / 2 - (((a - c) / 2).square() + b.square()).sqrt()
    sharp = weaker > TEXTURE
    normal = normal + TEXTURE * torch.eye(2)
    size = template.norm(dim=1, keepdim=True)
    other = template
    for step in range(STEPS + 1):
        other = _patches(after, places + move)
        other = other - other.mean(1, keepdim=True)
        other = other * (size / other.norm(dim=1, keepdim=True).clamp(min=1e-6)).clamp(0.5, 2)
        if step < STEPS:
            wrong = (other - template)[..., None]
            change = torch.linalg.solve(normal, slope.mT @ wrong / patch.shape[1])[..., 0]
            move = move - change.clamp(-RADIUS, RADIUS)
    both = size[:, 0] * other.norm(dim=1)
    return move, sharp, (template * other).sum(1) / both.clamp(min=1e-12)


def _patches(
    image: Float[Tensor, "1 1 h w"],
    places: Float[Tensor, "k 2"],
    down: float = 0.0,
    right: float = 0.0,
) -> Float[Tensor, "k p"]:
    """Grey values around places between the pixels."""
    height, width = image.shape[2:]
    reach = torch.arange(-RADIUS, RADIUS + 1, dtype=places.dtype)
    row = (places[:, 0, None] + reach + down)[:, :, None]
    column = (places[:, 1, None] + reach + right)[:, None, :]
    side = len(reach)
    y = ((2 * row + 1) / height - 1).expand(-1, side, side)
    x = ((2 * column + 1) / width - 1).expand(-1, side, side)
    grid = torch.stack([x, y], -1).flatten(1, 2)[None]
    found = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
    return found[0, 0]
