# SPDX-License-Identifier: Apache-2.0
"""Spatially correlated errors: z = Phi w + delta + eps, delta a Gaussian process.

Errors of neighbours are correlated, so the residuals of the points near a pixel predict its error.
Each place is conditioned on a few near points only. Points and pixels are whitened by what their
neighbours predict; the fit of the whitened points is that of independent errors, unchanged:

    points:  z~ = (z - b' z_S) / sqrt(d),  phi~ = (phi - b' Phi_S) / sqrt(d), S earlier in an order
    pixels:  mean = phi' m + b' (z_S - Phi_S m),  variance = d / beta + |R' (phi - b' Phi_S)|^2

with b = K_SS^-1 k_S, d = 1 + nugget - k_S' b, and N(m, R R') the posterior of the weights. The
first line is Vecchia's approximation (Datta et al., Journal of the American Statistical Association
111, 2016); with all points as neighbours both lines are exact: universal kriging.

Where errors differ in size, delta = s delta' with an amplitude s at every place: divided by s, the
model is the one above, with phi / s and z / s for phi and z, and weights times s^2. All functions
take points that were divided by their amplitude; only `Field` knows the amplitude of the pixels.

Depth has edges, which a Gaussian process does not know: between points of two surfaces a smooth
kernel overshoots, up to ten times the depth of both. So the correction b' (z_S - Phi_S m) of a
pixel is kept between the smallest and the largest residual of its neighbours, and 0, unless
`bounded` is False. Variances stay those of the linear predictor.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.linalg import vector_norm

from deepbasis.fit.checks import FitPoints, check_points
from deepbasis.fit.field import NEIGHBOURS as NEIGHBOURS
from deepbasis.fit.field import Field as Field
from deepbasis.fit.field import check_places, scale_places
from deepbasis.fit.kernel import Kernel, condition, condition_each
from deepbasis.fit.linear import Posterior
from deepbasis.fit.memory import Kept, condition_blocks
from deepbasis.fit.memory import Memory as Memory
from deepbasis.fit.neighbours import earlier
from deepbasis.shapes import Float, Int

# Points whitened at a time, and pixels predicted at a time over the whole batch.
BLOCK_POINTS, BLOCK_PIXELS = 2048, 10240
# Fewer points than this are conditioned faster one by one than side by side.
FEW_POINTS = 1024
# Smallest weight that is divided by; its square is still a float32.
SMALLEST = 1e-15


class Innovations(NamedTuple):
    """Points minus what their neighbours predict, scaled to variance 1 / beta: the input of
    `fit.evidence` and `fit.ml`.
    """

    phi: Float[Tensor, "*b n m"]
    z: Float[Tensor, "*b n"]
    weight: Float[Tensor, "*b n"]
    """1, or 0 for a dropped point."""
    variance_ratio: Float[Tensor, "*b n"]
    """d: variance of an innovation, relative to 1 / beta."""

    @property
    def log_jacobian(self) -> Float[Tensor, "*b"]:
        """Add it to the log evidence of the fit: the result is the density of the points."""
        return -0.5 * torch.where(self.weight > 0, self.variance_ratio, 1).log().sum(-1)

    def lower(
        self, kernel: Kernel, weight: Float[Tensor, "*b n"], huber: Float[Tensor, "*b n"]
    ) -> Float[Tensor, "*b n"]:
        """Weights of the points, from the Huber weights of their innovations.

        An innovation of weight h has variance d / h; the excess over d is attributed to noise of
        its point. So an outlier has little influence on the pixels around it.
        """
        surplus = self.variance_ratio * (1 / huber.clamp(min=SMALLEST) - 1) / kernel.nugget
        return torch.where(weight > 0, 1 / (1 / weight.clamp(min=SMALLEST) + surplus), 0)


def locate(
    v: Float[Tensor, "*p"],
    u: Float[Tensor, "*p"],
    width: int,
    guide: Float[Tensor, "c h w"] | None = None,
) -> Float[Tensor, "*p f"]:
    """Places of points: row and column in image widths, and the guide's features, RGB in 0..1."""
    dtype = torch.float32 if guide is None else guide.dtype
    position = torch.stack([v, u], -1).to(dtype) / width
    if guide is None:
        return position
    # Places just inside the border may be rounded onto it.
    row, column = (
        (x + 0.5).floor().long().clamp(0, size - 1)
        for x, size in zip((v, u), guide.shape[1:], strict=True)
    )
    return torch.cat([position, guide[:, row, column].movedim(0, -1)], -1)


