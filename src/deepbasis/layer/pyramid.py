# SPDX-License-Identifier: Apache-2.0
"""Bases at several scales, read at points and at pixels as if they were of full size."""

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.linalg import vector_norm

from deepbasis.shapes import Float

# Pixels predicted at a time, over the whole batch.
BLOCK_PIXELS = 5120
# Matrix products are fastest if the number of columns is a multiple of this.
ALIGNED = 16


class Pyramid:
    """Bases at several scales, read as if upsampled to one size, with the constant 1 in front.

    Bilinear interpolation is separable. Columns are interpolated once, for every scale; rows only
    where they are read, by the same two taps for a point and for a block of pixels. So a
    point's bases are those of its pixel, and no more is built than is read. In memory, all bases of
    a pixel are side by side (channels last): points and blocks of pixels read them in one go.
    """

    def __init__(self, scales: Sequence[Float[Tensor, "b _ _ _"]], size: tuple[int, int]) -> None:
        self.size = size
        self.batch = len(scales[0])
        if not any(scale.requires_grad for scale in scales):
            scales = [scale.contiguous(memory_format=torch.channels_last) for scale in scales]
        self.scales = [_stretch_columns(scale, size[1]) for scale in scales]
        self.taps = [_row_taps(scale, size[0]) for scale in scales]

    def at(self, v: Float[Tensor, "b n"], u: Float[Tensor, "b n"]) -> Float[Tensor, "b n m"]:
        """Bases at rows v and columns u; between pixels, bilinear in the four around a point."""
        height, width = self.size
        top, down = _whole_and_rest(v, height)
        left, right = _whole_and_rest(u, width)

        def read(scale: Tensor, row: Tensor, column: Tensor) -> Tensor:
            index = (row * width + column)[..., None].expand(-1, -1, scale.shape[1])
            return scale.flatten(2).mT.gather(1, index)

        def read_column(scale: Tensor, column: Tensor, row: Tensor) -> Tensor:
            above, below, lower = _taps(scale, row, height)
            upper = read(scale, above, column)
            return upper.lerp(read(scale, below, column), lower[..., None])

        def read_row(scale: Tensor, row: Tensor) -> Tensor:
            values = read_column(scale, left, row)
            if not right.any():
                return values
            beside = read_column(scale, (left + 1).clamp(max=width - 1), row)
            return values.lerp(beside, right[..., None].to(scale.dtype))

        parts = [self._constant(v.shape[1:]).mT]
        for scale in self.scales:
            values = read_row(scale, top)
            if down.any():
                next_row = read_row(scale, (top + 1).clamp(max=height - 1))
                values = values.lerp(next_row, down[..., None].to(scale.dtype))
            parts.append(values)
        return torch.cat(parts, -1)

    def rows(self, start: int, stop: int) -> Float[Tensor, "b m p"]:
        """Bases of all pixels in a block of rows."""
        parts = [self._constant((stop - start, self.size[1]))]
        for scale, taps in zip(self.scales, self.taps, strict=True):
            parts.append(_read_rows(scale, taps, start, stop))
        return torch.cat(parts, 1).flatten(2)

    def combine(self, weights: Float[Tensor, "b m"]) -> Float[Tensor, "b h w"]:
        """Weighted sum of all bases at every pixel: each scale is summed before it is upsampled."""
        total = weights[:, :1, None].expand(-1, *self.size)
        shares = torch.split(weights[:, 1:], [scale.shape[1] for scale in self.scales], 1)
        for scale, taps, share in zip(self.scales, self.taps, shares, strict=True):
            part = torch.einsum("bchw,bc->bhw", scale, share)[:, None]
            total = total + _read_rows(part, taps, 0, self.size[0])[:, 0]
        return total

    def pixels(self, start: int, stop: int) -> Float[Tensor, "b p c"]:
        """Bases of all pixels in a block of rows, pixel by pixel; columns of zeros make the number
        of columns a multiple of `ALIGNED`.
        """
        one = self._constant((stop - start, self.size[1])).movedim(1, -1)
        parts = [one]
        for scale, taps, blend in zip(self.scales, self.taps, self._blends, strict=True):
            rows = scale.movedim(1, -1)
            if taps is not None:
                some = slice(int(taps[0][start]), int(taps[1][stop - 1]) + 1)
                mixed = blend[start:stop, some] @ rows[:, some].flatten(2)
                parts.append(mixed.view(*one.shape[:3], -1))
            else:
                parts.append(rows[:, start:stop])
        empty = -sum(part.shape[-1] for part in parts) % ALIGNED
        parts.append(torch.zeros_like(one).expand(-1, -1, -1, empty))
        return torch.cat(parts, -1).flatten(1, 2)

    @cached_property
    def _blends(self) -> list[Tensor]:
        """Share of each row of each scale in each row of the full height."""
        return [
            scale.new_zeros(0) if taps is None else _blend(scale, taps)
            for scale, taps in zip(self.scales, self.taps, strict=True)
        ]

    def _constant(self, shape: tuple[int, ...]) -> Tensor:
        return self.scales[0].new_ones(()).expand(self.batch, 1, *shape)


