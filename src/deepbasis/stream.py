# SPDX-License-Identifier: Apache-2.0
"""Sequences: each frame starts from the estimate of the frames before it.

The weights w of a frame deviate from the prior N(m0, S0) of a single frame much as those of the
frame before did. Let mu be the mean of the bases over a frame: mu' (w - m0) is the deviation of its
mean log depth, of which d = S0 mu / (mu' S0 mu) is the part of the weights, and the rest does not
depend on it. Each part keeps to itself:

    w(t) - m0 = A (w(t - 1) - m0) + v,    v ~ N(0, S0 - A S0 A'),    A = a (I - d mu') + b d mu'

with 1 - b^2 and 1 - a^2, the shares of the variance that are new in a frame, for the mean log depth
and for the rest. So the prior of a frame is the posterior of the last, N(m, P), widened: mean
m0 + A (m - m0), covariance A P A' + S0 - A S0 A'; and `fit.evidence` is the update of a Kalman
filter. The posterior of the last frame is that of one regression on the points of all frames.
Without any point it is the prior of a single frame.

S0 is the model's prior covariance, which is wider if the image is unfamiliar: in such a place the
network is often off by a factor that is common to all frames, and a few points correct it.

What the network sees anew in every frame flickers, with or without points. So pixels are tracked
from frame to frame, and the mean of the weights is moved towards what was predicted at the same
places of the scene before: an exponential average along the tracks. Its variance is not lowered for
that, since the errors of consecutive frames have much in common.

If the camera's poses are known, measurements are carried over as a map of points: seen from the
next frame they are points with a larger sigma. Each measurement counts once: while it is in the map
it is fitted again in every frame, and when it leaves the map the weights' posterior takes it in.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from deepbasis import fit, latent
from deepbasis.arguments import show, to_bool
from deepbasis.fit import sampling
from deepbasis.fit.correlated import bound, combine
from deepbasis.layer import BasisFit, Errors, Fitted, Observed, Pyramid
from deepbasis.layer.errors import CorrelatedFit
from deepbasis.layer.judge import WRONG
from deepbasis.layer.learned_prior import LearnedPrior
from deepbasis.points import (
    Points,
    check_max_depth,
    check_pose,
    project,
    remove_occluded,
    to_camera,
    to_points,
)
from deepbasis.result import NO_POINTS, Completion
from deepbasis.shapes import Bool, Float, UInt8
from deepbasis.tracking import Tracks, lattice, to_grey, track

# Share of the variance that is new in a frame: of the mean log depth, and of all else.
SCALE_CHANGE, SHAPE_CHANGE = 0.003, 0.06
# Pixels that are tracked, and the share of those with texture that must be found again: fewer are
# found after a cut.
TRACKED, FOUND = 300, 0.15
# Share of what was predicted before in the exponential average.
KEPT = 0.7
# Standard deviation of the log depth of tracked pixels around what the bases can follow.
TRACK_NOISE = 0.1
ROBUST_ROUNDS = 3
# A change of scene within view is this unlikely beforehand: ln of the odds.
SURPRISE = 8.0
# Why a point is dropped.
LEFT_OUT = "left out as wrong"
# Points of the map, at most, and how uncertain their places become, in metres for each metre that
# the camera moves: visual odometry drifts by about 1 % of the way.
MAP_POINTS, DRIFT = 500, 0.01
# A point of the map is hidden by a nearer point within this distance, in image widths.
HIDING = 0.01
# Of a filtered prior the scale is known: a Gamma distribution of alpha around 1.
KNOWN_SCALE = fit.Gamma(1e6, 1e6)


@runtime_checkable
class View(Protocol):
    """An image with the output of the network; see `model.Scene`."""

    @property
    def image(self) -> UInt8[Tensor, "1 3 h w"]:
        """Pixels."""
        ...

    @property
    def pyramid(self) -> Pyramid:
        """Bases."""
        ...

    @property
    def familiarity(self) -> float | None:
        """See `Completion.familiarity`."""
        ...

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings about the camera."""
        ...

    def fit(
        self,
        points: Points,
        *,
        errors: Errors | None = None,
        huber: float | None = None,
        prior: LearnedPrior | None = None,
        widened: bool = True,
    ) -> Fitted:
        """Fit points to the image."""
        ...

    def observe(self, points: Points, *, errors: Errors | None = None) -> Observed:
        """Points with the bases of the image."""
        ...