def whiten(
    kernel: Kernel,
    x: Float[Tensor, "*b n f"],
    phi: Float[Tensor, "*b n m"],
    z: Float[Tensor, "*b n"],
    weight: Float[Tensor, "*b n"] | None = None,
    *,
    k: int = NEIGHBOURS,
) -> Innovations:
    """Condition each point on at most k near points that come before it, from coarse to fine.

    Differentiable in `phi` and `z`. Points of weight 0 are not used as neighbours.
    """
    points = check_points(phi, z, weight)
    check_places(x, z, k)
    if z.ndim > 1:
        images = zip(x, phi, z, points.weight.to(z.dtype), strict=True)
        whitened = [whiten(kernel, *image, k=k) for image in images]
        return Innovations(*(torch.stack(parts) for parts in zip(*whitened, strict=True)))
    used = (points.weight > 0).nonzero()[:, 0]
    kept = FitPoints(points.phi[used], points.z[used], points.weight[used])
    found = whiten_at(kernel, x[used], kept, earlier(x[used, :2], k))
    blank = Innovations(torch.zeros_like(phi), *(torch.zeros_like(z) for _ in range(3)))
    return Innovations(
        *(a.index_copy(0, used, b.to(a.dtype)) for a, b in zip(blank, found, strict=True))
    )


def whiten_at(
    kernel: Kernel,
    x: Float[Tensor, "n f"],
    points: FitPoints,
    near: Int[Tensor, "q k"],
    which: Int[Tensor, "q"] | None = None,
) -> Innovations:
    """`whiten` in float64 for one image, with given neighbours; all weights are positive.

    `which` are the points whose neighbours are given, by default all.
    """
    places, noise = scale_places(kernel, x, points.weight, near.shape[1])
    values = F.pad(torch.cat([points.phi, points.z[:, None]], -1), (0, 0, 0, near.shape[1]))
    index = torch.arange(len(x), device=x.device) if which is None else which
    rows, ratios = [values[:0]], [noise[:0]]
    for start in range(0, len(near), BLOCK_POINTS):
        own, around = (part[start : start + BLOCK_POINTS] for part in (index, near))
        neighbours = places[around], noise[around]
        if places.requires_grad or noise.requires_grad or len(own) < FEW_POINTS:
            b, left = (part[:, 0] for part in condition(kernel, places[own][:, None], *neighbours))
        else:
            b, left = condition_each(kernel, places[own], *neighbours)
        ratios.append(left.double() + noise[own])
        innovations = values[own] - combine(around, b, values)
        rows.append(innovations / ratios[-1].sqrt()[:, None])
    white, variance_ratio = torch.cat(rows), torch.cat(ratios)
    return Innovations(white[:, :-1], white[:, -1], torch.ones_like(variance_ratio), variance_ratio)


def predict_at(
    kernel: Kernel,
    x: Float[Tensor, "n f"],
    points: FitPoints,
    near: Int[Tensor, "p k"],
    weights: tuple[Float[Tensor, "m"], Float[Tensor, "m m"], Float[Tensor, ""]],
    at: tuple[Float[Tensor, "p f"], Float[Tensor, "p m"], Float[Tensor, "p"]],
    *,
    bounded: bool = True,
) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"]]:
    """Mean and variance, in float64, at some places with given neighbours. Differentiable.

    Args:
        kernel: of the errors.
        x, points, near: the points, and the neighbours of each place among them.
        weights: mean, root and beta of the fit of the points' innovations.
        at: position and features of each place, its bases and its weight.
    """
    mean, root, beta = weights
    places, noise = scale_places(kernel, x, points.weight, near.shape[1])
    b, left = condition(kernel, kernel.scale(at[0])[:, None], places[near], noise[near])
    residual = points.z - points.phi @ mean
    values = F.pad(torch.cat([residual[:, None], points.phi], -1), (0, 0, 0, near.shape[1]))
    known = combine(near, b[:, 0], values)
    correction = bound(known[:, 0], values[:, 0][near]) if bounded else known[:, 0]
    phi = at[1].double()
    noise_var = (left[:, 0].double() + kernel.nugget / at[2].double()) / beta
    model_var = ((phi - known[:, 1:]) @ root).square().sum(-1)
    return phi @ mean + correction, noise_var + model_var


