# SPDX-License-Identifier: Apache-2.0
"""The fit and the prediction of one image in operations that ONNX has.

The same mathematics as `fit.correlated` and `fit.evidence`, for a fixed maximum of points: those
that are not used have weight 0. What is different:

- Neighbours are found by comparing all distances, not by a tree. Of points that are equally far, as
  many are that lie at whole pixels, others may be taken.
- Where an eigendecomposition makes EM steps cheap, each step inverts the 63 x 63 matrix. It is the
  only matrix function: `spd_inverse`, which becomes a loop of ONNX.
- Blocks of pixels that share neighbours are 8 x 8 pixels, whatever the number of points; Python
  takes smaller ones where more than 2 points on average, or more than 12, are in a block.
- All bases are upsampled to full size, which takes about 2 kB a pixel.
- Wrong points are not left out (`robust=False`); there are no Huber weights, no samples and no
  warnings.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import latent
from deepbasis.fit import Kernel
from deepbasis.fit.field import FREE, IMAGE_DISTANCE, NEIGHBOURS
from deepbasis.fit.kernel import LEAST_NOISE, ROUGHER
from deepbasis.fit.linear import SMALLEST_NOISE
from deepbasis.fit.neighbours import BITS, CANDIDATES, RINGS, SIDES, SPARSER
from deepbasis.layer import BasisFit
from deepbasis.layer.calibration_table import TINY
from deepbasis.shapes import Bool, Float, Int

# Of the blocks of pixels, and both together.
SIDE, RING = SIDES[0], RINGS[SIDES[0]]
WHOLE = SIDE + 2 * RING
# Degrees of freedom at which quantiles are stored, and between which their logs are interpolated.
LEAST_DOF, MOST_DOF, DOF_KNOTS = 0.2, 1e8, 1024
FAR = 1e30
# An integer beyond all codes of places, whose product with the number of points is exact.
LAST = 2.0**40


@torch.library.custom_op("deepbasis::spd_inverse", mutates_args=())
def spd_inverse(a: Tensor) -> Tensor:
    """Inverse of symmetric positive definite matrices."""
    return torch.linalg.inv(a)


@spd_inverse.register_fake
def _(a: Tensor) -> Tensor:
    return torch.empty_like(a)


class Neighbours(NamedTuple):
    """Indices of points, and which of them are there."""

    which: Int[Tensor, "q k"]
    there: Bool[Tensor, "q k"]


class Measured(NamedTuple):
    """The points of an image, those in use first."""

    used: Bool[Tensor, "n"]
    place: Float[Tensor, "n f"]
    """Scaled, as kernels take it."""
    position: Float[Tensor, "n 2"]
    """Row and column in image widths, rounded to float32."""
    noise: Float[Tensor, "n"]
    values: Float[Tensor, "n c"]
    """Bases and log depth, divided by the amplitude; 0 where not used."""
    worth: Float[Tensor, ""]
    """`ErrorModel.worth`."""


class Weights(NamedTuple):
    """What EM finds."""

    mean: Float[Tensor, "m"]
    cov: Float[Tensor, "m m"]
    beta: Float[Tensor, ""]


class Blocks:
    """Blocks of pixels with their rings in an image of this size; see `fit.field`."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.down, self.right = (height + SIDE - 1) // SIDE, (width + SIDE - 1) // SIDE
        inside = torch.arange(-RING, SIDE + RING)
        self.row = (torch.arange(self.down)[:, None] * SIDE + inside).clamp(0, height - 1)
        self.column = (torch.arange(self.right)[:, None] * SIDE + inside).clamp(0, width - 1)
        ramp = (torch.minimum(inside, inside.flip(0)) + RING + 0.5) / (2 * RING)
        ramp = ramp.clamp(max=1.0).double()
        self.weight = (ramp[:, None] * ramp).flatten()

    def positions(self) -> Float[Tensor, "2 h w"]:
        """Row and column of each pixel, in image widths."""
        size = (self.height, self.width)
        row = torch.arange(self.height).float()[:, None].expand(size)
        column = torch.arange(self.width).float()[None].expand(size)
        return torch.stack([row, column]) / self.width

    def split(self, maps: Float[Tensor, "c h w"]) -> Float[Tensor, "q p c"]:
        """Maps block by block; beyond the border, the pixels at the border."""
        whole = maps.index_select(1, self.row.flatten()).index_select(2, self.column.flatten())
        parts = whole.view(-1, self.down, WHOLE, self.right, WHOLE).permute(1, 3, 2, 4, 0)
        return parts.reshape(self.down * self.right, WHOLE * WHOLE, maps.shape[0])

    def own(self, parts: Float[Tensor, "q _ c"]) -> Float[Tensor, "q _ c"]:
        """Without the rings."""
        inside = slice(RING, RING + SIDE)
        parts = parts.view(self.down * self.right, WHOLE, WHOLE, parts.shape[2])
        return parts[:, inside, inside].flatten(1, 2)

    def join(self, values: Float[Tensor, "q p"]) -> Float[Tensor, "h w"]:
        """A map from the pixels of all blocks, without rings."""
        rows = values.view(self.down, self.right, SIDE, SIDE).transpose(1, 2)
        joined = rows.reshape(self.down * SIDE, self.right * SIDE)
        return joined[: self.height, : self.width]

    def blend(
        self, values: Float[Tensor, "q p"], left: Float[Tensor, "q p"]
    ) -> Float[Tensor, "h w"]:
        """A map from all blocks with their rings: means, with weights that fall to the border."""
        share = self._add_up(self.weight.expand_as(values))
        level = values + (left / FREE).clamp(max=1.0) * self._mismatch(values)
        return self._add_up(level * self.weight) / share

    def _mismatch(self, values: Float[Tensor, "q p"]) -> Float[Tensor, "q p"]:
        """`Field._mismatch`."""
        own = self._corners(values)
        total, count = (
            F.pad(part[..., 0, 0], (0, 1, 0, 1))
            + F.pad(part[..., 0, 1], (1, 0, 0, 1))
            + F.pad(part[..., 1, 0], (0, 1, 1, 0))
            + F.pad(part[..., 1, 1], (1, 0, 1, 0))
            for part in (own, torch.ones_like(own))
        )
        mean = total / count
        above = torch.stack([mean[:-1, :-1], mean[:-1, 1:]], -1)
        below = torch.stack([mean[1:, :-1], mean[1:, 1:]], -1)
        off = torch.stack([above, below], -2) - own
        share = ((torch.arange(-RING, SIDE + RING) + 0.5) / SIDE).double()
        ends = torch.stack([1 - share, share])
        return (ends.mT @ off @ ends).reshape(values.shape)

    def _corners(self, values: Float[Tensor, "q p"]) -> Float[Tensor, "d a 2 2"]:
        square = values.view(self.down, self.right, WHOLE, WHOLE)
        first, last = slice(0, 2 * RING), slice(WHOLE - 2 * RING, WHOLE)
        rows = [
            torch.stack([square[:, :, i, j].mean((2, 3)) for j in (first, last)], -1)
            for i in (first, last)
        ]
        return torch.stack(rows, -2)

    def _add_up(self, values: Float[Tensor, "q p"]) -> Float[Tensor, "h w"]:
        rows = values.view(self.down, self.right, WHOLE, WHOLE).permute(0, 2, 1, 3)
        summed = _overlap(_overlap(rows).movedim((1, 2), (0, 1))).mT
        return summed[RING : RING + self.height, RING : RING + self.width]