class Landmarks(NamedTuple):
    """Measurements at places of the world."""

    xyz: Float[Tensor, "n 3"]
    var: Float[Tensor, "n"]
    """Of the place along a camera's axis, square metres."""

    @classmethod
    def of(cls, points: Points, camera: Float[Tensor, "3 3"], pose: Tensor) -> "Landmarks":
        """The points of a frame, seen with this camera at this pose."""
        depth = latent.to_depth(points.z.double())
        pixels = torch.stack([points.u, points.v, torch.ones_like(points.u)]).double()
        xyz = (torch.linalg.solve(camera, pixels) * depth).mT
        sigma = torch.zeros_like(depth) if points.sigma is None else points.sigma * depth
        return cls(xyz @ pose[:3, :3].mT + pose[:3, 3], sigma.square())

    def seen_from(self, pose: Tensor, camera: Tensor) -> Float[Tensor, "n 4"]:
        """Rows u v metres sigma in a frame; depth is 0 for what is behind the camera."""
        there = (self.xyz - pose[:3, 3]) @ pose[:3, :3]
        u, v, ahead = project(there, camera)
        depth = torch.where(ahead, there[:, 2], 0)
        return torch.stack([u, v, depth, self.var.sqrt()], 1)


class LastFrame(NamedTuple):
    """What the next frame needs of the last."""

    grey: Float[Tensor, "1 1 h w"]
    mean: Float[Tensor, "h w"]
    """Log depth as predicted."""
    weights: fit.Prior | None
    """Posterior of the weights given all points that are not in the map; None without any."""
    fitted: Fitted | None
    """None if all points are in `weights`."""
    pose: Float[Tensor, "4 4"] | None
    points: Points
    """All that were fitted: measured and carried over. With a pose, they are the map."""

    @property
    def light(self) -> "LastFrame":
        """The same without the bases, which take most of the memory; for frames without a pose."""
        everything = torch.ones(len(self.points), dtype=torch.bool)
        weights = self.weights
        if self.fitted is not None and everything.any():
            weights = absorb(self.fitted, everything)
        return self._replace(weights=weights, fitted=None, points=self.points.where(~everything))


