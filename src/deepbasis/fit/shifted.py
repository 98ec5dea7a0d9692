# SPDX-License-Identifier: Apache-2.0
"""Find points that are wrong together: an object at a wrong depth, a reflection in a mirror.

Such points agree with each other, so none of them contradicts its neighbours. Only their boundary
is improbable: depth jumps all along it, also where the image shows a single surface.

1. The weights of the bases are fitted to the differences of neighbouring points. A shift changes
   the pairs across its boundary only, which are few; a fit of the depths themselves follows it.
2. Two neighbours are on one surface, and the kernel says how much they may differ; or there is a
   jump between them, the more probable, the less they are correlated. Starting from single points,
   the two groups that belong together most, by the sum of the log odds of the pairs between them,
   are joined, until no two do (greedy additive edge contraction: Keuper et al., ICCV 2015).
3. A group is wrong if the pairs across its boundary that should agree, do not: by their mean log
   odds, for pairs with larger groups. The group with the largest sum is left out first, and the
   others are judged without it.

All of this trusts the network to see surfaces, so it is for images that resemble those of training.
"""

import heapq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepbasis.fit.kernel import Kernel
from deepbasis.fit.neighbours import others
from deepbasis.fit.prior import Prior
from deepbasis.shapes import Bool, Float, Int

# Neighbours of each point, and about the number of pairs that determine the weights.
PAIRS, ENOUGH = 8, 1000
# Rounds of least absolute residuals, and of EM.
LEAST_ABSOLUTE, EM = 2, 3
# Probability of a jump between two points whose difference has a standard deviation of 1 in log
# depth, growing with its square, and the largest; jumps are uniform over this range.
JUMP, MOST_JUMPS, RANGE = 13.0, 0.5, 4.0
# Pairs with a smaller standard deviation and a larger correlation should agree; of those around a
# group, the mean log odds of a jump must be larger than this, where so many pairs of log odds 0 are
# added.
STRONG, ONE_SURFACE, LEAST_ODDS, PRIOR_PAIRS = 0.05, 0.5, 2.6, 6
# Other pairs join groups by this part of their log odds: two surfaces may be equally far away.
WEAK = 0.3
# Share of its strong pairs that a point agrees with, to contradict a group: else it is the point
# that is wrong.
SUPPORTED = 0.5
# A group has this many points at least, and all groups at most this share of the points. Of more
# points than these no groups are made: it would take too long.
FEWEST, LARGEST, MOST = 3, 0.4, 4000
# Smallest variance of a difference.
SMALLEST = 1e-8
# Quantile of the absolute value of a standard normal variable: the median, and another.
MEDIAN, LOW, AT_LOW = 0.6745, 0.35, 0.4538


class Pairs(NamedTuple):
    """Neighbouring points."""

    index: Int[Tensor, "p 2"]
    var: Float[Tensor, "p"]
    """Variance of the difference of their errors, times beta."""
    correlation: Float[Tensor, "p"]


@torch.no_grad()
def find_shifted(
    kernel: Kernel,
    prior: Prior,
    x: Float[Tensor, "n f"],
    phi: Float[Tensor, "n m"],
    z: Float[Tensor, "n"],
    amplitude: Float[Tensor, "n"],
    weight: Float[Tensor, "n"],
) -> Bool[Tensor, "n"]:
    """Which points of one image are in groups that contradict all others; see `correlated` for the
    arguments.
    """
    none = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    if not PAIRS < len(z) <= MOST:
        return none
    pairs = find_pairs(kernel, x, amplitude, weight)
    odds, std = log_odds(prior, phi, z, pairs)
    strong = (std < STRONG) & (pairs.correlation > ONE_SURFACE)
    found = leave_out(*(part.cpu().numpy() for part in (pairs.index, odds, strong)), len(z))
    return torch.from_numpy(found).to(none.device)


def find_pairs(
    kernel: Kernel,
    x: Float[Tensor, "n f"],
    amplitude: Float[Tensor, "n"],
    weight: Float[Tensor, "n"],
) -> Pairs:
    """Each point with its neighbours, every pair once."""
    near = others(x[:, :2], PAIRS)
    here = torch.arange(len(x), device=x.device)[:, None].expand_as(near)
    both = torch.stack([here, near], -1).flatten(0, 1)
    index = torch.unique(both.sort(-1).values, dim=0)
    i, j = index.unbind(-1)
    place, s = kernel.scale(x).double(), amplitude.double()
    correlation = kernel.at_distance((place[i] - place[j]).norm(dim=-1))
    noise = kernel.noise(weight.double())
    var = s[i].square() + s[j].square() - 2 * s[i] * s[j] * correlation + noise[i] + noise[j]
    return Pairs(index, var, correlation)


