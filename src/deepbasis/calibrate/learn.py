# SPDX-License-Identifier: Apache-2.0
"""Learn prior, noise, kernel and calibration for a network that no longer changes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import fit, latent
from deepbasis.calibrate.measure import (
    Predicted,
    Predicts,
    gather_rows,
    pattern_of,
    predict,
    share,
    some,
)
from deepbasis.data.sample import Frames
from deepbasis.data.sources import subsample
from deepbasis.data.training import TrainingSet
from deepbasis.data.with_points import WithPoints
from deepbasis.layer import BasisFit, CalibrationRow, ErrorModel, Errors, Observed
from deepbasis.layer.judge import WRONG
from deepbasis.nets import Network
from deepbasis.points import Points
from deepbasis.shapes import Float

# Points that calibration draws: many, where the noise matters, and few, where the model does.
MIXED_POINTS = ("5%", "1%", "200", "63", "20", "6", "0")
# Sensors that do not measure at random places, where errors are larger than variances say: their
# pixels are calibrated together with those of about as many random points.
SENSORS = {"1%": "features500", "63": "tof8x8"}
# Pixels of each prediction that calibration looks at.
PIXELS = 1000
# Frames that the kernel is learned from, and at how many of the patterns: those with the most
# points, since distant points say nothing about it.
KERNEL_FRAMES, KERNEL_PATTERNS = 36, 5
# And a pattern in which many points are close to each other, and many pixels far from them.
SCAN_LINES = "lidar16"
# Pixels of each of these frames that the kernel must predict.
KERNEL_PIXELS = 500
# The search begins with these.
KERNEL_START = fit.Kernel(length=0.1, colour=0.15, nugget=0.0003, rough=0.03)
# With fewer pixels than these no error distribution is learned.
FEWEST_PIXELS = 200
# Smallest factor on a variance, for a fit without errors.
LEAST_FACTOR = 1e-4


class Draw(NamedTuple):
    """Points that frames are predicted from, and by which processes."""

    fabric: Fabric
    patterns: Sequence[str]
    """The first is that of training."""
    seed: int = 0
    unmeasured_only: bool = False
    """Judge no pixel that is a point: where depth is sparse, there may be hardly any other."""


class Sampled(NamedTuple):
    """Some pixels of frames with about the same number of points."""

    rows: Float[Tensor, "_ 3"]
    """Error, noise and model variance."""
    points: Float[Tensor, "_"]
    """Number of points of each frame."""


def mixed(points: str) -> list[str]:
    """Patterns of calibration: that of training, of a range its upper end, and many to few."""
    return list(dict.fromkeys([points.rpartition("-")[2], *MIXED_POINTS]))


def observe_frames(
    fabric: Fabric, network: Network, frames: Frames, points: str, *, seed: int = 0, epoch: int = 0
) -> Iterator[Observed]:
    """This process's share of some frames, with points as training draws them."""
    items = TrainingSet(frames, points, seed, epoch)
    network.eval()
    for index in share(len(items), fabric):
        item = items[index]
        image, sparse = (fabric.to_device(part[None]) for part in (item.image, item.sparse))
        yield network.observe(image, Points.from_maps(sparse))


@torch.no_grad()
def learn_prior(
    fabric: Fabric, network: Network, frames: Frames, points: str, *, seed: int = 0, epoch: int = 0
) -> None:
    """Fit every training frame once more, with the final network, and learn how weights vary.

    The paper collects them during the last epoch, while the network still changes and normalises
    each batch by itself; here it is the network that will be used.
    """
    layer = network.fit
    layer.collect_weights()
    assert layer.collector is not None
    for observed in observe_frames(fabric, network, frames, points, seed=seed, epoch=epoch):
        layer.fit_ml(observed)
    layer.collector.samples = [gather_sample(fabric, layer.collector.sample)]
    layer.learn_prior()


