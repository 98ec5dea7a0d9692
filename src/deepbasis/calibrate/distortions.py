# SPDX-License-Identifier: Apache-2.0
"""Distorted frames: as another camera would see them, or hold them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from deepbasis.data.sample import Frames, Sample, crop, seeded
from deepbasis.nets.usual_size import UsualSize
from deepbasis.shapes import Float

Distortion = Callable[[Sample, Generator], Sample]


def uniform(low: float, high: float, generator: Generator) -> float:
    """A random number."""
    return low + (high - low) * float(torch.rand((), generator=generator))


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
    """Out of focus: down to a quarter of the resolution."""
    factor = uniform(1.5, 4, generator)
    height, width = (max(int(n / factor), 1) for n in sample.image.shape[1:])
    small = resize(sample, (height, width))
    full = resize(small, (sample.image.shape[1], sample.image.shape[2]))
    return full._replace(depth=sample.depth)


def grain(sample: Sample, generator: Generator) -> Sample:
    """Noise of a camera in the dark."""
    noise = uniform(3, 20, generator) * torch.randn(sample.image.shape, generator=generator)
    image = (sample.image + noise).round().clamp(0, 255)
    return sample._replace(image=image.to(torch.uint8))


def turn(sample: Sample, generator: Generator) -> Sample:
    """Upside down."""
    return sample._replace(image=sample.image.flip(1), depth=sample.depth.flip(1))


def roll(sample: Sample, generator: Generator) -> Sample:
    """Turned around the optical axis by 10 to 40 degrees, and enlarged to have no empty corners."""
    side = 1 if uniform(-1, 1, generator) > 0 else -1
    degrees = side * uniform(10, 40, generator)
    height, width = sample.image.shape[1:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    longer, shorter = max(height, width), min(height, width)
    zoom = abs(cos) + abs(sin) * longer / shorter
    ratio = height / width
    turned = torch.tensor([[[cos, -sin * ratio, 0], [sin / ratio, cos, 0]]]) / zoom
    grid = F.affine_grid(turned, [1, 1, height, width], align_corners=False)

    def look(x: Float[Tensor, "c h w"], mode: str) -> Float[Tensor, "c h w"]:
        found = F.grid_sample(x[None], grid, mode=mode, padding_mode="border", align_corners=False)
        return found[0]

    image = look(sample.image.float(), "bilinear").round().to(torch.uint8)
    return sample._replace(image=image, depth=look(sample.depth, "nearest"))


def sharpen(sample: Sample, generator: Generator) -> Sample:
    """Edges enhanced, as some cameras do."""
    image = sample.image.float()
    soft = F.avg_pool2d(image[None], 3, 1, 1, count_include_pad=False)[0]
    sharp = image + uniform(0.5, 2, generator) * (image - soft)
    return sample._replace(image=sharp.round().clamp(0, 255).to(torch.uint8))


def contrast(sample: Sample, generator: Generator) -> Sample:
    """Another contrast and saturation."""
    gain = math.exp(uniform(-1, 0.5, generator))
    saturation = uniform(0, 1.5, generator)
    image = sample.image.float()
    grey = image.mean(0, keepdim=True)
    image = image.mean() + gain * (grey + saturation * (image - grey) - image.mean())
    return sample._replace(image=image.round().clamp(0, 255).to(torch.uint8))


def zoom_name(factor: float) -> str:
    """What a zoom is called."""
    return f"zoom {factor:g}"


def any_zoom(sample: Sample, generator: Generator) -> Sample:
    """A part of any size."""
    return enlarge(math.exp(uniform(math.log(1.3), math.log(3), generator)))(sample, generator)


def any_size(sample: Sample, generator: Generator) -> Sample:
    """Any number of pixels."""
    return scale(uniform(0.5, 1.5, generator))(sample, generator)


ZOOMS = (1.5, 2.0, 3.0)
DISTORTIONS: dict[str, Distortion] = {
    **{zoom_name(factor): enlarge(factor) for factor in ZOOMS},
    "half size": scale(0.5), "larger": scale(1.5), "colour": colour, "blur": blur,
    "grain": grain, "upside down": turn, "roll": roll, "sharp": sharpen, "contrast": contrast,
}  # fmt: skip
VIEWS: tuple[Distortion, ...] = (any_zoom, any_size, turn, roll)
LOOKS: tuple[Distortion, ...] = (colour, blur, grain, sharpen, contrast)


@dataclass(frozen=True)
class Changed:
    """Frames, each of which is changed when it is read."""

    frames: Frames

    def __len__(self) -> int:
        return len(self.frames)

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        return self.frames.name(index)


@dataclass(frozen=True)
class Reduced(Changed):
    """Frames of the size at which a network sees them."""

    usual: UsualSize

    def __getitem__(self, index: int) -> Sample:
        sample = self.frames[index]
        height, width = sample.image.shape[1:]
        size = self.usual.size_of(height, width)
        return sample if size == (height, width) else resize(sample, size)


@dataclass(frozen=True)
class Distorted(Changed):
    """Frames, each with another view and another look, drawn at random."""

    seed: int

    def __getitem__(self, index: int) -> Sample:
        generator, sample = seeded(self.seed, index), self.frames[index]
        for kind in (VIEWS, LOOKS):
            drawn = int(torch.randint(len(kind), (), generator=generator))
            sample = kind[drawn](sample, generator)
        return sample
