# SPDX-License-Identifier: Apache-2.0
"""Adapt a prior to new frames, of which there may be fewer than bases.

The old prior acts like a number of earlier frames, one number for its mean and one for its
covariance. The result is the mode under a normal-inverse-Wishart prior of mean and covariance
(Gelman et al., Bayesian Data Analysis, section 3.6), centred on the old ones. The weights of a
frame are not known but estimated, so EM alternates between their posteriors and that mode; a frame
with few points then has little influence, and one without points has none.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from deepbasis.fit.linear import Posterior, posterior
from deepbasis.fit.prior import Prior
from deepbasis.shapes import Float

# Number of frames that leaves the old prior unchanged.
KEEP = 1e6
# EM steps; with more points than bases it nearly converges in the first.
STEPS = 4
# Folds of cross-validation, each of consecutive frames, to choose a strength.
FOLDS = 4
# Points of a frame that are predicted in cross-validation: few, since a prior matters there, and
# since errors of near points are correlated, so that many would be overconfident.
FEW = 20


class Strength(NamedTuple):
    """Equivalent number of frames of the old prior."""

    mean: float
    """For the mean."""
    cov: float
    """For the covariance."""


class Adapted(NamedTuple):
    """A prior for new frames, and how it was chosen."""

    prior: Prior
    """The new prior."""
    strength: Strength
    """Of the old one, as chosen."""
    scores: dict[Strength, float]
    """Mean log evidence of a few points of frames outside the training folds."""


class FrameRows(NamedTuple):
    """Points of k frames in units of their noise, r rows each, padded with zeros."""

    phi: Float[Tensor, "k r m"]
    z: Float[Tensor, "k r"]

    def at(self, where: Tensor) -> "FrameRows":
        """The rows of some frames."""
        return FrameRows(self.phi[where], self.z[where])

    def fit(self, prior: Prior) -> Posterior:
        """Posteriors of the weights; the evidence is correct up to a constant."""
        return posterior(self.phi, self.z, prior, beta=1.0)


@torch.no_grad()
def adapt_prior(
    fits: Sequence[Posterior], prior: Prior, strengths: Sequence[Strength] = ()
) -> Adapted:
    """Learn the prior of some frames, starting from an old prior.

    Args:
        fits: posterior of each frame by `evidence` with the old prior; their points and noise are
            used.
        prior: the old prior.
        strengths: candidates for the strength of the old prior; cross-validation chooses the one
            that predicts other frames best. By default 1, 5, 25 or `KEEP` frames for the mean, and
            1/4, 1, 4 times the number of bases or `KEEP` for the covariance.

    Returns:
        The new prior, the strength that was chosen and the scores of all strengths.

    Raises:
        ValueError: if fewer than 2 frames have points.
    """
    seen = [post.exact or post for post in fits if post.points.n > 0]
    if len(seen) < 2:
        raise ValueError(
            f"{len(seen)} of {len(fits)} frames have points; a prior needs at least 2 of them"
        )
    old = Prior(prior.mean.to(seen[0].mean), prior.cov.to(seen[0].mean))
    m = len(old.mean)
    known = strengths or [
        Strength(*pair) for pair in product((1, 5, 25, KEEP), (m / 4, m, 4 * m, KEEP))
    ]
    rows = _stack([reduce(post) for post in seen])
    scores: dict[Strength, float] = {}
    if len(known) > 1:
        few = _stack([_few(post) for post in seen])
        scores = {strength: _score(rows, few, old, strength) for strength in known}
    best = max(scores, key=lambda one: scores[one]) if scores else known[0]
    return Adapted(learn(rows, old, best), best, scores)


def learn(rows: FrameRows, old: Prior, strength: Strength) -> Prior:
    """EM from the old prior."""
    prior = old
    for _ in range(STEPS):
        prior = update(rows.fit(prior), old, strength)
    return prior


def update(post: Posterior, old: Prior, strength: Strength) -> Prior:
    """Mean and covariance of the frames' weights, and of the old prior's frames."""
    k = len(post.mean)
    mean = (strength.mean * old.mean + post.mean.sum(0)) / (strength.mean + k)
    off, moved = post.mean - mean, mean - old.mean
    scatter = off.mT @ off + post.cov.sum(0) + strength.mean * torch.outer(moved, moved)
    cov = (strength.cov * old.cov + scatter) / (strength.cov + k)
    return Prior(mean, (cov + cov.mT) / 2)


def reduce(post: Posterior) -> tuple[Float[Tensor, "r m"], Float[Tensor, "r"]]:
    """At most m + 1 rows with the same likelihood of the weights as all points: R of QR."""
    phi, z = _in_noise(post)
    r = torch.linalg.qr(torch.cat([phi, z[:, None]], 1), mode="r")[1]
    return r[:, :-1], r[:, -1]


def _few(post: Posterior) -> tuple[Float[Tensor, "r m"], Float[Tensor, "r"]]:
    """A few of the points, evenly spaced."""
    phi, z = _in_noise(post)
    where = torch.linspace(0, len(z) - 1, min(FEW, len(z))).round().long()
    return phi[where], z[where]


def _in_noise(post: Posterior) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n"]]:
    size = (post.beta * post.points.weight).sqrt()
    return post.points.phi * size[:, None], post.points.z * size


def _stack(frames: Sequence[tuple[Tensor, Tensor]]) -> FrameRows:
    phi, z = ([frame[part] for frame in frames] for part in (0, 1))
    return FrameRows(pad_sequence(phi, batch_first=True), pad_sequence(z, batch_first=True))


def _score(rows: FrameRows, few: FrameRows, old: Prior, strength: Strength) -> float:
    """Mean log evidence of a few points of each fold under the prior of the other folds."""
    fold = torch.arange(len(rows.z), device=rows.z.device) * FOLDS // len(rows.z)
    found = [
        few.at(fold == one).fit(learn(rows.at(fold != one), old, strength)).log_evidence
        for one in range(FOLDS)
        if (fold == one).any()
    ]
    return float(torch.cat(found).mean())
