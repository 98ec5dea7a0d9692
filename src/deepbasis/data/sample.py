# SPDX-License-Identifier: Apache-2.0
"""Samples: frames as training and evaluation use them, and the paper's augmentation."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from deepbasis.latent import is_valid
from deepbasis.shapes import Bool, Float, UInt8

# The paper's training transforms.
FLIP_PROBABILITY = 0.5
COLOUR_JITTER = 0.02
# Depths of a 2x2 block that differ by more than this fraction belong to different surfaces.
SURFACE_GAP = 0.1


class Sample(NamedTuple):
    """A frame. Batches are made by torch's `default_collate`.

    Depths are z-depth in metres; 0 means no measurement. Unknown intrinsics are NaN.
    """

    name: str
    image: UInt8[Tensor, "3 h w"]
    depth: Float[Tensor, "1 h w"]
    """Ground truth."""
    sparse: Float[Tensor, "1 h w"]
    """Points of a sensor: the input of depth completion."""
    intrinsics: Float[Tensor, "3 3"]

    @property
    def mask(self) -> Bool[Tensor, "1 h w"]:
        """Pixels with ground truth."""
        return is_valid(self.depth)


@runtime_checkable
class Frames(Protocol):
    """Interface of all readers: a sequence of samples in a fixed order, read one at a time."""

    def __len__(self) -> int:
        """Count the frames."""
        ...

    def __getitem__(self, index: int) -> Sample:
        """Read one frame."""
        ...

    def name(self, index: int) -> str:
        """Name of a frame, without reading it."""
        ...


def unknown_intrinsics() -> Float[Tensor, "3 3"]:
    """Intrinsics of an unknown camera: NaN."""
    return torch.full((3, 3), torch.nan)


def make_intrinsics(fx: float, fy: float, cx: float, cy: float) -> Float[Tensor, "3 3"]:
    """Pinhole camera; the centre of the top left pixel is at (0, 0)."""
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=torch.float32)


def check_sizes(sample: Sample) -> Sample:
    """Return the sample if its maps have the same size."""
    sizes = {name: list(getattr(sample, name).shape[-2:]) for name in ("image", "depth", "sparse")}
    if len({tuple(size) for size in sizes.values()}) > 1:
        raise ValueError(
            f"{sample.name}: image, depth and sparse depth are {sizes['image']}, {sizes['depth']} "
            f"and {sizes['sparse']} pixels (height, width); they must have the same size"
        )
    return sample


def crop(sample: Sample, rows: slice, columns: slice) -> Sample:
    """Crop a sample; the principal point of the camera is adjusted."""
    top, left = rows.indices(sample.image.shape[1])[0], columns.indices(sample.image.shape[2])[0]
    shift = torch.zeros(3, 3)
    shift[0, 2], shift[1, 2] = left, top
    maps = {name: getattr(sample, name)[:, rows, columns] for name in ("image", "depth", "sparse")}
    return sample._replace(**maps, intrinsics=sample.intrinsics - shift)


def halve(sample: Sample, *, centred: bool = False) -> Sample:
    """Reduce height and width by 2: colours are averaged, and no depth lies between two surfaces.

    Each 2x2 block keeps its first measured depth, so that points of a sparse sensor are kept. Where
    all is measured, depths are then those of the upper left pixels, a quarter of a small pixel away
    from the averaged colours; the pretrained models were trained and measured in this way. With
    `centred`, a block whose depths lie on one surface gets the depth at its centre instead: the
    mean of inverse depth, which is exact on planes. An odd last row or column is dropped.
    """
    reduce = _centre if centred else _pick
    height, width = (n // 2 * 2 for n in sample.image.shape[1:])
    even = crop(sample, slice(0, height), slice(0, width))
    image = F.avg_pool2d(even.image[None].float(), 2)[0].round().to(torch.uint8)
    # Pixel x of the small image covers 2x and 2x + 1, so its centre lies at 2x + 1/2.
    scale = torch.tensor([[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1]])
    return even._replace(
        image=image,
        depth=reduce(even.depth),
        sparse=reduce(even.sparse),
        intrinsics=scale @ even.intrinsics,
    )


def _blocks(depth: Float[Tensor, "1 h w"]) -> Float[Tensor, "1 h2 w2 4"]:
    """The four pixels of each 2x2 block."""
    height, width = depth.shape[1:]
    return depth.view(1, height // 2, 2, width // 2, 2).permute(0, 1, 3, 2, 4).flatten(3)


def _centre(depth: Float[Tensor, "1 h w"]) -> Float[Tensor, "1 h2 w2"]:
    """Depth at the centre of each 2x2 block on one surface; of others the first measured depth."""
    blocks = _blocks(depth)
    known = is_valid(blocks)
    count = known.sum(-1)
    inverse = torch.where(known, 1 / torch.where(known, blocks, 1), 0).sum(-1)
    nearest = torch.where(known, blocks, torch.inf).amin(-1)
    farthest = torch.where(known, blocks, 0).amax(-1)
    smooth = (count > 0) & (farthest <= (1 + SURFACE_GAP) * nearest)
    return torch.where(smooth, count / torch.where(smooth, inverse, 1), _pick(depth))


def _pick(depth: Float[Tensor, "1 h w"]) -> Float[Tensor, "1 h2 w2"]:
    """First measured depth of each 2x2 block."""
    blocks = _blocks(depth)
    first = is_valid(blocks).to(torch.uint8).argmax(-1, keepdim=True)
    picked = blocks.gather(-1, first)[..., 0]
    return torch.where(is_valid(picked), picked, 0)


def flip(sample: Sample) -> Sample:
    """Mirror left and right, including the camera."""
    maps = {name: getattr(sample, name).flip(-1) for name in ("image", "depth", "sparse")}
    intrinsics = sample.intrinsics.clone()
    intrinsics[0, 2] = sample.image.shape[2] - 1 - intrinsics[0, 2]
    return sample._replace(**maps, intrinsics=intrinsics)


def jitter(sample: Sample, strength: float, generator: torch.Generator) -> Sample:
    """Change brightness, contrast and saturation by random factors of 1 +- strength."""
    brightness, contrast, saturation = (
        1 + strength * (2 * torch.rand(3, generator=generator) - 1)
    ).tolist()
    image = sample.image.float() * brightness
    image = image.mean() + contrast * (image - image.mean())
    grey = image.mean(0, keepdim=True)
    image = grey + saturation * (image - grey)
    return sample._replace(image=image.round().clamp(0, 255).to(torch.uint8))


def zoom(sample: Sample, most: float, generator: torch.Generator) -> Sample:
    """Enlarge a random part of the frame to its size, by a random factor from 1 to 1 + most.

    What is shown larger would be nearer to the same camera, so depths are divided by the factor.
    """
    factor = 1 + most * float(torch.rand((), generator=generator))
    size = sample.image.shape[1:]
    kept = [max(round(n / factor), 1) for n in size]
    start = [
        int(torch.randint(n - m + 1, (), generator=generator))
        for n, m in zip(size, kept, strict=True)
    ]
    part = crop(sample, *(slice(a, a + m) for a, m in zip(start, kept, strict=True)))
    image = F.interpolate(
        part.image[None].float(), size, mode="bilinear", align_corners=False, antialias=False
    )
    depths = F.interpolate(torch.cat([part.depth, part.sparse])[None], size, mode="nearest-exact")
    depth, sparse = (depths[0] / factor).tensor_split(2)
    across, down = size[1] / kept[1], size[0] / kept[0]
    scale = torch.tensor([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])
    return part._replace(
        image=image[0].round().to(torch.uint8),
        depth=depth,
        sparse=sparse,
        intrinsics=scale @ part.intrinsics,
    )


def vary_camera(sample: Sample, strength: float, generator: torch.Generator) -> Sample:
    """Show the frame as another camera might: other gamma, white balance, sharpness and noise.

    At a strength of 1, gamma varies from 0.6 to 1.6, the gain of each colour by 20 %, half of the
    images are blurred, and the noise has a standard deviation of up to 5 % of white.
    """
    gamma, blur, noise, *gains = (2 * torch.rand(6, generator=generator) - 1).tolist()
    image = (sample.image.float() / 255) ** math.exp(0.5 * strength * gamma)
    image = image * (1 + 0.2 * strength * torch.tensor(gains))[:, None, None]
    if blur > 0:
        padded = F.pad(image[None], (1, 1, 1, 1), mode="replicate")
        image = image.lerp(F.avg_pool2d(padded, 3, stride=1)[0], min(blur * strength, 1.0))
    std = 0.05 * strength * max(noise, 0.0)
    image = image + std * torch.randn(image.shape, generator=generator)
    return sample._replace(image=(255 * image).round().clamp(0, 255).to(torch.uint8))


@dataclass(frozen=True)
class Augmentation:
    """How frames vary in training; by default as in the paper."""

    jitter: float = COLOUR_JITTER
    zoom: float = 0.0
    camera: float = 0.0
    """Strength of `vary_camera`."""


PAPER = Augmentation()


def augment(sample: Sample, generator: torch.Generator, how: Augmentation = PAPER) -> Sample:
    """A flip with probability 0.5, a zoom and other colours."""
    if torch.rand((), generator=generator) < FLIP_PROBABILITY:
        sample = flip(sample)
    if how.zoom:
        sample = zoom(sample, how.zoom, generator)
    if how.camera:
        sample = vary_camera(sample, how.camera, generator)
    return jitter(sample, how.jitter, generator)


def seeded(seed: int, *numbers: int) -> torch.Generator:
    """A generator for one frame of one epoch; it does not depend on the worker."""
    mixed = seed
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**63
    return torch.Generator().manual_seed(mixed)