def predict(
    fields: Sequence[Field],
    post: Posterior,
    phi: Float[Tensor, "b n m"],
    z: Float[Tensor, "b n"],
    bases: Callable[[int, int], Float[Tensor, "b p c"]],
    *,
    bounded: bool = True,
    memory: Memory | None = None,
) -> tuple[Float[Tensor, "b p"], Float[Tensor, "b p"], Float[Tensor, "b p"]]:
    """Latent mean, model variance and ratio d of every pixel; the noise variance is d / beta.

    Differentiable in `phi`, `z`, the posterior and the bases. Bases are read in blocks of rows.

    Args:
        fields: the points of each image.
        post: the fit of their innovations.
        phi: bases at the points, divided by their amplitude.
        z: log depth of the points, divided likewise.
        bases: given `start` and `stop`, returns those of the pixels of these rows, without row
            `stop`; columns of zeros may follow.
        bounded: keep corrections within the residuals of the neighbours; False is linear kriging.
        memory: of a single image whose points change; not differentiable.
    """
    assert memory is None or len(fields) == 1, "a memory holds the blocks of a single image"
    (height, width), side = fields[0].size, math.lcm(*(field.side for field in fields))
    step = max(BLOCK_PIXELS // (width * len(fields) * side), 1) * side
    points = [
        _Fitted.of(field, post.mean[i].to(z), post.root[i].to(z), phi[i], z[i], bounded)
        for i, field in enumerate(fields)
    ]
    with nullcontext() if memory is None else memory.open(fields[0]) as kept:
        parts = []
        for start in range(0, height, step):
            rows = start, min(start + step, height)
            read = cache(partial(bases, *rows))
            parts.append(
                [one.predict(rows, partial(_one, read, i), kept) for i, one in enumerate(points)]
            )
    images = [
        field.finish(*(torch.cat(part, -1) for part in zip(*own, strict=True)))
        for field, own in zip(fields, zip(*parts, strict=True), strict=True)
    ]
    mean, model_var, ratio = torch.stack(images, 1)
    return mean, model_var, ratio


def _one(read: Callable[[], Float[Tensor, "b p c"]], i: int) -> Float[Tensor, "p c"]:
    return read()[i]


class _Fitted(NamedTuple):
    """The points of one image and their fit, for the prediction of its pixels."""

    field: Field
    onto: Float[Tensor, "m _"]
    """Root of the weights' covariance, and their mean."""
    phi: Float[Tensor, "_ m"]
    residual: Float[Tensor, "_"]
    bounded: bool

    @classmethod
    def of(
        cls, field: Field, mean: Tensor, root: Tensor, phi: Tensor, z: Tensor, bounded: bool
    ) -> "_Fitted":
        residual = F.pad(z - phi @ mean, (0, field.k))
        onto = torch.cat([root, mean[:, None]], -1)
        return cls(field, onto, F.pad(phi, (0, 0, 0, field.k)), residual, bounded)

    def predict(
        self, rows: tuple[int, int], bases: Callable[[], Float[Tensor, "p c"]], kept: Kept | None
    ) -> tuple[Float[Tensor, "2 p"], Float[Tensor, "2 _"]]:
        """Mean without correction, and model variance, of the pixels of some rows, in reading
        order; corrections and conditional variances of their blocks with their rings.
        """
        field, width = self.field, self.field.size[1]
        span = rows[0] // field.side, -(-rows[1] // field.side)
        blocks = condition_blocks(field, span, self.phi, bases, kept)
        around = self.residual[field.near_of(*span)]
        correction = (blocks.b.to(around) @ around[..., None])[..., 0]
        if self.bounded:
            correction = bound(correction, around[:, None])
        onto = F.pad(self.onto, (0, 0, 0, blocks.rest.shape[-1] - len(self.onto)))
        mean = blocks.bases @ onto[:, -1]
        out = blocks.rest.flatten(0, 1) @ onto  # with 63 columns it would take longer than with 64
        model_var = vector_norm(out[:, :-1], dim=-1).square().view_as(mean)
        pixels = field.in_reading_order(torch.stack([mean, model_var], -1))
        inside = pixels[: (rows[1] - rows[0]) * width].mT
        return inside, torch.stack([correction, blocks.left.to(correction)]).flatten(1)


def combine(
    near: Int[Tensor, "p k"], b: Float[Tensor, "p k"], values: Float[Tensor, "n c"]
) -> Float[Tensor, "p c"]:
    """Sum of b_j values_j over each place's neighbours."""
    return F.embedding_bag(near, values, per_sample_weights=b.to(values.dtype), mode="sum")


def bound(correction: Float[Tensor, "*p"], around: Float[Tensor, "*_ k"]) -> Float[Tensor, "*p"]:
    """Corrections kept between the residuals of their neighbours, and 0."""
    return correction.clamp(around.amin(-1).clamp(max=0), around.amax(-1).clamp(min=0))
