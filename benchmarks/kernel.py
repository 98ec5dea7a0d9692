# SPDX-License-Identifier: Apache-2.0
"""What each part of the learned kernel contributes, with the bases of a model held fixed.

    python benchmarks/kernel.py indoor --root nyu --minutes 3

Each variant of the kernel is trained from scratch for the same CPU time of one core on training
frames of NYU, by the loss of `deepbasis train --kernel-only`. Then it predicts pixels between the
points of validation frames: MAE in metres, and the negative log likelihood of log depth under a
Laplace distribution whose overall scale is optimal, so that only the differences between pixels
matter.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import deepbasis
from deepbasis.data.sample import Frames, Sample, seeded
from deepbasis.data.sources import Source, split_validation, subsample
from deepbasis.data.training import AnySensor
from deepbasis.fit import Kernel
from deepbasis.layer import Observed
from deepbasis.nets import Network
from deepbasis.nets.basis import Features, KernelHead
from deepbasis.nets.kriging import kriging_loss, predict, select, unmeasured
from deepbasis.patterns import Uniform, parse
from deepbasis.points import Points

PATTERNS = ("5%", "500", "50", "lidar16")
LR, BATCH, CLIP = 1e-3, 2, 1.0


@dataclass(frozen=True)
class Variant:
    """A kernel and how it is trained."""

    name: str
    embedding: int = 8
    amplitude: bool = True
    smoothness: float = 1.5
    rough: bool = True
    width: int = 0
    scan_lines: bool = True

    def kernel(self, head: KernelHead, *, trained: bool) -> Kernel:
        """Of a head, in training or as numbers."""
        found = replace(head.learned if trained else head.kernel, smoothness=self.smoothness)
        return found if self.rough else replace(found, rough=0.0)


VARIANTS = (
    Variant("position alone", embedding=0, amplitude=False),
    Variant("+ amplitude", embedding=0),
    Variant("+ embedding", amplitude=False),
    Variant("+ both"),
    Variant("both, smoothness 1/2", smoothness=0.5, rough=False),
    Variant("both, no rough part", rough=False),
    Variant("both, random points only", scan_lines=False),
    Variant("both, with surroundings", width=32),
)


class Frame(NamedTuple):
    """What a network with fixed bases makes of a frame, in half precision."""

    coarse: list[Tensor]
    last: Tensor
    sample: Sample


class Trial:
    """The fixed bases, and one variant of the head on top of them."""

    def __init__(self, network: Network, variant: Variant) -> None:
        torch.manual_seed(0)
        self.network, self.variant = network, variant
        width = network.bases.decoder.widths[-1]
        self.head = KernelHead(width, variant.embedding, variant.width)

    def observe(self, frame: Frame, sets: list[Tensor]) -> list[Observed]:
        """Points and pixels of a frame with their features."""
        last = frame.last[None].float()
        finest = self.network.bases.decoder.bases[-1](last).detach()
        embedding, amplitude = self.head(last)
        if not self.variant.amplitude:
            amplitude = torch.ones_like(amplitude)
        bases = [*(basis[None].float() for basis in frame.coarse), finest]
        points = [Points.from_maps(depth[None]) for depth in sets]
        features = Features(bases, embedding, amplitude)
        seen = self.network.observe(frame.sample.image[None], Points.join(points), features)
        return seen.split([len(one) for one in points])

    def train(self, frames: list[Frame], minutes: float) -> int:
        """Train for this time; gives the number of steps."""
        adam, start, step = torch.optim.Adam(self.head.parameters()), time.process_time(), 0
        prior = self.network.fit.prior.value
        while (done := (time.process_time() - start) / 60 / minutes) < 1:
            adam.param_groups[0]["lr"] = LR / 2 * (1 + math.cos(math.pi * done))
            adam.zero_grad()
            for item in range(BATCH):
                draw = seeded(step, item)
                frame = frames[int(torch.randint(len(frames), (), generator=draw))]
                _, image, depth, _, camera = frame.sample
                measured = AnySensor()(depth, image, camera, draw)
                if not self.variant.scan_lines:
                    measured = Uniform(int((measured > 0).sum()))(depth, image, camera, draw)
                asked = unmeasured(depth[None], measured[None])[0]
                points, pixels = self.observe(frame, [measured, asked])
                kernel = self.variant.kernel(self.head, trained=False)
                loss = kriging_loss(points, pixels, kernel, prior).sum() / BATCH
                loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.head.parameters(), CLIP)
            adam.step()
            step += 1
        return step

    @torch.no_grad()
    def score(self, frames: list[Frame], pattern: str) -> tuple[float, float]:
        """MAE in metres and NLL in nats, means over frames."""
        kernel, prior = self.variant.kernel(self.head, trained=True), self.network.fit.prior.value
        rows = []
        for index, frame in enumerate(frames):
            sample = frame.sample
            draw = seeded(index)
            measured = parse(pattern)(sample.depth, sample.image, sample.intrinsics, draw)
            torch.manual_seed(index)
            asked = unmeasured(sample.depth[None], measured[None])[0]
            points, pixels = (select(one, 0) for one in self.observe(frame, [measured, asked]))
            mean, var = predict(points, pixels, kernel, prior)
            z, found, std = pixels.z * pixels.s, mean * pixels.s, var.sqrt() * pixels.s
            error = (z - found).abs()
            nats = (2 * std * (error / std).mean()).log().mean() + 1
            rows.append(torch.stack([(z.exp() - found.exp()).abs().mean(), nats]))
        mae, nll = torch.stack(rows).mean(0).tolist()
        return mae, nll


@torch.no_grad()
def frames_of(network: Network, frames: Frames) -> Iterator[Frame]:
    """Features of all frames, computed once."""
    net = network.bases
    for index in range(len(frames)):
        sample = frames[index]
        colours = net.normalise(sample.image[None])
        x = net.encoder.stem(colours)
        size = (sample.image.shape[1], sample.image.shape[2])
        bases, last = net.decoder([x, *net.encoder.rest(x)], size, colours)
        yield Frame([basis[0].half() for basis in bases[:-1]], last[0].half(), sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3, help="of training for each variant")
    parser.add_argument("--frames", type=int, default=500, help="training frames")
    given = parser.parse_args()
    torch.set_num_threads(1)
    network = deepbasis.load(given.model).network.eval()
    kept, validation = split_validation(Source("nyu", given.root).open("train"), 64)
    training = list(frames_of(network, subsample(kept, given.frames)))
    held_out = list(frames_of(network, subsample(validation, 32)))
    print("MAE (m) / NLL (nats)      ", *(f"{pattern:>16}" for pattern in PATTERNS), "   steps")
    for variant in VARIANTS:
        trial = Trial(network, variant)
        steps = trial.train(training, given.minutes)
        cells = [trial.score(held_out, pattern) for pattern in PATTERNS]
        shown = (f"{mae:8.4f} /{nll:6.3f}" for mae, nll in cells)
        print(f"{variant.name:<26}", *shown, f"{steps:8d}", flush=True)


if __name__ == "__main__":
    main()
