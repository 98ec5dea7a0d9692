# SPDX-License-Identifier: Apache-2.0
"""Learn which images are familiar to a network, and how much less accurate it is on others.

Nothing but the frames of training is needed. In which direction unfamiliar images differ is
learned from the frames themselves, distorted: seen through other lenses, in other colours, blurred,
upside down. How far off depth is there is learned from frames that the network was not trained on,
distorted in the same ways.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from deepbasis import latent
from deepbasis.calibrate.distortions import (
    DISTORTIONS,
    ZOOMS,
    Distorted,
    Distortion,
    Reduced,
    zoom_name,
)
from deepbasis.calibrate.measure import gather_rows, share
from deepbasis.data.sample import Frames, Sample, seeded
from deepbasis.data.sources import subsample
from deepbasis.nets import Network
from deepbasis.nets.familiarity import Familiarity
from deepbasis.points import Points
from deepbasis.shapes import Float

# With fewer frames nothing is learned.
FEWEST_FRAMES = 32
# Parts of consecutive frames, each judged by the statistics of the others.
FOLDS = 32
# Frames that are distorted in each way, and frames that tell the focal length.
DISTORTED_FRAMES, FOCAL_FRAMES = 24, 9
# Distorted copies of each frame that familiar ones are told from.
COPIES = 2
# What frames are called that are not distorted.
PLAIN = "none"


@torch.no_grad()
def learn_familiarity(
    fabric: Fabric, network: Network, frames: Frames, val_frames: Frames, *, seed: int = 0
) -> dict[str, object]:
    """Learn and store what a network is used to, when all else is learned; returns what was found,
    nothing if there are too few frames.

    Args:
        fabric: whose processes share the frames.
        network: whose familiarity is learned, in place.
        frames: that it was trained on, or adapted to.
        val_frames: of the same kind, which nothing was learned from.
        seed: of the distortions.
    """
    network.eval()
    known = network.familiarity
    known.forget()
    if len(frames) < FEWEST_FRAMES or not len(val_frames):
        return {}
    focal = usual_focal(frames)
    seen, val_seen = (Reduced(some, network.usual_size) for some in (frames, val_frames))
    judged = judge_distorted(fabric, network, subsample(val_seen, DISTORTED_FRAMES), seed)
    x, other = (summaries(fabric, network, some) for some in (seen, val_seen))
    copies = [summaries(fabric, network, Distorted(seen, seed + i)) for i in range(COPIES)]
    distorted = torch.cat(copies)
    channels = network.bases.summary_channels
    typical = left_out_distances(known, x, distorted, channels)
    known.learn_summaries(x, distorted, channels)
    typical = torch.cat([typical, known.distance(other)]).sort().values
    found = {"frames": len(frames) + len(val_frames)} | worst(judged)
    power = focal_power(judged) if focal else 0.0
    known.store(
        typical=typical, scale=found["scale"], offset_var=found["offset_var"], focal=focal,
        focal_power=power,
    )  # fmt: skip
    known.to(fabric.device)
    return found | {"focal": focal, "focal_power": power}


def summaries(fabric: Fabric, network: Network, frames: Frames) -> Float[Tensor, "n f"]:
    """Summaries of all frames, in their order if there is one process."""
    rows = [
        network.bases.summary(
            network.usual_size.reduce(fabric.to_device(frames[index].image[None]))
        )
        for index in share(len(frames), fabric)
    ]
    empty = torch.zeros(0, sum(network.bases.summary_channels), device=fabric.device)
    return gather_rows(fabric, torch.cat([empty, *rows]))


def left_out_distances(
    known: Familiarity,
    x: Float[Tensor, "n f"],
    distorted: Float[Tensor, "m f"],
    channels: Sequence[int],
) -> Float[Tensor, "n"]:
    """Distance of each frame from the others, those near it in the sequence left out as well, and
    their copies, of which there are equally many of each frame, one round after the other.
    """
    fold = torch.arange(len(x), device=x.device) * FOLDS // len(x)
    fold_of_copy = fold.repeat(len(distorted) // max(len(x), 1))
    found = []
    for one in range(FOLDS):
        known.learn_summaries(x[fold != one], distorted[fold_of_copy != one], channels)
        found.append(known.distance(x[fold == one]))
    return torch.cat(found)


class Judged(NamedTuple):
    """How depth from the images alone is off, mean over frames."""

    offset: float
    """Of the mean error of a frame."""
    offset_square: float
    within_square: float
    """Squared deviation from a frame's mean error."""
    model_var: float
    noise_var: float


def judge_distorted(
    fabric: Fabric, network: Network, frames: Frames, seed: int
) -> dict[str, Judged]:
    """Errors without points of frames, and of the same frames distorted in several ways."""

    def judge(number: int, distortion: Distortion | None) -> Judged:
        rows = []
        for index in share(len(frames), fabric):
            sample = frames[index]
            if distortion is not None:
                sample = distortion(sample, seeded(seed, number, index))
            if latent.is_valid(sample.depth).any():
                rows.append(errors_of(fabric, network, sample))
        table = gather_rows(fabric, torch.tensor(rows, device=fabric.device).view(-1, 4))
        return Judged(
            *torch.cat([table[:, :1], table[:, :1].square(), table[:, 1:]], 1).mean(0).tolist()
        )

    kinds: dict[str, Distortion | None] = {PLAIN: None} | DISTORTIONS
    return {name: judge(i, distortion) for i, (name, distortion) in enumerate(kinds.items())}


def errors_of(fabric: Fabric, network: Network, sample: Sample) -> list[float]:
    """Mean error, mean squared deviation from it, and variances, of a frame without points."""
    image, depth = (fabric.to_device(part[None]) for part in (sample.image, sample.depth))
    fitted = network.predictor(image)(Points.from_maps(torch.zeros_like(depth)))
    known = latent.is_valid(depth)
    mean, model_var, noise_var = (part[known].double() for part in fitted.prediction)
    error = latent.to_latent(depth[known]).double() - mean
    numbers = error.mean(), error.var(correction=0), model_var.mean(), noise_var.mean()
    return [float(x) for x in numbers]


def worst(judged: dict[str, Judged]) -> dict[str, Any]:
    """The widening for images that are not familiar at all: that of the worst distortion, for the
    offset and for the rest.
    """
    plain = judged[PLAIN].offset_square
    offset = max(judged, key=lambda name: judged[name].offset_square)
    scales = {
        name: (one.within_square - one.noise_var) / max(one.model_var, 1e-12)
        for name, one in judged.items()
    }
    scale = max(scales, key=lambda name: scales[name])
    return {
        "scale": max(scales[scale], 1.0), "scale_from": scale,
        "offset_var": max(judged[offset].offset_square - plain, 0.0), "offset_from": offset,
    }  # fmt: skip


def usual_focal(frames: Frames) -> float:
    """Median focal length of some frames in image widths; 0 if it is not known."""
    some = subsample(frames, FOCAL_FRAMES)
    each = [some[i] for i in range(len(some))]
    focal = torch.stack([one.intrinsics[0, 0] / one.image.shape[2] for one in each])
    return float(focal[focal.isfinite()].median()) if focal.isfinite().any() else 0.0


def focal_power(judged: dict[str, Judged]) -> float:
    """Share of the zoom that a network does not see: by least squares, from 0 to 1."""
    plain = judged[PLAIN].offset
    zooms = [(math.log(factor), judged[zoom_name(factor)].offset - plain) for factor in ZOOMS]
    slope = sum(x * y for x, y in zooms) / sum(x * x for x, _ in zooms)
    return min(max(slope, 0.0), 1.0)
