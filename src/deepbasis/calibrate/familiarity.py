# SPDX-License-Identifier: Apache-2.0
"""Learn which images are familiar to a network, and how much less accurate it is on others.

Nothing but the frames of training is needed. How far off depth is where a network has not been
trained is learned from frames that it was not trained on, distorted: seen through other lenses,
in other colours, blurred, tilted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Generator, Tensor

from deepbasis import latent
from deepbasis.calibrate.measure import gather_rows, share
from deepbasis.data.sample import Frames, Sample, crop, seeded
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
Distortion = Callable[[Sample, Generator], Sample]


def enlarge(factor: float) -> Distortion:
    """A random part at full size: the field of view of a longer lens."""

    def apply(sample: Sample, generator: Generator) -> Sample:
        size = sample.image.shape[1:]
        kept = [max(int(n / factor), 1) for n in size]
        start = [
            int(torch.randint(n - m + 1, (), generator=generator))
            for n, m in zip(size, kept, strict=True)
        ]
        part = crop(sample, *(slice(a, a + m) for a, m in zip(start, kept, strict=True)))
        return resize(part, (size[0], size[1]))

    return apply


def resize(sample: Sample, size: tuple[int, int]) -> Sample:
    """Another number of pixels."""
    image = F.interpolate(
        sample.image[None].float(), size, mode="bilinear", align_corners=False, antialias=True
    )
    depth = F.interpolate(sample.depth[None], size, mode="nearest-exact")[0]
    return sample._replace(image=image[0].round().clamp(0, 255).to(torch.uint8), depth=depth)


def scale(factor: float) -> Distortion:
    """More pixels, or fewer."""

    def apply(sample: Sample, generator: Generator) -> Sample:
        height, width = (round(factor * n) for n in sample.image.shape[1:])
        return resize(sample, (height, width))

    return apply


def colour(sample: Sample, generator: Generator) -> Sample:
    """Another white balance, exposure and gamma."""
    gain = torch.exp(0.5 * torch.randn(3, 1, 1, generator=generator))
    gamma = torch.exp(0.5 * torch.randn((), generator=generator))
    image = 255 * (sample.image / 255 * gain).clamp(0, 1) ** gamma
    return sample._replace(image=image.round().to(torch.uint8))


def blur(sample: Sample, generator: Generator) -> Sample:
    """Out of focus: a third of the resolution."""
    height, width = sample.image.shape[1:]
    small = resize(sample, (max(height // 3, 1), max(width // 3, 1)))
    return resize(small, (height, width))._replace(depth=sample.depth)


def grain(sample: Sample, generator: Generator) -> Sample:
    """Noise of a camera in the dark."""
    noise = 15 * torch.randn(sample.image.shape, generator=generator)
    image = (sample.image + noise).round().clamp(0, 255)
    return sample._replace(image=image.to(torch.uint8))


def turn(sample: Sample, generator: Generator) -> Sample:
    """Upside down."""
    return sample._replace(image=sample.image.flip(1), depth=sample.depth.flip(1))


def zoom_name(factor: float) -> str:
    """What a zoom is called."""
    return f"zoom {factor:g}"


PLAIN = "none"
ZOOMS = (1.5, 2.0, 3.0)
DISTORTIONS: dict[str, Distortion] = {
    **{zoom_name(factor): enlarge(factor) for factor in ZOOMS},
    "half size": scale(0.5), "larger": scale(1.5), "colour": colour, "blur": blur,
    "grain": grain, "upside down": turn,
}  # fmt: skip


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
    judged = judge_distorted(fabric, network, subsample(val_frames, DISTORTED_FRAMES), seed)
    x, other = (summaries(fabric, network, some) for some in (frames, val_frames))
    channels = network.bases.summary_channels
    typical = left_out_distances(known, x, channels)
    known.learn_stages(x, channels)
    typical = torch.cat([typical, known.distance(other)]).sort().values
    found = {"frames": len(frames) + len(val_frames)} | worst(judged)
    focal = usual_focal(frames)
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
        network.bases.summary(fabric.to_device(frames[index].image[None]))
        for index in share(len(frames), fabric)
    ]
    empty = torch.zeros(0, sum(network.bases.summary_channels), device=fabric.device)
    return gather_rows(fabric, torch.cat([empty, *rows]))


def left_out_distances(
    known: Familiarity, x: Float[Tensor, "n f"], channels: Sequence[int]
) -> Float[Tensor, "n"]:
    """Distance of each frame from the others, those near it in the sequence left out as well."""
    fold = torch.arange(len(x), device=x.device) * FOLDS // len(x)
    found = []
    for one in range(FOLDS):
        known.learn_stages(x[fold != one], channels)
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