class FitGraph(nn.Module):
    """`BasisFit` with correlated errors, for one image and at most `points` points.

    Args:
        layer: a trained layer.
        points: the maximum.
        embedding: whether the kernel is learned: an embedding and an amplitude take the place of
            the image.
    """

    prior_mean: Tensor
    prior_root: Tensor
    offset: Tensor
    """Of the weights before the root of the prior's covariance, to add 1 to the constant."""
    quantiles: Tensor
    reversed_bits: Tensor

    def __init__(self, layer: BasisFit, points: int, *, embedding: bool) -> None:
        super().__init__()
        model = layer.correlated
        if not (points >= CANDIDATES * NEIGHBOURS and model.noise.shape > 0):
            raise ValueError(
                f"the fit needs a learned noise, and at least {CANDIDATES * NEIGHBOURS} points as "
                f"the maximum, not {points}"
            )
        self.points, self.embedding = points, embedding
        self.kernel: Kernel = model.kernel
        self.usual_noise = model.usual_noise
        self.steps, self.tol = int(layer.em["steps"]), float(layer.em["tol"])
        self.alpha, self.noise = layer.prior.alpha.value, model.noise.value
        prior = layer.prior.value
        self.register_buffer("prior_mean", prior.mean.double())
        self.register_buffer("prior_root", prior.root.double())
        constant = torch.eye(len(prior.mean), dtype=torch.float64)[0]
        self.register_buffer("offset", torch.linalg.solve(self.prior_root, constant))
        table = model.calibration
        self.table = {
            name: [float(x) for x in getattr(table, name)]
            for name in ("points", "factor", "dof", "width")
        }
        self.factors = float(table.noise_factor), float(table.model_factor)
        self.register_buffer("quantiles", _quantiles())
        bits = points.bit_length()
        reverse = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(points)]
        self.register_buffer("reversed_bits", torch.tensor(reverse).double())

    def forward(
        self, points: Float[Tensor, "n 4"], guide: Tensor, *maps: Tensor
    ) -> tuple[Tensor, ...]:
        """Log depth, its variance, depth, std, and the bounds of the 90 % interval.

        Args:
            points: rows of `u v metres sigma`; metres 0 for those not used, sigma 0 if not known.
            guide: the image or, with a learned kernel, its embedding.
            maps: with a learned kernel, the amplitude; then `scale` and `offset_var` of a
                `Widening` of the prior, and the bases, coarse to fine.
        """
        size = (guide.shape[2], guide.shape[3])
        amplitude = maps[0][0, 0] if self.embedding else None
        features = guide[0] if self.embedding else guide[0].float() / 255
        widening, *scales = maps[1:] if self.embedding else maps
        phi = torch.cat(
            [torch.ones(1, 1, *size)]
            + [F.interpolate(x, size, mode="bilinear", align_corners=False) for x in scales],
            1,
        )[0]
        seen = self.measure(points, phi, features, amplitude, size)
        near = self.earlier(seen)
        weights = self.fit(seen, near, self.root(widening, seen.used.sum()))
        mean, model_var, noise_var = self.predict(seen, weights, phi, features, amplitude, size)
        return self.calibrated(mean, model_var, noise_var, seen.worth)

    def measure(
        self,
        points: Float[Tensor, "n 4"],
        phi: Float[Tensor, "m h w"],
        features: Float[Tensor, "c h w"],
        amplitude: Float[Tensor, "h w"] | None,
        size: tuple[int, int],
    ) -> Measured:
        """Read all that is known at the points."""
        height, width = size
        row, column = (points[:, 1] + 0.5).floor(), (points[:, 0] + 0.5).floor()
        depth = points[:, 2]
        used = (depth > latent.LEAST_DEPTH) & (depth < latent.LARGEST_DEPTH)
        used = used & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        order = _argsort(torch.where(used, 0.0, 1.0))
        points, used = points[order], used[order]
        u, v, depth, sigma = torch.where(used[:, None], points, 1.0).unbind(1)
        u, v = torch.where(used, u, 0.0), torch.where(used, v, 0.0)
        row, column = (v + 0.5).floor().long(), (u + 0.5).floor().long()
        pixel = row * width + column
        at = _interpolate(phi, v, u, size)
        z = depth.log()
        noise = (sigma / depth).square()
        weight = torch.full_like(z, self.usual_noise) / (self.usual_noise + noise)
        nugget = float(self.kernel.nugget)
        s = torch.ones_like(z) if amplitude is None else amplitude.flatten()[pixel]
        worth = weight * (s.square() + nugget) / (weight * s.square() + nugget)
        at, z, weight = at / s[:, None], z / s, weight * s.square()
        position = torch.stack([v, u], 1) / width
        guide = features.flatten(1)[:, pixel].mT
        values = torch.cat([at, z[:, None]], 1).double()
        return Measured(
            used,
            self.kernel.scale(torch.cat([position, guide], 1)).double(),
            position.double(),
            (nugget / weight).clamp(min=LEAST_NOISE).double(),
            torch.where(used[:, None], values, 0.0),
            torch.where(used, worth, 0.0).sum().double(),
        )

    def coarse_to_fine(self, position: Float[Tensor, "n 2"], used: Tensor) -> Int[Tensor, "n"]:
        """`neighbours.coarse_to_fine`: points in use, then the others."""
        low = torch.where(used[:, None], position, FAR).amin(0)
        off = torch.where(used[:, None], position - low, 0.0)
        extent = off.max().clamp(min=float(np.finfo(float).tiny))
        cells = (off / extent * (2**BITS - 1)).floor()
        code = torch.zeros_like(cells)
        for bit in range(BITS):
            digit = (cells / 2**bit).floor()
            code = code + (digit - 2 * (digit / 2).floor()) * 4.0**bit
        along = _argsort(torch.where(used, 2 * code[:, 0] + code[:, 1], LAST))
        count = used.sum()
        inside = torch.arange(self.points) < count
        return along[_argsort(torch.where(inside, self.reversed_bits, LAST))]

    def earlier(self, seen: Measured) -> Neighbours:
        """`neighbours.earlier`: for each point, near points before it from coarse to fine."""
        k, n = NEIGHBOURS, self.points
        searched = 3 * k // 2 + 1
        order = self.coarse_to_fine(seen.position, seen.used)
        place = seen.position[order]
        rank = torch.arange(n)
        # The part of each point ends at the first of 19, 38, 76, ... beyond it.
        ends, end = torch.full((n,), n), searched
        while end < n:
            ends = torch.where((rank < end) & (ends == n), end, ends)
            end *= 2
        among = (rank[None] < ends[:, None]) & seen.used[order][None]
        off = place[:, None] - place[None]
        distance = torch.where(among, off.square().sum(-1), FAR)
        value, found = torch.topk(distance, searched, largest=False)
        before = (found < rank[:, None]) & (value < FAR)
        chosen = _first(torch.where(before, 0.0, 1.0), k)
        index, there = found.gather(1, chosen), before.gather(1, chosen)
        # Back from the order to the points themselves.
        back = _argsort(order.double())
        return Neighbours(order[index][back], there[back])

    def condition(
        self, seen: Measured, near: Neighbours, at: Float[Tensor, "q p f"]
    ) -> tuple[Float[Tensor, "q p k"], Float[Tensor, "q p"]]:
        """`kernel.condition`; neighbours that are not there are correlated with nothing."""
        places = seen.place[near.which]
        there = near.there.double()
        cov = self.correlation(places, places) * there[:, :, None] * there[:, None]
        eye = torch.eye(NEIGHBOURS, dtype=torch.float64)
        own = torch.where(near.there, 1 + seen.noise[near.which], 2.0)
        cov = cov * (1 - eye) + eye * own[:, None]
        k = self.correlation(at, places) * there[:, None]
        b = k @ spd_inverse(cov)
        return b, (1 - (b * k).sum(-1)).clamp(min=0.0)

    def correlation(self, one: Tensor, other: Tensor) -> Tensor:
        """Correlation of errors at scaled places."""
        squares = one.square().sum(-1)[..., None] + other.square().sum(-1)[:, None]
        distance = (squares - 2 * one @ other.mT).clamp(min=0.0).sqrt()
        smooth = (-distance).exp()
        if self.kernel.smoothness == 1.5:
            smooth = (1 + math.sqrt(3) * distance) * (-math.sqrt(3) * distance).exp()
        rough = float(self.kernel.rough)
        return (1 - rough) * smooth + rough * (-ROUGHER * distance).exp()

    def root(self, widening: Float[Tensor, "2"], count: Int[Tensor, ""]) -> Float[Tensor, "m m"]:
        """Root of the covariance of `ErrorModel.prior_of`.

        With C = R R' and e = R w, s C + o e e' = s R (1 + k w w') R' where k = o / s, and
        1 + k w w' is the square of 1 + c w w'.
        """
        scale, offset_var = widening.double().unbind()
        factor = self.factors[1] * self._at(count.double(), "factor")
        w, square = self.offset, self.offset.square().sum()
        c = ((1 + offset_var / factor / scale * square).sqrt() - 1) / square
        along = self.prior_root @ w
        return scale.sqrt() * (self.prior_root + c * along[:, None] * w)

    def fit(self, seen: Measured, near: Neighbours, root: Float[Tensor, "m m"]) -> Weights:
        """EM on the innovations of the points; `fit.evidence`."""
        b, left = self.condition(seen, near, seen.place[:, None])
        known = (b[:, 0, :, None] * seen.values[near.which]).sum(1)
        ratio = left[:, 0] + seen.noise
        white = (seen.values - known) / ratio.sqrt()[:, None]
        white = torch.where(seen.used[:, None], white, 0.0)
        phi, z = white[:, :-1], white[:, -1]
        m = phi.shape[1]
        a = phi @ root
        r = z - phi @ self.prior_mean
        # Of a' r as a matrix times a vector, onnxruntime 1.31 makes something else.
        gram, right = a.mT @ a, (a * r[:, None]).sum(0)
        n = seen.used.sum().double()
        least = n * ((torch.finfo(torch.float32).eps * z.abs().max()).square() + SMALLEST_NOISE)
        eye = torch.eye(m, dtype=torch.float64)
        known_alpha = self.alpha.shape > 0
        alpha = torch.full_like(n, self.alpha.shape / self.alpha.rate if known_alpha else 1.0)
        beta = torch.full_like(n, self.noise.shape / self.noise.rate)
        converged = n < 0
        for _ in range(self.steps):
            inverse = spd_inverse(alpha * eye + beta * gram)
            u = beta * (inverse @ right)
            trace = (inverse * eye).sum()
            squares = (r - a @ u).square().sum() + (m - alpha * trace) / beta
            squares = torch.maximum(squares, least)
            new_alpha = (m + 2 * self.alpha.shape) / (
                trace + u.square().sum() + 2 * self.alpha.rate
            )
            new_beta = (n + 2 * self.noise.shape) / (squares + 2 * self.noise.rate)
            moved = (new_beta - beta).abs() > self.tol * beta
            alpha = torch.where(converged, alpha, new_alpha)
            beta = torch.where(converged, beta, new_beta)
            converged = converged | ~moved
        inverse = spd_inverse(alpha * eye + beta * gram)
        mean = self.prior_mean + root @ (beta * (inverse @ right))
        return Weights(mean, root @ inverse @ root.mT, beta)

    def surroundings(
        self, seen: Measured, places: Float[Tensor, "q f"], size: tuple[int, int]
    ) -> Neighbours:
        """`neighbours.Surroundings` of the centre of each block of pixels; `places` are scaled."""
        (height, width), k = size, NEIGHBOURS
        pixels = seen.position * width
        order = self.coarse_to_fine(pixels, seen.used)
        rank = _argsort(order.double())  # of each point
        count = seen.used.sum()
        down, right = (height + SIDE - 1) // SIDE, (width + SIDE - 1) // SIDE
        row = (torch.arange(down).double() * SIDE + (SIDE - 1) / 2)[:, None].expand(down, right)
        column = (torch.arange(right).double() * SIDE + (SIDE - 1) / 2)[None].expand(down, right)
        centre = torch.stack([row, column], -1).reshape(-1, 2)
        offset = pixels[None] - centre[:, None]
        distance = offset.abs().amax(-1)
        value, found = torch.topk(
            torch.where(seen.used[None], distance, FAR), CANDIDATES * k, largest=False
        )
        there = value < FAR
        some = (rank < (count // SPARSER).clamp(min=1)) & seen.used
        value, far = torch.topk(torch.where(some[None], distance, FAR), k, largest=False)
        reach = torch.where(there, distance.gather(1, found), 0.0).amax(1, keepdim=True)
        new = (value < FAR) & (distance.gather(1, far) > reach) & (count > CANDIDATES * k)
        found, there = torch.cat([found, far], 1), torch.cat([there, new], 1)
        if self.embedding:
            stretch = torch.ones(places.shape[1], dtype=torch.float64)
            stretch[:2] = IMAGE_DISTANCE
            apart = ((seen.place[found] - places[:, None]) * stretch).square().sum(-1)
            apart = torch.where(there, apart, FAR)
            nearest = torch.topk(apart, apart.shape[1], largest=False).indices
            found, there = found.gather(1, nearest), there.gather(1, nearest)
        down_of = offset[..., 0].gather(1, found) > 0
        right_of = offset[..., 1].gather(1, found) > 0
        later = torch.zeros_like(found, dtype=torch.float64)
        for low in (False, True):
            for left in (False, True):
                inside = (down_of == low) & (right_of == left) & there
                rank_inside = inside.double().cumsum(1) - 1
                later = torch.where(inside & (rank_inside >= max(k // 6, 1)), 1.0, later)
        later = torch.where(distance.gather(1, found) <= SIDE / 2 + RING, -1.0, later)
        later = torch.where(there, later, 2.0)
        chosen = _first(later, k)
        return Neighbours(found.gather(1, chosen), there.gather(1, chosen))

    def predict(
        self,
        seen: Measured,
        weights: Weights,
        phi: Float[Tensor, "m h w"],
        features: Float[Tensor, "c h w"],
        amplitude: Float[Tensor, "h w"] | None,
        size: tuple[int, int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Latent mean, model variance and noise variance at every pixel; `correlated.predict`."""
        blocks = Blocks(*size)
        places = torch.cat([blocks.positions(), features])
        at = self.kernel.scale(blocks.split(places)).double()
        near = self.surroundings(seen, blocks.own(at).mean(1), size)
        b, left = self.condition(seen, near, at)
        residual = seen.values[:, -1] - seen.values[:, :-1] @ weights.mean
        around = torch.where(near.there, residual[near.which], 0.0)
        low, high = around.amin(1, keepdim=True), around.amax(1, keepdim=True)
        correction = (b @ around[..., None])[..., 0]
        correction = torch.maximum(correction, low.clamp(max=0.0))
        correction = torch.minimum(correction, high.clamp(min=0.0))
        correction = blocks.blend(correction, left)
        left = torch.minimum(blocks.blend(left, left).clamp(min=0.0), self.most(seen, places))
        b = blocks.own(b)
        if amplitude is not None:
            s = amplitude.double()
            correction, left = s * correction, s.square() * left
            b = b * blocks.own(blocks.split(amplitude[None])).double()
        bases = blocks.own(blocks.split(phi)).double()
        rest = bases - b @ seen.values[near.which][..., :-1]
        model_var = ((rest @ weights.cov) * rest).sum(-1).clamp(min=0.0)
        mean = blocks.join(bases @ weights.mean) + correction
        noise_var = (left + float(self.kernel.nugget)) / weights.beta
        return mean, blocks.join(model_var), noise_var

    def most(self, seen: Measured, places: Float[Tensor, "c h w"]) -> Float[Tensor, "h w"]:
        """`Field.most`."""
        height, width = places.shape[1:]
        row, column = (seen.position * width).round().long().unbind(-1)
        pixel = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        own = self.kernel.scale(places.flatten(1).mT[pixel]).double()
        apart = (seen.place - own).square().sum(-1).sqrt()
        alone = 1 - self.kernel.at_distance(apart).square() / (1 + seen.noise)
        alone = torch.where(seen.used, alone, 1.0)
        most = torch.ones(height * width, dtype=torch.float64)
        return most.scatter_reduce(0, pixel, alone.double(), "amin").view(height, width)

    def calibrated(
        self, mean: Tensor, model_var: Tensor, noise_var: Tensor, worth: Tensor
    ) -> tuple[Tensor, ...]:
        """`Calibration.at` and `latent.interval`."""
        factor, dof, width = (self._at(worth, name) for name in ("factor", "dof", "width"))
        noise_var = self.factors[0] * factor * noise_var
        var = self.factors[1] * factor * model_var + noise_var
        share = noise_var / var
        maps = [mean, var, mean.exp()]
        for place in range(2):
            if self.table["dof"][0] > 0:
                scale = width**share * self._quantile(dof / share.clamp(min=1e-5), place)
                half = var.sqrt() * scale
            else:
                level = (latent.ONE_SIGMA, 0.9)[place]
                half = (var / 2).sqrt() * -math.log1p(-level)
            low, high = (mean - half).exp(), (mean + half).exp()
            maps += [(high - low) / 2] if place == 0 else [low, high]
        return tuple(one.float() for one in maps)

    def _at(self, count: Tensor, name: str) -> Tensor:
        """Interpolate the logarithm of a column of the calibration in ln(1 + points)."""
        place = count.log1p()
        knots = [math.log1p(x) for x in self.table["points"]]
        logs = [math.log(max(x, TINY)) for x in self.table[name]]
        found = torch.full_like(place, logs[0])
        for i in range(1, len(knots)):
            span = max(knots[i] - knots[i - 1], TINY)
            step = ((place - knots[i - 1]) / span).clamp(0.0, 1.0)
            between = logs[i - 1] + step * (logs[i] - logs[i - 1])
            found = torch.where(place > knots[i - 1], between, found)
        return found.exp()

    def _quantile(self, dof: Tensor, place: int) -> Tensor:
        """Half the width of Student's central interval, from a table."""
        first, last = math.log(LEAST_DOF), math.log(MOST_DOF)
        where = (dof.log() - first) / (last - first) * (DOF_KNOTS - 1)
        where = where.clamp(0.0, DOF_KNOTS - 1.001)
        left = where.floor()
        row = self.quantiles[place]
        low, high = row[left.long()], row[left.long() + 1]
        return (low + (where - left) * (high - low)).exp()


def _overlap(blocks: Float[Tensor, "d _ *r"]) -> Float[Tensor, "_ *r"]:
    """Add up blocks in a row, each of which begins `SIDE` after the one before it."""
    begin, end = blocks[:, :SIDE], blocks[:, SIDE:]
    end = torch.cat([end, torch.zeros_like(begin[:, WHOLE - SIDE :])], 1)
    none = torch.zeros_like(begin[:1])
    return (torch.cat([begin, none]) + torch.cat([none, end])).flatten(0, 1)


def _quantiles() -> Float[Tensor, "2 knots"]:
    """Log of half the widths of Student's central 68.27 % and 90 % intervals, by ln dof."""
    from scipy.special import stdtrit

    dof = np.exp(np.linspace(math.log(LEAST_DOF), math.log(MOST_DOF), DOF_KNOTS))
    rows = [np.log(stdtrit(dof, (1 + level) / 2)) for level in (latent.ONE_SIGMA, 0.9)]
    return torch.from_numpy(np.stack(rows))


def _argsort(values: Float[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Stable, in increasing order, of integers up to `LAST`: there is no stable sort in ONNX."""
    return _first(values[None], len(values))[0]


def _first(keys: Float[Tensor, "q c"], k: int) -> Int[Tensor, "q k"]:
    """Places of the k smallest keys; among equal ones the first."""
    unique = keys.double() * keys.shape[1] + torch.arange(keys.shape[1]).double()
    return torch.topk(unique, k, largest=False).indices


def _interpolate(
    phi: Float[Tensor, "m h w"],
    v: Float[Tensor, "n"],
    u: Float[Tensor, "n"],
    size: tuple[int, int],
) -> Float[Tensor, "n m"]:
    """Bases between pixels, bilinear in the four around each point; `Pyramid.at`."""
    height, width = size
    v, u = v.clamp(0.0, height - 1.0), u.clamp(0.0, width - 1.0)
    top, left = v.floor(), u.floor()
    flat = phi.flatten(1)
    below, beside = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)

    def read(row: Tensor, column: Tensor) -> Tensor:
        return flat[:, row.long() * width + column.long()].mT

    right, down = (u - left)[:, None], (v - top)[:, None]
    upper = read(top, left) + right * (read(top, beside) - read(top, left))
    lower = read(below, left) + right * (read(below, beside) - read(below, left))
    return upper + down * (lower - upper)