def project(
    pyramid: Pyramid, onto: Float[Tensor, "b k m"]
) -> tuple[Float[Tensor, "b p"], Float[Tensor, "b p"]]:
    """Project each pixel's bases onto k rows: the first product, and the squared norm of the rest.

    With the weights' mean as the first row and their root as the others, these are the mean and
    the model variance. Differentiable, at the price of the full-size basis.
    """
    out = onto @ pyramid.rows(0, pyramid.size[0])
    return out[:, 0], out[:, 1:].square().sum(1)


@torch.no_grad()
def project_in_blocks(
    pyramid: Pyramid, onto: Float[Tensor, "b k m"]
) -> tuple[Float[Tensor, "b p"], Float[Tensor, "b p"]]:
    """`project` without its memory: blocks of rows, one after the other."""
    batch, (height, width) = len(onto), pyramid.size
    columns = F.pad(onto, (0, -onto.shape[-1] % ALIGNED)).mT
    step = max(1, BLOCK_PIXELS // (width * max(1, batch)))
    first, squares = onto.new_empty(2, batch, height * width)
    for start in range(0, height, step):
        stop = min(start + step, height)
        out, pixels = pyramid.pixels(start, stop) @ columns, slice(start * width, stop * width)
        first[:, pixels] = out[..., 0]
        squares[:, pixels] = vector_norm(out[..., 1:], dim=-1).square_()
    return first, squares


def _blend(scale: Tensor, taps: tuple[Tensor, Tensor, Tensor]) -> Float[Tensor, "h r"]:
    """Share of each row of a scale in each row of the full height."""
    above, below, share = taps
    blend = scale.new_zeros(len(share), scale.shape[2])
    blend.scatter_(1, above[:, None], 1 - share[:, None])
    return blend.scatter_add_(1, below[:, None], share[:, None])


def _stretch_columns(scale: Tensor, width: int) -> Tensor:
    if scale.shape[3] == width:
        return scale
    return F.interpolate(scale, (scale.shape[2], width), mode="bilinear", align_corners=False)


def _read_rows(
    scale: Tensor, taps: tuple[Tensor, Tensor, Tensor] | None, start: int, stop: int
) -> Tensor:
    """Rows of one scale, interpolated where it is lower than the full height."""
    if taps is None:
        return scale[:, :, start:stop]
    above, below, share = (tap[start:stop] for tap in taps)
    return torch.lerp(scale[:, :, above], scale[:, :, below], share[:, None])


def _whole_and_rest(place: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The pixel at or before each place, and how far the place is from it; 0 beyond the border."""
    inside = place.clamp(0, size - 1)
    whole = inside.floor()
    return whole.long(), inside - whole


def _row_taps(scale: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """For every row of the full height the taps of `_taps`; None if `scale` has that height."""
    if scale.shape[2] == height:
        return None
    return _taps(scale, torch.arange(height, device=scale.device), height)


def _taps(scale: Tensor, row: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor]:
    """For rows of the full height the rows of `scale` above and below them, and the share of the
    latter; pixel centres are at half integers, as with `align_corners=False`.
    """
    last = scale.shape[2] - 1
    position = ((row.to(scale.dtype) + 0.5) * (scale.shape[2] / height) - 0.5).clamp(0, last)
    above = position.long()
    return above, (above + 1).clamp(max=last), position - above


def check_scales(scales: Sequence[Tensor], batch: int, channels: int) -> None:
    """Refuse bases that are not one tensor for each scale, with `channels` channels in all."""
    shapes = [list(scale.shape) for scale in scales]
    if not scales or any(
        len(shape) != 4 or shape[0] != batch or min(shape[1:]) < 1 for shape in shapes
    ):
        raise ValueError(
            f"bases are {shapes}; expected tensors [{batch}, channels, height, width], "
            f"one for each scale and {batch} images as in the sparse depth"
        )
    if sum(shape[1] for shape in shapes) != channels:
        raise ValueError(
            f"bases have {[shape[1] for shape in shapes]} channels, "
            f"{sum(shape[1] for shape in shapes)} in all; the layer was made for {channels}"
        )
