# SPDX-License-Identifier: Apache-2.0
"""BasisFit: the drop-in last layer that turns bases and sparse depth into depth with variance."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepbasis import fit, latent
from deepbasis.shapes import Float, Int

# Pixels predicted at a time, over the whole batch.
BLOCK_PIXELS = 20480


class Prediction(NamedTuple):
    """Log depth at every pixel; its variance is `model_var` + `noise_var`."""

    mean: Float[Tensor, "b 1 h w"]
    model_var: Float[Tensor, "b 1 h w"]
    noise_var: Float[Tensor, "b 1 h w"]


class Pyramid:
    """Bases at several scales, read as if upsampled to one size, with the constant 1 in front.

    Bilinear interpolation is separable. Columns are interpolated once, for every scale; rows only
    where they are read, by the same two taps for a point and for a block of pixels. So nothing of
    full size is built, and a point's bases are those of its pixel.
    """

    def __init__(self, scales: Sequence[Float[Tensor, "b _ _ _"]], size: tuple[int, int]) -> None:
        self.size = size
        self.batch = len(scales[0])
        self.scales = [_stretch_columns(scale, size[1]) for scale in scales]
        self.taps = [_row_taps(scale, size[0]) for scale in scales]

    def at(self, row: Int[Tensor, "b n"], column: Int[Tensor, "b n"]) -> Float[Tensor, "b n m"]:
        """Bases of single pixels."""

        def read(scale: Tensor, row: Tensor) -> Tensor:
            index = (row * self.size[1] + column)[:, None].expand(-1, scale.shape[1], -1)
            return scale.flatten(2).gather(2, index)

        parts = [self._constant(row.shape[1:])]
        for scale, taps in zip(self.scales, self.taps, strict=True):
            if taps is None:
                parts.append(read(scale, row))
            else:
                above, below, share = (tap[row] for tap in taps)
                parts.append(read(scale, above).lerp(read(scale, below), share[:, None]))
        return torch.cat(parts, 1).mT

    def rows(self, start: int, stop: int) -> Float[Tensor, "b m p"]:
        """Bases of all pixels in a block of rows."""
        parts = [self._constant((stop - start, self.size[1]))]
        for scale, taps in zip(self.scales, self.taps, strict=True):
            parts.append(_read_rows(scale, taps, start, stop))
        return torch.cat(parts, 1).flatten(2)

    def rows_into(self, out: Float[Tensor, "b m _ w"], start: int, stop: int) -> None:
        """`rows` without allocating them: write to `out`, whose first channel is left as it is."""
        channels = torch.split(out[:, 1:], [scale.shape[1] for scale in self.scales], 1)
        for scale, taps, part in zip(self.scales, self.taps, channels, strict=True):
            _read_rows(scale, taps, start, stop, part)

    def _constant(self, shape: tuple[int, ...]) -> Tensor:
        return self.scales[0].new_ones(()).expand(self.batch, 1, *shape)


class Points(NamedTuple):
    """Measurements of a batch, padded with weight 0 to the largest count."""

    row: Int[Tensor, "b n"]
    column: Int[Tensor, "b n"]
    z: Float[Tensor, "b n"]
    weight: Float[Tensor, "b n"]


def gather_points(
    sparse: Float[Tensor, "b 1 h w"], weight: Float[Tensor, "b 1 h w"] | None = None
) -> Points:
    """Find the measurements in sparse depth maps; 0, NaN and infinity mean none."""
    _check_sparse(sparse, weight)
    image, _, row, column = latent.measured(sparse).nonzero(as_tuple=True)
    count = torch.bincount(image, minlength=len(sparse))
    slot = torch.arange(len(image), device=image.device) - (count.cumsum(0) - count)[image]
    shape = (len(sparse), int(count.max()) if len(count) else 0)

    def pad(values: Tensor) -> Tensor:
        return values.new_zeros(shape).index_put_((image, slot), values)

    depth = sparse[image, 0, row, column]
    trust = torch.ones_like(depth) if weight is None else weight[image, 0, row, column]
    return Points(pad(row), pad(column), pad(latent.to_latent(depth)), pad(trust))


class BasisFit(nn.Module):
    """The last layer of a depth network: fits its bases to sparse depth, image by image.

    In training mode the fit is maximum likelihood, differentiable, and each image needs at least
    `channels + 1` points. In evaluation mode the fit uses the prior and maximises the evidence, so
    that any number of points will do, also none, and gradients stop here.

    Args:
        channels: bases that the network makes, over all scales; a constant is added to them.
        variance: "predictive" is noise plus model, each times its calibration factor; "paper" is
            the model part alone, times the NEES factor.
        steps, tol, huber: see `fit.evidence`.

    Example:
        >>> layer = BasisFit(3).eval()
        >>> sparse = torch.zeros(1, 1, 4, 6)
        >>> sparse[0, 0, 1, 2] = 2.0
        >>> mean, model_var, noise_var = layer(torch.rand(1, 3, 2, 3), sparse)
        >>> mean.shape
        torch.Size([1, 1, 4, 6])
    """

    prior_mean: Tensor
    prior_cov: Tensor
    hyperprior: Tensor
    calibration: Tensor

    def __init__(
        self,
        channels: int = 62,
        *,
        variance: Literal["predictive", "paper"] = "predictive",
        steps: int = 8,
        tol: float = 0.01,
        huber: float | None = None,
    ) -> None:
        super().__init__()
        if variance not in ("predictive", "paper"):
            raise ValueError(f"`variance` is {variance!r}; choose 'predictive' or 'paper'")
        self.channels, self.variance = channels, variance
        self.steps, self.tol, self.huber = steps, tol, huber
        self.gathered: list[fit.WeightSample] | None = None
        """Set it to [] and every training pass adds its weights; `learn_prior` uses them."""
        self.register_buffer("prior_mean", torch.zeros(channels + 1))
        self.register_buffer("prior_cov", torch.eye(channels + 1))
        self.register_buffer("hyperprior", torch.zeros(2, 2))  # alpha, beta: shape and rate
        self.register_buffer("calibration", torch.ones(3))  # noise, model, NEES

    def forward(
        self,
        bases: Tensor | Sequence[Tensor],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> Prediction:
        """Log depth and its variance at every pixel of `sparse`.

        Args:
            bases: b c h w tensors at any strides, or one of them.
            sparse: depth in metres; 0, NaN and infinity mean no measurement.
            weight: relative precision of each measurement, 1 by default.
        """
        with torch.autocast(sparse.device.type, enabled=False):
            pyramid, points = self.read(bases, sparse, weight)
            return self.predict(pyramid, self.posterior(pyramid, points))

    def read(
        self,
        bases: Tensor | Sequence[Tensor],
        sparse: Float[Tensor, "b 1 h w"],
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> tuple[Pyramid, Points]:
        """First third of `forward`: the bases, readable at any pixel, and the measurements."""
        points = gather_points(sparse, weight)
        scales = [bases] if isinstance(bases, Tensor) else list(bases)
        self._check_bases(scales, len(sparse))
        at_least_float32 = torch.promote_types(scales[0].dtype, torch.float32)
        height, width = sparse.shape[-2:]
        return Pyramid([scale.to(at_least_float32) for scale in scales], (height, width)), points

    def posterior(self, pyramid: Pyramid, points: Points) -> fit.Posterior:
        """Second third of `forward`: the posterior of the weights."""
        phi = pyramid.at(points.row, points.column)
        z, weight = points.z.to(phi.dtype), points.weight.to(phi.dtype)
        if self.training:
            post = fit.ml(phi, z, weight)
            if self.gathered is not None:
                self.gathered.append(fit.WeightSample.of(post))
            return post
        prior = fit.Prior(self.prior_mean, self.prior_cov)
        hyper = fit.Hyperprior(*(fit.Gamma(*row) for row in self.hyperprior.tolist()))
        return fit.evidence(
            phi, z, prior, weight,
            steps=self.steps, tol=self.tol, hyperprior=hyper, huber=self.huber,
        )  # fmt: skip

    def predict(self, pyramid: Pyramid, post: fit.Posterior) -> Prediction:
        """Last third of `forward`: mean and variance of every pixel."""
        reduce = torch.cat([post.mean[..., None], post.root], -1).mT
        both = _reduce(pyramid, reduce) if self.training else _reduce_in_blocks(pyramid, reduce)
        mean, model_var = (part.view(-1, 1, *pyramid.size) for part in both)
        if not mean.isfinite().all():
            raise ValueError("the bases hold NaN or infinity; check the network's output")
        noise_var = (1 / post.beta)[:, None, None, None].expand_as(mean)
        if self.training:
            return Prediction(mean, model_var, noise_var)
        noise_factor, model_factor, nees_factor = self.calibration.to(mean)
        if self.variance == "paper":
            return Prediction(mean, nees_factor * model_var, torch.zeros_like(mean))
        return Prediction(mean, model_factor * model_var, noise_factor * noise_var)

    def set_prior(self, prior: fit.Prior, hyperprior: fit.Hyperprior | None = None) -> None:
        """Store the prior that evaluation uses, in the state dict."""
        if prior.mean.shape != self.prior_mean.shape:
            raise ValueError(
                f"the prior is for {prior.mean.numel()} bases, but the layer has "
                f"{self.prior_mean.numel()}: {self.channels} channels and the constant"
            )
        self.prior_mean.copy_(prior.mean)
        self.prior_cov.copy_(prior.cov)
        self.hyperprior.copy_(torch.tensor(hyperprior or fit.Hyperprior()))

    def learn_prior(self, *, correct: bool = True) -> None:
        """Set prior and hyperprior from what `gathered` holds; see `fit.WeightSample.prior`."""
        sample = fit.WeightSample.merge(self.gathered or [])
        self.set_prior(sample.prior(correct=correct), sample.hyperprior())

    def set_calibration(self, *, noise: float = 1.0, model: float = 1.0, nees: float = 1.0) -> None:
        """Store the factors on the noise and model variances, and the paper's NEES factor."""
        if not min(noise, model, nees) > 0:
            raise ValueError(f"calibration factors are {noise}, {model}, {nees}; all must be > 0")
        self.calibration.copy_(torch.tensor([noise, model, nees]))

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return f"{self.channels}, variance={self.variance!r}, huber={self.huber}"

    def _check_bases(self, scales: list[Tensor], batch: int) -> None:
        shapes = [list(scale.shape) for scale in scales]
        if not scales or any(len(shape) != 4 or shape[0] != batch for shape in shapes):
            raise ValueError(
                f"bases are {shapes}; expected tensors [{batch}, channels, height, width], "
                f"one for each scale and {batch} images as in the sparse depth"
            )
        if sum(shape[1] for shape in shapes) != self.channels:
            raise ValueError(
                f"bases have {[shape[1] for shape in shapes]} channels, "
                f"{sum(shape[1] for shape in shapes)} in all; the layer was made for "
                f"{self.channels}"
            )


