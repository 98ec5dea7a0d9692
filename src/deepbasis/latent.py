# SPDX-License-Identifier: Apache-2.0
"""Metres and the latent z = ln(depth / 1 m): the only place where log and exp of depth are taken.

A pixel's latent has mean `mean`, variance `var` and a symmetric distribution; in the paper, a
Laplace distribution with var = 2 b^2. Quantiles are preserved by exp, so the median of depth is
exp(mean), and intervals in metres are exp of latent intervals. (The mean of depth is larger than
the median; we do not report it.)
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from deepbasis.arguments import to_number
from deepbasis.shapes import Bool, Float

# Depths between these are measurements, in metres.
LEAST_DEPTH, LARGEST_DEPTH = 1e-6, 1e9
# Probability of one standard deviation around the mean of a Gaussian, the usual meaning of "std".
ONE_SIGMA = math.erf(1 / math.sqrt(2))
# Noise shares between which half widths are interpolated; the relative error is below 1e-4.
KNOTS = 257
# Likewise for errors of given normal scores, and the largest score: beyond it are 2 in 10^9.
SCORE_KNOTS, SHARE_KNOTS, LARGEST_SCORE = 129, 65, 6.0
# Smallest noise share that degrees of freedom are divided by: practically a Gaussian.
LEAST_SHARE = 1e-5


def is_valid(depth_m: Float[Tensor, "*s"]) -> Bool[Tensor, "*s"]:
    """Where a depth map in metres holds a measurement.

    0, NaN, infinity and depths that no sensor gives, below a micrometre or beyond a million
    kilometres, mean no measurement: their squares and logarithms would spoil a fit in float32.

    Args:
        depth_m: depth in metres.

    Returns:
        True where there is a measurement.
    """
    return (depth_m > LEAST_DEPTH) & (depth_m < LARGEST_DEPTH)


def to_latent(depth_m: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Log depth; 0 where there is no measurement, so that it can be padding.

    Args:
        depth_m: depth in metres.

    Returns:
        Its natural logarithm.
    """
    return torch.where(is_valid(depth_m), depth_m, 1).log()


