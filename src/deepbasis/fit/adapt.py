# SPDX-License-Identifier: Apache-2.0
"""A known prior brought to new frames, of which there may be fewer than bases.

The old prior counts as frames that were seen before: so many for its mean, so many for its
covariance. This is the mode under a normal-inverse-Wishart prior of mean and covariance (Gelman et
al., Bayesian Data Analysis, section 3.6), centred on the old ones. A frame's weights are not known
but estimated, so EM alternates between their posteriors and that mode; a frame with few points
then tells little, and one without any tells nothing.
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

# As many frames as leave the old prior as it is.
KEEP = 1e6
# EM steps; with more points than bases the first is all but the last.
STEPS = 4
# Parts of the frames, each in one piece, that are foretold from the others to choose a strength.
FOLDS = 4
# Points of a frame that are foretold: few, since that is where a prior matters, and since the
# errors of near points are not independent, so that many would be too sure of their frame.
FEW = 20


class Strength(NamedTuple):
    """How many frames the old prior counts for."""

    mean: float
    cov: float


class Adapted(NamedTuple):
    """A prior for new frames, and how it was chosen."""

    prior: Prior
    strength: Strength
    scores: dict[Strength, float]
    """Mean log evidence of a few points of frames that the prior was not learned from."""


class Rows(NamedTuple):
    """Points of k frames in units of their noise, r rows each, filled up with zeros."""

    phi: Float[Tensor, "k r m"]
    z: Float[Tensor, "k r"]

    def at(self, where: Tensor) -> "Rows":
        """Those of some frames."""
        return Rows(self.phi[where], self.z[where])

    def fit(self, prior: Prior) -> Posterior:
        """Posteriors of the weights; evidences are right up to a constant."""
        return posterior(self.phi, self.z, prior, beta=1.0)


@torch.no_grad()
def adapt_prior(
    fits: Sequence[Posterior], prior: Prior, strengths: Sequence[Strength] = ()
) -> Adapted:
    """Learn the prior of some frames, starting from another.

    Args:
        fits: of each frame, made by `evidence` with the old prior; their points and noise count.
        prior: the old one.
        strengths: what the old prior may count for; the one is taken that foretells frames best
            that were not learned from. By default 1, 5, 25 or all frames for the mean, and 1/4, 1,
            4 times the bases or all for the covariance.
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


def learn(rows: Rows, old: Prior, strength: Strength) -> Prior:
    """EM from the old prior."""
    prior = old
    for _ in range(STEPS):
        prior = combine(rows.fit(prior), old, strength)
    return prior


def combine(post: Posterior, old: Prior, strength: Strength) -> Prior:
    """Mean and covariance of the frames' weights and those that the old prior counts for."""
    k = len(post.mean)
    mean = (strength.mean * old.mean + post.mean.sum(0)) / (strength.mean + k)
    off, moved = post.mean - mean, mean - old.mean
    scatter = off.mT @ off + post.cov.sum(0) + strength.mean * torch.outer(moved, moved)
    cov = (strength.cov * old.cov + scatter) / (strength.cov + k)
    return Prior(mean, (cov + cov.mT) / 2)


def reduce(post: Posterior) -> tuple[Float[Tensor, "r m"], Float[Tensor, "r"]]:
    """At most m + 1 rows that tell of the weights what all points do: R of a QR decomposition."""
    phi, z = _in_noise(post)
    r = torch.linalg.qr(torch.cat([phi, z[:, None]], 1), mode="r")[1]
    return r[:, :-1], r[:, -1]


def _few(post: Posterior) -> tuple[Float[Tensor, "r m"], Float[Tensor, "r"]]:
    """Some of the points, evenly spread."""
    phi, z = _in_noise(post)
    where = torch.linspace(0, len(z) - 1, min(FEW, len(z))).round().long()
    return phi[where], z[where]


def _in_noise(post: Posterior) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n"]]:
    size = (post.beta * post.points.weight).sqrt()
    return post.points.phi * size[:, None], post.points.z * size


def _stack(frames: Sequence[tuple[Tensor, Tensor]]) -> Rows:
    phi, z = ([frame[part] for frame in frames] for part in (0, 1))
    return Rows(pad_sequence(phi, batch_first=True), pad_sequence(z, batch_first=True))


def _score(rows: Rows, few: Rows, old: Prior, strength: Strength) -> float:
    """Mean log evidence of the few points of each part under the prior of the others."""
    part = torch.arange(len(rows.z), device=rows.z.device) * FOLDS // len(rows.z)
    found = [
        few.at(part == one).fit(learn(rows.at(part != one), old, strength)).log_evidence
        for one in range(FOLDS)
        if (part == one).any()
    ]
    return float(torch.cat(found).mean())