def _reduce(
    pyramid: Pyramid, reduce: Float[Tensor, "b k m"]
) -> tuple[Float[Tensor, "b p"], Float[Tensor, "b p"]]:
    """Mean, and sum of squares of the root's part, from one product at every pixel."""
    out = reduce @ pyramid.rows(0, pyramid.size[0])
    return out[:, 0], out[:, 1:].square().sum(1)


@torch.no_grad()
def _reduce_in_blocks(
    pyramid: Pyramid, reduce: Float[Tensor, "b k m"]
) -> tuple[Float[Tensor, "b p"], Float[Tensor, "b p"]]:
    """`_reduce` without its memory: blocks of rows pass through two buffers that stay in cache."""
    (batch, _, m), (height, width) = reduce.shape, pyramid.size

    def buffers(rows: int) -> tuple[Tensor, Tensor]:
        size = (batch, m, rows, width), (batch, 1 + m, rows * width)
        return reduce.new_ones(size[0]), reduce.new_empty(size[1])

    step = min(height, max(1, BLOCK_PIXELS // (width * max(1, batch))))
    mean, squares = reduce.new_empty(2, batch, height * width)
    phi, product = buffers(step)
    for start in range(0, height, step):
        stop = min(start + step, height)
        if stop - start < step:  # the last block
            phi, product = buffers(stop - start)
        pyramid.rows_into(phi, start, stop)
        torch.bmm(reduce, phi.flatten(2), out=product)
        pixels = slice(start * width, stop * width)
        mean[:, pixels] = product[:, 0]
        torch.sum(product[:, 1:].square_(), 1, out=squares[:, pixels])
    return mean, squares


def _stretch_columns(scale: Tensor, width: int) -> Tensor:
    if scale.shape[3] == width:
        return scale
    return F.interpolate(scale, (scale.shape[2], width), mode="bilinear", align_corners=False)


def _read_rows(
    scale: Tensor,
    taps: tuple[Tensor, Tensor, Tensor] | None,
    start: int,
    stop: int,
    out: Tensor | None = None,
) -> Tensor:
    """Rows of one scale, interpolated where it is lower than the full height."""
    if taps is None:
        rows = scale[:, :, start:stop]
        return rows if out is None else out.copy_(rows)
    above, below, share = (tap[start:stop] for tap in taps)
    upper, lower = scale.index_select(2, above), scale.index_select(2, below)
    return torch.lerp(upper, lower, share[:, None], out=out)


def _row_taps(scale: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """For every row of the full height the rows of `scale` above and below it, and the share of
    the latter; pixel centres are at half integers, as with `align_corners=False`. None: the same.
    """
    if scale.shape[2] == height:
        return None
    last = scale.shape[2] - 1
    row = torch.arange(height, dtype=scale.dtype, device=scale.device)
    position = ((row + 0.5) * (scale.shape[2] / height) - 0.5).clamp(0, last)
    above = position.long()
    return above, (above + 1).clamp(max=last), position - above


def _check_sparse(sparse: Tensor, weight: Tensor | None) -> None:
    if sparse.ndim != 4 or sparse.shape[1] != 1 or not sparse.is_floating_point():
        raise ValueError(
            f"sparse depth is {sparse.dtype} {list(sparse.shape)}; expected floating point metres "
            "[batch, 1, height, width]"
        )
    if weight is not None and weight.shape != sparse.shape:
        raise ValueError(
            f"weights are {list(weight.shape)} but the sparse depth is {list(sparse.shape)}; "
            "pass one weight for each pixel"
        )
    negative = (sparse < 0) & (sparse != -torch.inf)
    if negative.any():
        image, _, row, column = negative.nonzero()[0].tolist()
        raise ValueError(
            f"sparse depth is negative, first in image {image} at row {row}, column {column}: "
            f"{float(sparse[image, 0, row, column]):.4g} m; depth is in metres, "
            "and 0, NaN or infinity mean no measurement"
        )