def to_depth(mean: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Median depth in metres.

    Args:
        mean: log depth.

    Returns:
        Its exponential.
    """
    return mean.exp()


@runtime_checkable
class ErrorDistribution(Protocol):
    """A symmetric distribution around the mean with a given variance."""

    def at(self, where: Bool[Tensor, "*s"]) -> "ErrorDistribution":
        """The distribution of some pixels.

        Args:
            where: mask of the pixels.

        Returns:
            Their distribution.
        """
        ...

    def half_width(self, var: Float[Tensor, "*s"], level: float) -> Float[Tensor, "*s"]:
        """Half the width of the central interval of probability `level`.

        Args:
            var: variance of each pixel.
            level: probability of the interval.

        Returns:
            Half the width, in log depth.
        """
        ...

    def level(self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Probability of the central interval that ends at `error`; inverse of `half_width`.

        Args:
            error: distance of the true value from the mean.
            var: variance of each pixel.

        Returns:
            Probabilities between 0 and 1.
        """
        ...

    def log_density(
        self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*s"]:
        """Natural logarithm of the density at `error`.

        Args:
            error: distance of the true value from the mean.
            var: variance of each pixel.

        Returns:
            In nats.
        """
        ...

    def from_normal(
        self, score: Float[Tensor, "*n"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*n"]:
        """The error of the same probability as a standard normal score; `*s` ends `*n`.

        Args:
            score: of a standard normal distribution.
            var: variance of each pixel.

        Returns:
            Errors of log depth.
        """
        ...


@dataclass(frozen=True)
class Laplace:
    """The paper's distribution: density exp(-|error| / b) / (2 b) with 2 b^2 = var."""

    def at(self, where: Bool[Tensor, "*s"]) -> "Laplace":
        """The distribution of some pixels: the same for all."""
        return self

    def half_width(self, var: Float[Tensor, "*s"], level: float) -> Float[Tensor, "*s"]:
        """Half the width of the central interval of probability `level`."""
        return (var / 2).sqrt() * -math.log1p(-check_level(level))

    def level(self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Probability of the central interval that ends at `error`."""
        return -torch.expm1(-error.abs() * (2 / var).sqrt())

    def log_density(
        self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*s"]:
        """Natural logarithm of the density at `error`; ln 2b = ln(2 var) / 2."""
        return -error.abs() * (2 / var).sqrt() - (2 * var).log() / 2

    def from_normal(
        self, score: Float[Tensor, "*n"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*n"]:
        """The error of the same probability as a standard normal score."""
        size = score.abs().clamp(max=LARGEST_SCORE).double()
        beyond = torch.special.erfc(size / math.sqrt(2)).log()
        return (-beyond).to(score) * score.sign() * (var / 2).sqrt()

    def gaussian_std(
        self, quantile: Float[Tensor, "n"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "n *s"]:
        """Standard deviations, at some quantiles, of the Gaussians that this is a mixture of."""
        exponential = -torch.log1p(-quantile).to(var)
        return (torch.tensordot(exponential, var, dims=0)).sqrt()


LAPLACE = Laplace()


@dataclass(frozen=True)
class StudentT:
    """Gaussian where the variance is the model's, Student's t where it is noise.

    The uncertainty of the weights has many small causes; errors that no basis explains are small on
    surfaces and large at their edges. So a pixel with the share s of noise in its variance has

        error / sqrt(var) = c t,  t of Student's distribution with dof / s degrees of freedom,
        c = width^s

    which is a Gaussian at s = 0. (A t distribution with two degrees of freedom or fewer has no
    variance; `var` is then the fit's estimate, and the width is relative to it.)
    """

    dof: Tensor | float
    """Degrees of freedom of pure noise; for a batch, one number for each image."""
    width: Tensor | float
    """Scale of pure noise, relative to sqrt(var)."""
    noise_share: Float[Tensor, "*s"]
    """Noise variance divided by the variance, for each pixel."""

    def at(self, where: Bool[Tensor, "*s"]) -> "StudentT":
        """The distribution of some pixels."""
        dof, width = (
            number.expand(where.shape)[where] if isinstance(number, Tensor) else number
            for number in (self.dof, self.width)
        )
        return StudentT(dof, width, self.noise_share[where])

    def half_width(self, var: Float[Tensor, "*s"], level: float) -> Float[Tensor, "*s"]:
        """Half the width of the central interval of probability `level`."""
        from scipy.special import stdtrit

        (dof, width), which = self._kinds(var)
        share = torch.linspace(0, 1, KNOTS, dtype=torch.float64)
        dof, scale = _spread(dof[:, None], width[:, None], share)
        above = (1 + check_level(level)) / 2
        table = (torch.from_numpy(stdtrit(dof.numpy(), above)) * scale).to(var)
        place = self.noise_share.to(var) * (KNOTS - 1)
        left = place.long().clamp(0, KNOTS - 2)
        return var.sqrt() * torch.lerp(table[which, left], table[which, left + 1], place - left)

    def level(self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Probability of the central interval that ends at `error`."""
        from scipy.special import stdtr

        dof, scale = (part.cpu().numpy() for part in self._spread)
        size = (error.abs() / var.sqrt()).double().cpu().numpy()
        return torch.from_numpy(2 * stdtr(dof, size / scale) - 1).to(error)

    def log_density(
        self, error: Float[Tensor, "*s"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*s"]:
        """Natural logarithm of the density at `error`."""
        dof, scale = self._spread
        return _log_density(error / var.sqrt(), dof, scale).to(var) - var.log() / 2

    def from_normal(
        self, score: Float[Tensor, "*n"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*n"]:
        """The error of the same probability as a standard normal score.

        ln(error / score) is interpolated between noise shares and scores; its error is below 1e-3.
        """
        kinds, which = self._kinds(var)
        table = torch.stack([_log_ratios(*kind) for kind in kinds.mT.tolist()]).to(var)
        across = (self.noise_share.to(var) * (SHARE_KNOTS - 1)).expand(score.shape)
        along = score.abs().to(var) * ((SCORE_KNOTS - 1) / LARGEST_SCORE)
        left, low = across.long().clamp(0, SHARE_KNOTS - 2), along.long().clamp(0, SCORE_KNOTS - 2)
        place = (which * SHARE_KNOTS + left) * SCORE_KNOTS + low
        here, there = table.flatten(), (along.clamp(max=SCORE_KNOTS - 1) - low)
        one = torch.lerp(here[place], here[place + 1], there)
        place += SCORE_KNOTS
        other = torch.lerp(here[place], here[place + 1], there)
        ratio = torch.lerp(one, other, across - left).exp()
        return score.clamp(-LARGEST_SCORE, LARGEST_SCORE) * ratio * var.sqrt()

    def gaussian_std(
        self, quantile: Float[Tensor, "n"], var: Float[Tensor, "*s"]
    ) -> Float[Tensor, "n *s"]:
        """Standard deviations, at some quantiles, of the Gaussians that this is a mixture of.

        Logarithms are interpolated between square roots of the noise share; errors are below 1e-3.
        """
        from scipy.special import chdtri

        (dof, width), which = self._kinds(var)
        root = torch.linspace(0, 1, SHARE_KNOTS, dtype=torch.float64)
        dof, scale = _spread(dof[:, None], width[:, None], root.square())
        above = quantile.double()[:, None, None].cpu().numpy()
        chi_square = torch.from_numpy(chdtri(dof.numpy(), above))
        table = (scale.log() - (chi_square / dof).log() / 2).to(var)
        place = self.noise_share.to(var).sqrt() * (SHARE_KNOTS - 1)
        left = place.long().clamp(0, SHARE_KNOTS - 2)
        logs = torch.lerp(table[:, which, left], table[:, which, left + 1], place - left)
        return logs.exp_() * var.sqrt()

    def _kinds(self, like: Tensor) -> tuple[Float[Tensor, "2 k"], Tensor]:
        """The different pairs of dof and width, and which of them each pixel has."""
        numbers = torch.as_tensor(self.dof), torch.as_tensor(self.width)
        both = torch.stack(numbers).double().cpu()
        kinds, row = torch.unique(both.view(2, -1), dim=1, return_inverse=True)
        return kinds, row.view(both.shape[1:]).to(like.device)

    @property
    def _spread(self) -> tuple[Tensor, Tensor]:
        share = self.noise_share.double()
        dof, width = (torch.as_tensor(number).to(share) for number in (self.dof, self.width))
        return _spread(dof, width, share)


# Distributions that are Gaussians whose variance is random, too.
ScaleMixture = Laplace | StudentT


def fit_error_distribution(
    error: Float[Tensor, "n"], var: Float[Tensor, "n"], noise_share: Float[Tensor, "n"]
) -> tuple[float, float]:
    """`dof` and `width` of the `StudentT` of largest likelihood.

    Pass pixels of many images at mixed numbers of points, equally many at each: with few points the
    variance is mostly the model's, with many points it is mostly noise.

    Args:
        error: of log depth at some pixels.
        var: predicted variance.
        noise_share: noise variance divided by the variance.

    Returns:
        `dof` and `width`.
    """
    from scipy.optimize import minimize

    size, share = (error.abs() / var.sqrt()).double(), noise_share.double()

    def loss(logs: Any) -> tuple[float, Any]:
        """Mean negative log density up to a constant, and its gradient."""
        leaf = torch.tensor(logs, dtype=torch.float64, device=size.device, requires_grad=True)
        dof = leaf[0].exp() / share.clamp(min=LEAST_SHARE)
        value = -_log_density(size, dof, (share * leaf[1]).exp()).mean()
        (slope,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), slope.cpu().numpy()

    with torch.enable_grad():
        found = minimize(loss, [1.0, -0.5], jac=True, bounds=[(-1.0, 7.0), (-5.0, 3.0)])
    return math.exp(found.x[0]), math.exp(found.x[1])


def interval(
    mean: Float[Tensor, "*s"],
    var: Float[Tensor, "*s"],
    level: float,
    distribution: ErrorDistribution = LAPLACE,
) -> tuple[Float[Tensor, "*s"], Float[Tensor, "*s"]]:
    """Lower and upper bound of depth in metres of the central interval of probability `level`.

    Args:
        mean: of log depth.
        var: of log depth.
        level: probability of the interval, such as 0.9.
        distribution: of the error of log depth.

    Returns:
        Lower and upper bound in metres.

    Raises:
        ValueError: if mean and variance differ in shape, or the level is not a probability.
    """
    half = distribution.half_width(var, level)
    try:
        return to_depth(mean - half), to_depth(mean + half)
    except RuntimeError as error:
        raise ValueError(
            f"the mean is {list(mean.shape)} but the variance {list(var.shape)}; give both the "
            "same shape"
        ) from error


def std(
    mean: Float[Tensor, "*s"], var: Float[Tensor, "*s"], distribution: ErrorDistribution = LAPLACE
) -> Float[Tensor, "*s"]:
    """Half the central 68.27 % interval, in metres.

    Args:
        mean: of log depth.
        var: of log depth.
        distribution: of the error of log depth.

    Returns:
        The error bar in metres.
    """
    low, high = interval(mean, var, ONE_SIGMA, distribution)
    return (high - low) / 2


@lru_cache(maxsize=64)
def _log_ratios(dof: float, width: float) -> Float[Tensor, "k j"]:
    """ln(error / score) in units of sqrt(var), by noise shares and normal scores."""
    from scipy.special import ndtr, stdtrit

    share = torch.linspace(0, 1, SHARE_KNOTS, dtype=torch.float64)
    numbers = torch.tensor([[dof], [width]], dtype=torch.float64)
    degrees, scale = _spread(numbers[0], numbers[1], share)
    size = torch.linspace(0, LARGEST_SCORE, SCORE_KNOTS, dtype=torch.float64)
    size[0] = size[1] / SCORE_KNOTS  # the ratio has a limit at 0
    error = torch.from_numpy(-stdtrit(degrees[:, None].numpy(), ndtr(-size.numpy())))
    return (error * scale[:, None] / size).log()


def _spread(dof: Tensor, width: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Degrees of freedom and c of pixels with a share of noise in their variance."""
    return dof / share.clamp(min=LEAST_SHARE), width**share


def _log_density(x: Tensor, dof: Tensor, scale: Tensor) -> Tensor:
    """Log density at x of Student's t with `dof` degrees of freedom, times `scale`."""
    norm = torch.lgamma((dof + 1) / 2) - torch.lgamma(dof / 2) - (math.pi * dof).log() / 2
    return norm - scale.log() - (dof + 1) / 2 * torch.log1p((x / scale).square() / dof)


def check_level(level: float) -> float:
    """Check the level of an interval.

    Args:
        level: probability.

    Returns:
        The level as a number of Python.

    Raises:
        ValueError: if it is not a probability between 0 and 1.
    """
    wanted = "a probability between 0 and 1"
    number = to_number(level, "the level of an interval", wanted)
    if not 0 < number < 1:
        raise ValueError(f"the level of an interval is {level}; pass {wanted}")
    return number