@dataclass
class Stream:
    """The state of a sequence between two frames.

    Args:
        layer: of the model.
        errors: error model; by default the layer's own.
        robust, huber: as in `Completer.complete`.
        max_depth: drop points beyond this many metres.
        intrinsics: of the camera, 3 x 3 in pixels; needed if frames have poses.
    """

    layer: BasisFit
    errors: Errors | None = None
    robust: bool = True
    huber: float | None = None
    max_depth: float | None = None
    intrinsics: ArrayLike | None = None
    last: LastFrame | None = field(default=None, repr=False)
    count: int = 0
    """Frames so far."""
    resets: list[int] = field(default_factory=list)
    """Numbers of the frames at which all that was known was dropped."""

    def __post_init__(self) -> None:
        if not isinstance(self.layer, BasisFit):
            raise ValueError(f"the layer is {show(self.layer)}; pass `model.network.fit`")
        self.limit = check_max_depth(self.max_depth)
        self.robust = to_bool(self.robust, "`robust`")
        self.camera = None
        if self.intrinsics is not None:
            self.camera = to_camera(self.intrinsics)

    @torch.no_grad()
    def add(
        self,
        scene: View,
        points: ArrayLike | Points | None = None,
        pose: ArrayLike | None = None,
        name: str | None = None,
    ) -> Completion:
        """Complete the next frame.

        Args:
            scene: the image, as `Completer.prepare` returns it.
            points: as in `Completer.complete`.
            pose: 4 x 4, from the camera's frame to the world's.
            name: of the frame, for messages (default: its number).
        """
        if not hasattr(scene, "pyramid"):
            raise ValueError(f"the scene is {show(scene)}; pass what `model.prepare(image)` gave")
        size = (scene.image.shape[2], scene.image.shape[3])
        place = self._check(size, pose, str(self.count) if name is None else name)
        own = self.own_points(scene, points)
        if self.robust:
            right = self.judge(scene, own)
            own = own.where(right)
            if left_out := int((~right).sum()):
                own = replace(own, dropped=own.dropped | {LEFT_OUT: left_out})
        grey = to_grey(scene.image.cpu())
        last, tracks = self.last, None
        places = lattice(size, TRACKED)
        if last is not None:
            tracks = track(last.grey, grey, places)
            if (tracks.found & tracks.textured).sum() < FOUND * tracks.textured.sum():
                last = None
        used, known = own, None
        if last is not None:
            used, left = self._carry(last, own, place, size)
            known = last.weights
            if last.fitted is not None and left.any():
                known = absorb(last.fitted, left)
            if known is not None:
                v, u = places.to(scene.image.device).mT[:, None]
                known = widen(known, self._prior_of(scene), scene.pyramid.at(v, u)[0].mean(0))
        fitted = self._fit(scene, used, known)
        if last is not None and len(own) and (known is not None or len(used) > len(own)):
            anew = self._fit(scene, used, None)
            if float(anew.posterior.log_evidence - fitted.posterior.log_evidence) > SURPRISE:
                fitted = anew if len(used) == len(own) else self._fit(scene, own, None)
                last, used, known = None, own, None
        if self.last is not None and last is None:
            self.resets.append(self.count)
        if last is not None and tracks is not None and tracks.found.any():
            shown = follow(fitted, last.mean, tracks)
        else:
            shown = fitted
        out = Completion.of(shown.prediction, used, shown, None, scene.familiarity, scene.doubts)
        if known is not None:
            kept = tuple(warning for warning in out.warnings if warning != NO_POINTS)
            out = replace(out, warnings=kept)
        mean = shown.prediction.mean[0, 0].clone()  # the result is the user's
        self.last = LastFrame(grey, mean, known, fitted, place, used)
        self.count += 1
        return out

    def copy(self) -> "Stream":
        """A stream in the same state; frames that are added to it do not change this one."""
        return replace(self, resets=[*self.resets])

    def own_points(self, scene: View, points: ArrayLike | Points | None) -> Points:
        """The valid points of a frame, in reading order."""
        size = scene.pyramid.size
        own = to_points(points, size).inside(size, self.limit)
        return own.where(own.weight > 0)

    @torch.no_grad()
    def judge(self, scene: View, own: Points) -> Bool[Tensor, "n"]:
        """Which points of a frame do not contradict its others."""
        if not len(own):
            return torch.ones(0, dtype=torch.bool)
        return self.layer.judge(scene.observe(own, errors=self.errors)).cpu() <= WRONG

    def _check(self, size: tuple[int, int], pose: ArrayLike | None, name: str) -> Tensor | None:
        """The pose as a tensor; frames that do not belong to the sequence are refused."""
        if self.last is not None and self.last.mean.shape != size:
            height, width = self.last.mean.shape
            raise ValueError(
                f"frame {name} is {size[0]} x {size[1]} pixels (height x width), but those "
                f"before it are {height} x {width}; frames of a sequence must have the same size"
            )
        if pose is None:
            return None
        if self.camera is None:
            raise ValueError("frames have poses, so the camera must be known: pass `intrinsics`")
        return check_pose(pose, f"the pose of frame {name}")

    def _carry(
        self, last: LastFrame, own: Points, pose: Tensor | None, size: tuple[int, int]
    ) -> tuple[Points, Bool[Tensor, "n"]]:
        """Points of a frame and those of the map that it sees; which of the last frame's left."""
        left = torch.ones(len(last.points), dtype=torch.bool)
        if pose is None or last.pose is None or self.camera is None or not len(last.points):
            return own, left
        marks = Landmarks.of(last.points, self.camera, last.pose)
        way = float((pose[:3, 3] - last.pose[:3, 3]).norm())
        sigma = marks.var.sqrt() + DRIFT * way  # adds up along the way, at any frame rate
        rows = marks._replace(var=sigma.square()).seen_from(pose, self.camera)
        u, v, depth, sigma = rows.unbind(1)
        height, width = size
        inside = (u > -0.5) & (u < width - 0.5) & (v > -0.5) & (v < height - 0.5)
        inside &= latent.is_valid(depth)
        kept = inside.nonzero()[:, 0]
        # The most certain ones, which are the newest.
        kept = kept[sigma[kept].argsort(stable=True)[: max(MAP_POINTS - len(own), 0)]]
        both = Points.from_rows(torch.cat([_rows(own), rows[kept]]).numpy())
        origin = torch.cat([torch.full((len(own),), -1), kept])
        row, column = both.pixel
        # Of points on one pixel the first is kept: measured in this frame, or else the newest.
        first = torch.from_numpy(np.unique((row * width + column).numpy(), return_index=True)[1])
        both, origin = both.where(first), origin[first]
        numbered = replace(both, weight=torch.arange(1, len(both) + 1).to(both.z))
        visible = remove_occluded(numbered, size, radius=max(round(HIDING * width), 1)).weight
        seen = origin < 0
        seen[visible.long() - 1] = True
        carried = origin[seen & (origin >= 0)]
        left[carried] = False
        return replace(both.where(seen), dropped=own.dropped), left

    @property
    def prior(self) -> fit.Prior:
        """Of the weights of a single frame."""
        own = self.layer.prior.value
        return fit.Prior(own.mean.double(), own.cov.double())

    def _prior_of(self, scene: View) -> fit.Prior:
        """Of the weights of this frame alone: wider if its image is unfamiliar."""
        none = scene.observe(to_points(None, scene.pyramid.size), errors=self.errors)
        found = self.layer.error_model(self.errors).prior_of(_learned(self.prior), none)
        return _of_one_image(found)

    def _fit(self, scene: View, points: Points, known: fit.Prior | None) -> Fitted:
        alpha = self.layer.prior.alpha.value if known is None else KNOWN_SCALE
        learned = _learned(self.prior if known is None else known, alpha)
        return scene.fit(
            points, errors=self.errors, huber=self.huber, prior=learned, widened=known is None
        )


