# SPDX-License-Identifier: Apache-2.0
"""The points of one image, prepared for the prediction of every pixel.

Square blocks of pixels share their neighbours, so that these are searched, and their covariance is
factored, once for a block. Neighbours change from block to block: at shared corners, blocks are
brought to the mean of their predictions, and they overlap by a ring of pixels, in which their
predictions are blended, so that no borders are seen.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.fit.kernel import Kernel
from deepbasis.fit.neighbours import RINGS, Surroundings, choose_side
from deepbasis.shapes import Float, Int

# Neighbours of a place, by default.
NEIGHBOURS = 12
# Neighbours of a block are those nearest to it as a learned kernel measures distances, except that
# distances in the image count this many times as much. (The embedding alone would choose points of
# a surface that are far away.)
IMAGE_DISTANCE = 6.0
# Conditional variance, relative to 1 / beta, above which a mismatch of blocks is removed entirely.
FREE = 0.3
# Blocks of which neighbours are searched, or covariances computed, at a time.
BLOCKS = 8192
# Coordinate of missing neighbours, in image widths: so far away that they correlate with nothing.
NOWHERE = 1e6


@dataclass(frozen=True)
class Field:
    """The points of one image, prepared for prediction at every pixel."""

    kernel: Kernel
    guide: Float[Tensor, "c h w"] | None
    amplitude: Float[Tensor, "1 h w"] | None
    size: tuple[int, int]
    places: Float[Tensor, "_ f"]
    noise: Float[Tensor, "_"]
    index: Int[Tensor, "_"]  # of the points in the tree; those of weight 0 are not in it
    around: Surroundings
    side: int
    ring: int
    k: int

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        x: Float[Tensor, "n f"],
        size: tuple[int, int],
        guide: Float[Tensor, "c h w"] | None = None,
        weight: Float[Tensor, "n"] | None = None,
        amplitude: Float[Tensor, "1 h w"] | None = None,
        *,
        k: int = NEIGHBOURS,
    ) -> "Field":
        """Points at `x` in an image of height and width `size`; `guide` as in `locate`."""
        weight = torch.ones_like(x[:, 0]) if weight is None else weight
        check_places(x, weight, k)
        used = (weight > 0).nonzero()[:, 0]
        pixels = x[used, :2].detach().double().cpu() * size[1]
        # So that the choice among equally distant points depends on their places only.
        order = (pixels @ pixels.new_tensor([size[1] + 1.0, 1.0])).argsort(stable=True)
        used, pixels = used[order.to(used.device)], pixels[order]
        side = choose_side(pixels, size, k)
        index = torch.cat([used, torch.arange(len(x), len(x) + k, device=used.device)])
        places = scale_places(kernel, x, weight, k)
        ring = RINGS.get(side, 0)
        around = Surroundings(pixels)
        return cls(kernel, guide, amplitude, size, *places, index, around, side, ring, k)

    @property
    def down(self) -> int:
        """Number of rows of blocks."""
        return -(-self.size[0] // self.side)

    @property
    def across(self) -> int:
        """Number of blocks in a row of these."""
        return -(-self.size[1] // self.side)

    @cached_property
    def near(self) -> Int[Tensor, "_ k"]:
        """Neighbours of all blocks, in reading order."""
        row, column = (torch.arange(count) * self.side for count in (self.down, self.across))
        centre = torch.cartesian_prod(row, column).double() + (self.side - 1) / 2
        points, middle = self.places[self.index], None
        if self.amplitude is not None:  # a learned kernel; colours tell surfaces apart less well
            stretch = points.new_ones(points.shape[1])
            stretch[:2] = IMAGE_DISTANCE
            points = points * stretch
            middle = self.middle * stretch
        within = self.side / 2 + self.ring
        found = []
        for some in torch.split(torch.arange(len(centre)), BLOCKS):
            features = None if middle is None else (points, middle[some.to(middle.device)])
            found.append(self.around.of(centre[some], self.taken, within, torch.inf, features))
        return self.index[torch.cat(found).to(self.index.device)].int()

    def near_of(self, start: int, stop: int) -> Int[Tensor, "q k"]:
        """Neighbours of some rows of blocks: those that surround the block, and first of all the
        points of the block itself and of its ring, so that a measured pixel always has its own
        measurement among them.
        """
        return self.near[start * self.across : stop * self.across]

    @property
    def taken(self) -> int:
        """Number of neighbours of a block: none is missing, if there is any."""
        return min(self.k, max(len(self.index) - self.k, 1))

    @cached_property
    def middle(self) -> Float[Tensor, "q f"]:
        """Mean of the scaled places of each block."""
        return self.places_of(self.pixels_of(0, self.down)).mean(1)

    def pixels_of(self, start: int, stop: int, *, ring: bool = False) -> Int[Tensor, "q p"]:
        """The pixels of some rows of blocks, block by block, each with its ring of pixels if asked
        for, as indices in reading order; beyond the border, those at the border.
        """
        pixels = self._pixels_with_rings if ring else self._pixels
        return pixels[start * self.across : stop * self.across]

    @cached_property
    def _pixels(self) -> Int[Tensor, "q p"]:
        return self._find_pixels(0)

    @cached_property
    def _pixels_with_rings(self) -> Int[Tensor, "q p"]:
        return self._find_pixels(self.ring)

    def _find_pixels(self, ring: int) -> Int[Tensor, "q p"]:
        (height, width), side, device = self.size, self.side, self.places.device
        inside = torch.arange(-ring, side + ring, device=device)
        rows, columns = (
            (torch.arange(count, device=device)[:, None] * side + inside).clamp(0, length - 1)
            for count, length in ((self.down, height), (self.across, width))
        )
        return (rows[:, None, :, None] * width + columns[:, None]).flatten(2).flatten(0, 1)

    def in_reading_order(self, blocks: Tensor) -> Tensor:
        """Numbers of the pixels of rows of blocks, [q, p, c] to [pixels, c], in reading order."""
        side, width = self.side, self.size[1]
        rows = blocks.view(-1, self.across, side, side, blocks.shape[-1]).transpose(1, 2)
        return rows.reshape(-1, self.across * side, blocks.shape[-1])[:, :width].flatten(0, 1)

    def without_ring(self, blocks: Float[Tensor, "q p *c"]) -> Float[Tensor, "q j *c"]:
        """Of blocks with their rings, the pixels of the blocks."""
        inside, whole = slice(self.ring, self.ring + self.side), len(self.ramp)
        square = blocks.reshape(len(blocks), whole, whole, *blocks.shape[2:])
        return square[:, inside, inside].flatten(1, 2)

    @cached_property
    def ramp(self) -> Float[Tensor, "_"]:
        """Weights across a block and its ring, which fall to its border; those of two neighbouring
        blocks add up to 1.
        """
        steps = torch.arange(self.side + 2 * self.ring, device=self.places.device)
        ramp = (torch.minimum(steps, steps.flip(0)) + 0.5) / max(2 * self.ring, 0.5)
        return ramp.clamp(max=1).to(self.places)

    def finish(
        self, pixels: Float[Tensor, "2 _"], blocks: Float[Tensor, "2 _"]
    ) -> Float[Tensor, "3 _"]:
        """Mean, model variance and ratio d of all pixels, in reading order.

        Args:
            pixels: mean without correction, and model variance.
            blocks: corrections and conditional variances of all blocks with their rings.
        """
        correction, left = self.join(blocks.view(2, -1, len(self.ramp) ** 2))
        if self.amplitude is not None:
            s = self.amplitude.flatten()
            correction, left = s * correction, s.square() * left
        mean, model_var = pixels
        return torch.stack([mean + correction, model_var, left + self.kernel.nugget])

    def join(self, maps: Float[Tensor, "2 q p"]) -> Float[Tensor, "2 _"]:
        """Corrections and conditional variances of all pixels, in reading order, from those of all
        blocks with their rings, which are blended.
        """
        left = maps[1]
        if self.ring:
            maps = maps + (left / FREE).clamp(max=1) * self._mismatch(maps)
        weight = (self.ramp[:, None] * self.ramp).flatten().to(maps)
        whole = torch.cat([maps, torch.ones_like(maps[:1])]) * weight
        sizes = tuple(count * self.side + 2 * self.ring for count in (self.down, self.across))
        sums = F.fold(whole.mT, sizes, len(self.ramp), stride=self.side)[:, 0]
        rows, columns = (slice(self.ring, self.ring + size) for size in self.size)
        sums = sums[:, rows, columns].flatten(1)
        correction, left = sums[:2] / sums[2]
        if self.ring:
            left = torch.minimum(left.clamp(min=0), self.most)
        return torch.stack([correction, left])

    @cached_property
    def most(self) -> Float[Tensor, "_"]:
        """Conditional variance of each pixel, given nothing but a point that lies in it."""
        used, points = self.index[: -self.k], torch.from_numpy(self.around.points)
        row, column = points.round().long().to(used.device).unbind(-1)
        height, width = self.size
        pixel = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        apart = torch.linalg.vector_norm(self.places[used] - self.pixel_places[pixel], dim=-1)
        alone = 1 - self.kernel.at_distance(apart).square() / (1 + self.noise[used])
        most = self.places.new_ones(height * width)
        return most.scatter_reduce(0, pixel, alone.to(most), "amin")

    def _mismatch(self, maps: Float[Tensor, "c q p"]) -> Float[Tensor, "c q p"]:
        """What blocks lack of the mean of the blocks that share a corner, linear between corners.

        Far from points, the neighbours of two blocks may differ much, and so do their predictions.
        """
        own = self._corners(maps)
        both = torch.cat([own, torch.ones_like(own[:1])])
        parts = [F.pad(both[..., i, j], (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1)]
        total = torch.stack(parts).sum(0)
        mean = (total[:-1] / total[-1]).unfold(1, 2, 1).unfold(2, 2, 1)
        steps = torch.arange(-self.ring, self.side + self.ring, device=own.device)
        share = ((steps + 0.5) / self.side).to(own)
        ends = torch.stack([1 - share, share])
        return torch.einsum("cdaij,iy,jx->cdayx", mean - own, ends, ends).reshape(maps.shape)

    def _corners(self, blocks: Float[Tensor, "c q p"]) -> Float[Tensor, "c d a 2 2"]:
        """Means of the pixels around each corner of blocks with rings, on both sides."""
        side = len(self.ramp)
        square = blocks.reshape(-1, self.down, self.across, side, side)
        first, last = slice(0, 2 * self.ring), slice(-2 * self.ring, None)
        rows = [
            torch.stack([square[..., i, j].mean((-2, -1)) for j in (first, last)], -1)
            for i in (first, last)
        ]
        return torch.stack(rows, -2)

    @cached_property
    def pixel_places(self) -> Float[Tensor, "_ f"]:
        """Scaled places of all pixels."""
        height, width = self.size
        axes = (torch.arange(count, device=self.places.device) for count in (height, width))
        places = torch.cartesian_prod(*axes).to(self.places) / width
        if self.guide is not None:
            places = torch.cat([places, self.guide.movedim(0, -1).flatten(0, 1)], -1)
        return self.kernel.scale(places)

    def places_of(self, pixels: Int[Tensor, "*_"]) -> Float[Tensor, "*_ f"]:
        """Scaled places of pixels."""
        return self.pixel_places.index_select(0, pixels.flatten()).view(*pixels.shape, -1)


def scale_places(
    kernel: Kernel, x: Float[Tensor, "n f"], weight: Float[Tensor, "n"], k: int
) -> tuple[Float[Tensor, "_ f"], Float[Tensor, "_"]]:
    """Scaled places and noise of the points, and of k missing ones, all far from each other."""
    missing = x.new_zeros(k, x.shape[1])
    missing[:, 0] = NOWHERE * torch.arange(1, k + 1)
    noise = torch.cat([kernel.noise(weight), weight.new_ones(k)])
    return kernel.scale(torch.cat([x, missing])), noise


def check_places(x: Tensor, z: Tensor, k: int) -> None:
    """Refuse places that are not those of `z`."""
    if x.shape[:-1] != z.shape or x.shape[-1] < 2:
        raise ValueError(
            f"`x` is {list(x.shape)} for {list(z.shape)} points; expected [..., n, f]: row and "
            "column in image widths, then any features"
        )
    if k < 1:
        raise ValueError(f"`k` is {k}; a point needs at least 1 neighbour")