def gather_sample(fabric: Fabric, sample: fit.WeightSample) -> fit.WeightSample:
    """The weights that all processes fitted."""
    return fit.WeightSample(
        gather_rows(fabric, sample.weights),
        gather_rows(fabric, sample.beta),
        fabric.all_reduce(sample.noise_cov, reduce_op="sum"),  # type: ignore[arg-type]
    )


@torch.no_grad()
def sample_pixels(draw: Draw, network: Predicts, frames: Frames, errors: Errors) -> list[Sampled]:
    """Some pixels of all frames, at each of the patterns; see `SENSORS`."""
    device = draw.fabric.device
    with_sensor = [place for place, points in enumerate(draw.patterns) if points in SENSORS]
    patterns = [*draw.patterns, *(SENSORS[draw.patterns[place]] for place in with_sensor)]
    none = Sampled(torch.zeros(0, 3, device=device), torch.zeros(0, device=device))
    found = predict(
        draw.fabric, network, frames, patterns, errors=errors, seed=draw.seed,
        unmeasured_only=draw.unmeasured_only,
    )  # fmt: skip
    parts = [[Sampled(some(one.rows, PIXELS), one.points) for one in frame] for frame in found]
    groups = join([none] * len(patterns), *parts)
    for place in reversed(with_sensor):
        groups[place : place + 1] = join([groups[place]], [groups.pop()])
    return [Sampled(*(gather_rows(draw.fabric, part) for part in group)) for group in groups]


@torch.no_grad()
def own_points(draw: Draw, network: Network, frames: Frames, errors: Errors) -> list[Sampled]:
    """Pixels predicted from the points of the data set's own sensor, if it has one.

    Unlike points drawn from the ground truth, these may contradict it; as in `Completer.complete`,
    those that contradict the others are left out.
    """
    if "sensor" in draw.patterns or not (frames[0].sparse > 0).any():
        return []
    parts, counts = [], []
    for index in share(len(frames), draw.fabric):
        sample = frames[index]
        image, depth, sparse = (
            draw.fabric.to_device(part[None])
            for part in (sample.image, sample.depth, sample.sparse)
        )
        seen = network.observe(image, Points.from_maps(sparse))
        right = network.fit.judge(seen) <= WRONG
        fitted = network.fit.fit_details(
            seen.reweighted(torch.where(right, seen.weight, 0)), errors=errors
        )
        parts.append(some(Predicted(fitted, depth).rows, PIXELS))
        counts.append(fitted.count.float())
    rows = torch.cat(parts) if parts else torch.zeros(0, 3, device=draw.fabric.device)
    points = torch.cat(counts) if counts else torch.zeros(0, device=draw.fabric.device)
    return [Sampled(gather_rows(draw.fabric, rows), gather_rows(draw.fabric, points))]


def join(*parts: Sequence[Sampled]) -> list[Sampled]:
    """Pixels of several frames or parts of them, each at the same patterns."""
    groups = zip(*parts, strict=True)
    return [
        Sampled(*(torch.cat(values) for values in zip(*group, strict=True))) for group in groups
    ]


def reset_calibration(layer: BasisFit) -> None:
    """Use all variances as the fit gives them, so that `sample_pixels` sees those."""
    layer.error_model("independent").calibration.reset()
    layer.error_model("correlated").calibration.reset()


def calibrate(
    model: ErrorModel, groups: Sequence[Sampled], more: Sequence[Sampled] = ()
) -> dict[str, object]:
    """Calibrate an error model by the errors of its uncalibrated predictions: factors that bring
    NEES near 1 at every number of points, then at each of these a factor and a distribution; `more`
    take the places of the first groups.
    """
    columns = [group.rows.unbind(1) for group in groups if len(group.rows)]
    frames = min(len(group.points) for group in groups)
    factors = fit.match_nees([(error, noise, var) for error, noise, var in columns], frames)
    model.calibration.set_factors(*factors)
    rows = sorted(
        calibrate_row(group, factors)
        for group in (*groups[len(more) :], *more)
        if len(group.rows) >= FEWEST_PIXELS
    )
    model.calibration.set_rows(list({row.points: row for row in rows}.values()))
    return {"factors": factors, "rows": rows, "frames": frames}