def _learned(prior: fit.Prior, alpha: fit.Gamma | None = None) -> LearnedPrior:
    learned = LearnedPrior(len(prior.mean)).double().to(prior.mean.device)
    learned.set(prior, alpha)
    return learned


def _of_one_image(prior: fit.Prior) -> fit.Prior:
    """A widened prior is a batch, with one prior for each image."""
    return fit.Prior(prior.mean[0], prior.cov[0]) if prior.mean.ndim > 1 else prior


def absorb(fitted: Fitted, some: Bool[Tensor, "n"]) -> fit.Prior:
    """Posterior of the weights given the prior of a fit and some of its points."""
    exact = fitted.posterior.exact or fitted.posterior
    points, prior = exact.points, _of_one_image(fitted.prior)
    post = fit.posterior(
        points.phi[0, some], points.z[0, some], prior, points.weight[0, some],
        alpha=exact.alpha[0], beta=exact.beta[0],
    )  # fmt: skip
    return fit.Prior(post.mean, symmetric(post.cov))


def widen(weights: fit.Prior, prior: fit.Prior, bases: Float[Tensor, "m"]) -> fit.Prior:
    """The posterior of the weights of a frame as the prior of the next.

    Args:
        weights: posterior of the last frame.
        prior: of a single frame.
        bases: their mean over the next frame.
    """
    mean, cov, mu = (x.double() for x in (prior.mean, prior.cov, bases))
    d = cov @ mu / (mu @ cov @ mu)
    scale, shape = (1 - SCALE_CHANGE) ** 0.5, (1 - SHAPE_CHANGE) ** 0.5
    step = shape * torch.eye(len(mu)).to(mu) + (scale - shape) * torch.outer(d, mu)
    return fit.Prior(
        mean + step @ (weights.mean - mean),
        symmetric(cov + step @ (weights.cov - cov) @ step.mT),
    )