def log_odds(
    prior: Prior, phi: Float[Tensor, "n m"], z: Float[Tensor, "n"], pairs: Pairs
) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"]]:
    """Log odds of one surface against a jump, of each pair, and the std of its difference."""
    (i, j), root = pairs.index.unbind(-1), prior.root.double()
    design, centred = phi.double() @ root, z.double() - phi.double() @ prior.mean.double()
    step = max(len(i) // ENOUGH, 1)
    some = design[i[::step]] - design[j[::step]]
    change, var = centred[i[::step]] - centred[j[::step]], pairs.var[::step]
    # A point is in several pairs: together they count as one for each point.
    share, residual = len(z) / len(i), change
    scale = (residual.square() / var).median() / MEDIAN**2
    for _ in range(LEAST_ABSOLUTE):
        usual = (scale * var).clamp(min=SMALLEST)
        mean = _solve(some, change, share * (1 + residual.square() / usual).rsqrt() / usual)
        residual = change - some @ mean
        scale = torch.quantile(residual.square() / var, LOW) / AT_LOW**2
    for _ in range(EM):
        usual = (scale * var).clamp(min=SMALLEST)
        same, jump = densities(residual, usual)
        right = same / (same + jump)
        # Of t with 3 degrees of freedom, as a Gaussian of variable precision.
        precision = right * 4 / (3 + residual.square() / usual) / usual
        mean = _solve(some, change, share * precision)
        residual = change - some @ mean
        scale = _weighted_median(residual.square() / var, right) / MEDIAN**2
    left = centred - design @ mean
    usual = (scale * pairs.var).clamp(min=SMALLEST)
    same, jump = densities(left[i] - left[j], usual)
    return (same + jump).log() + np.log(RANGE), usual.sqrt()


def densities(
    difference: Float[Tensor, "p"], var: Float[Tensor, "p"]
) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"]]:
    """Density of a difference, times the probability of one surface and of a jump that the image
    shows.
    """
    chance = (JUMP * var).clamp(max=MOST_JUMPS)
    t = 2 / (np.pi * np.sqrt(3)) * (1 + difference.square() / (3 * var)) ** -2 / var.sqrt()
    return (1 - chance) * t, chance / RANGE


def leave_out(
    pairs: Int[np.ndarray, "p 2"],
    odds: Float[np.ndarray, " p"],
    strong: Bool[np.ndarray, " p"],
    n: int,
) -> Bool[np.ndarray, " n"]:
    """Points of the groups that contradict the others."""
    group = join(pairs, np.where(strong | (odds < 0), odds, WEAK * odds), n)
    size = np.bincount(group)
    all_of, agreeing = (
        np.bincount(pairs[some].ravel(), minlength=n) for some in (strong, strong & (odds > 0))
    )
    supported = (agreeing >= SUPPORTED * all_of)[pairs].all(1)
    across = strong & supported & (group[pairs[:, 0]] != group[pairs[:, 1]])
    ends, jumps = group[pairs[across]], -odds[across]
    wrong = np.zeros(len(size), np.bool_)
    possible = (size >= FEWEST) & (size <= LARGEST * n)
    # A group is judged by larger ones.
    small = np.take_along_axis(ends, size[ends].argmin(1)[:, None], 1)[:, 0]
    while True:
        rest = ~wrong[ends].any(1)
        total = np.bincount(small[rest], jumps[rest], len(size))
        count = np.bincount(small[rest], minlength=len(size))
        sure = possible & ~wrong & (total > LEAST_ODDS * (count + PRIOR_PAIRS))
        worst = np.where(sure, total, -np.inf).argmax()
        if not sure[worst] or wrong[group].sum() + size[worst] > LARGEST * n:
            found: Bool[np.ndarray, " n"] = wrong[group]
            return found
        wrong[worst] = True


def join(
    pairs: Int[np.ndarray, "p 2"], odds: Float[np.ndarray, " p"], n: int
) -> Int[np.ndarray, " n"]:
    """Group of each point."""
    near: list[dict[int, float]] = [{} for _ in range(n)]
    queue = []
    for (a, b), value in zip(pairs.tolist(), odds.tolist(), strict=True):
        near[a][b] = near[b][a] = value
        if value > 0:
            queue.append((-value, a, b))
    heapq.heapify(queue)
    joined = list(range(n))
    while queue:
        value, a, b = heapq.heappop(queue)
        if near[a].get(b) != -value:  # one of them was joined to another since
            continue
        if len(near[a]) < len(near[b]):
            a, b = b, a
        joined[b] = a
        del near[a][b], near[b][a]
        for other, more in near[b].items():
            del near[other][b]
            total = near[a].get(other, 0.0) + more
            near[a][other] = near[other][a] = total
            if total > 0:
                heapq.heappush(queue, (-total, a, other))
        near[b] = {}
    root = np.array(joined)
    while (root != root[root]).any():
        root = root[root]
    group: Int[np.ndarray, " n"] = np.unique(root, return_inverse=True)[1]
    return group


def _solve(
    phi: Float[Tensor, "p m"], z: Float[Tensor, "p"], precision: Float[Tensor, "p"]
) -> Float[Tensor, "m"]:
    weighted = phi * precision[:, None]
    eye = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
    chol = torch.linalg.cholesky(eye + weighted.mT @ phi)
    return torch.cholesky_solve((weighted.mT @ z)[:, None], chol)[:, 0]


def _weighted_median(values: Float[Tensor, "n"], weight: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    order = values.argsort()
    below = weight[order].cumsum(0)
    return values[order[(below < below[-1] / 2).sum()]]