def calibrate_row(group: Sampled, factors: tuple[float, float]) -> CalibrationRow:
    """What two factors for all numbers of points leave to correct at one of them."""
    error, noise_var, model_var = group.rows.unbind(1)
    noise_var, var = factors[0] * noise_var, factors[0] * noise_var + factors[1] * model_var
    factor = fit.nees(error, var).clamp(min=LEAST_FACTOR)
    dof, width = latent.fit_error_distribution(error, factor * var, noise_var / var)
    return CalibrationRow(float(group.points.mean()), float(factor), dof, width)


def calibrate_paper(layer: BasisFit, group: Sampled) -> dict[str, object]:
    """The paper's NEES factor, from the points of training; without pixels nothing changes."""
    error, _, model_var = group.rows.unbind(1)
    if not len(error):
        return {}
    nees = float(fit.nees(error, model_var))
    layer.error_model("paper").calibration.set_factors(1.0, nees)
    return {"nees_factor": nees}


@torch.no_grad()
def learn_kernel(
    draw: Draw, network: Network, frames: Frames, *, search: bool = True
) -> dict[str, object]:
    """Find the kernel of correlated errors on some frames, or keep it, and its usual noise."""
    layer = network.fit
    some_frames = subsample(frames, KERNEL_FRAMES)
    prior = layer.prior.value
    alpha = fit.Hyperprior(alpha=layer.prior.alpha.value)
    seen = [read_frame(draw, network, some_frames, i) for i in range(len(some_frames))]
    judged = [one for one in seen if one.pixels is not None and len(one.pixels.z)]
    starts = [replace(KERNEL_START, smoothness=smoothness) for smoothness in (0.5, 1.5)]
    evaluations = 60
    if network.bases.head is not None:  # it is about right
        starts, evaluations = [network.bases.head.learned], 40
    found = [
        fit.search_kernel(judged, prior, start, evaluations=evaluations, hyperprior=alpha)
        for start in (starts if search and judged else ())
    ]
    kernel = min(found, key=lambda pair: pair[1])[0] if found else layer.correlated.kernel
    enough = [one for one in seen if len(one.z) > len(prior.mean)]
    white = [fit.correlated.whiten(kernel, *one[:4]) for one in enough]
    fits = [fit.evidence(w.phi, w.z, prior, w.weight, hyperprior=alpha) for w in white]
    if len(fits) > 1:
        betas = torch.stack([post.beta for post in fits]).double()
        layer.correlated.noise.set(fit.fit_gamma(betas, len(prior.mean) / 2))
    layer.correlated.set_kernel(kernel)
    losses = {str(one.smoothness): nats for one, nats in found}
    return {"kernel": asdict(kernel), "kernel_losses": losses}


def read_frame(draw: Draw, network: Network, frames: Frames, index: int) -> fit.FramePoints:
    """A frame's points, at one of the patterns, and some of the pixels between them."""
    patterns = [*draw.patterns[:KERNEL_PATTERNS], SCAN_LINES]
    pattern = pattern_of(patterns[index % len(patterns)])
    sample = WithPoints(frames, pattern, seed=draw.seed)[index]
    image, sparse, depth = (
        draw.fabric.to_device(part[None]) for part in (sample.image, sample.sparse, sample.depth)
    )
    others = depth * ~latent.is_valid(sparse)
    where = some(latent.is_valid(others[0, 0]).nonzero(), KERNEL_PIXELS)
    asked = torch.zeros_like(depth)
    asked[0, 0, *where.T] = others[0, 0, *where.T]
    points = network.observe(image, Points.from_maps(sparse))
    pixels = replace(points, points=Points.from_maps(asked))

    def to_frame(seen: Observed, asked: fit.FramePoints | None = None) -> fit.FramePoints:
        phi, z, weight = (part[0] for part in seen.by_amplitude)
        return fit.FramePoints(seen.x[0], phi, z, weight, asked)

    return to_frame(points, to_frame(pixels))