def follow(fitted: Fitted, before: Float[Tensor, "h w"], tracks: Tracks) -> Fitted:
    """Move the mean of the weights towards what was predicted before along the tracks."""
    size = fitted.observed.pyramid.size
    there, here = (pixels(x.to(before.device), size) for x in (tracks.before, tracks.after))
    mean, rest = predict_at(fitted, *here)
    wanted = KEPT * (before[there].double() - mean)
    post = fitted.posterior.exact or fitted.posterior
    room = fit.Prior(torch.zeros_like(post.mean[0]), symmetric(post.cov[0]))
    weight = torch.ones_like(wanted)
    move = torch.zeros_like(post.mean[0])
    for _ in range(ROBUST_ROUNDS):
        move = fit.posterior_mean(rest, wanted, room, weight, beta=1 / TRACK_NOISE**2)
        weight = 1 / (1 + ((wanted - rest @ move) / TRACK_NOISE).square())
    return replace(fitted, posterior=shift(fitted.posterior, move))


def shift(post: fit.Posterior, move: Float[Tensor, "m"]) -> fit.Posterior:
    """The same posterior around another mean."""
    exact = None if post.exact is None else shift(post.exact, move)
    return replace(post, mean=post.mean + move.to(post.mean), exact=exact)


def predict_at(
    fitted: Fitted, row: Tensor, column: Tensor
) -> tuple[Float[Tensor, "p"], Float[Tensor, "p m"]]:
    """Mean of some pixels of a batch of one, and its derivative by the weights, in float64.

    Blocks of pixels are not blended here, see `fit.field`: the means of pixels at their borders
    differ a little from those of the whole map.
    """
    seen = fitted.observed
    bases = seen.pyramid.at(row[None].float(), column[None].float())[0].double()
    post = fitted.posterior.exact or fitted.posterior
    weights = post.mean[0].double()
    if not isinstance(fitted, CorrelatedFit) or not len(seen.points):
        return bases @ weights, bases
    field = fitted.fields[0]
    near, b, _ = sampling.krige(field, row, column)
    s = torch.ones_like(weights[:1]).expand(len(row))
    if seen.amplitude is not None:
        s = seen.amplitude[0, 0, row, column].double()
    phi, z = (x[0].double() for x in seen.by_amplitude[:2])
    values = torch.cat([(z - phi @ weights)[:, None], phi], -1)
    values = torch.nn.functional.pad(values, (0, 0, 0, field.k))
    known = combine(near, b.double(), values)
    correction = s * bound(known[:, 0], values[:, 0][near])
    return bases @ weights + correction, bases - s[:, None] * known[:, 1:]


def pixels(places: Float[Tensor, "k 2"], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Row and column of the pixels that contain places."""
    row, column = (places + 0.5).floor().long().unbind(1)
    return row.clamp(0, size[0] - 1), column.clamp(0, size[1] - 1)


def symmetric(cov: Tensor) -> Tensor:
    """Without rounding errors."""
    return (cov + cov.mT) / 2


def _rows(points: Points) -> Float[Tensor, "n 4"]:
    """Rows u v metres sigma; a sigma that is not known is 0."""
    rows = torch.from_numpy(points.rows)
    return rows if rows.shape[1] == 4 else torch.nn.functional.pad(rows, (0, 1))
