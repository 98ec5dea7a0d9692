# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training step goes, and what each optimisation brings."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from deepbasis.data.sources import CachedFrames
from deepbasis.data.training import Item, TrainingSet
from deepbasis.data.worlds import Worlds
from deepbasis.latent import to_latent
from deepbasis.nets import Architecture, Network
from deepbasis.nets.decoder import JoinedConv

BATCH, SIZE, POINTS, ROUNDS = 4, (112, 152), 2000, 7


@dataclass(frozen=True)
class Variant:
    """A way to do the same step."""

    channels_last: bool = True
    fused: bool = True
    mean_only: bool = True
    apart: bool = True


class Together(JoinedConv):
    """The plain way: join the maps, then convolve."""

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:  # type: ignore[override]
        return self._conv_forward(x if skip is None else torch.cat([x, skip], 1), self.weight, None)


def make_item() -> Item:
    torch.manual_seed(0)
    depth = 1 + 3 * torch.rand(BATCH, 1, *SIZE)
    chosen = torch.rand_like(depth).flatten(1).argsort(1).view_as(depth) < POINTS
    image = torch.randint(0, 255, (BATCH, 3, *SIZE), dtype=torch.uint8)
    sparse = torch.where(chosen, depth, 0)
    return Item("", image, depth, sparse, sparse)


def make_step(variant: Variant) -> Callable[[], None]:
    network, item = Network(Architecture()), make_item()
    if variant.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in network.modules():
        if isinstance(module, JoinedConv) and not variant.apart:
            module.__class__ = Together
    adam = torch.optim.Adam(network.parameters(), fused=variant.fused)
    z = to_latent(item.depth)

    def forward() -> Tensor:
        if variant.mean_only:
            return network.loss(item).mean()
        return (network.fit(network.bases(item.image).bases, item.sparse).mean - z).abs().mean()

    def step() -> None:
        adam.zero_grad()
        forward().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adam.step()

    return step


def print_profile() -> None:
    """Share of a step's time that each kind of operation takes by itself."""
    step = make_step(Variant())
    for _ in range(2):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(3):
            step()
    times = {entry.key: entry.self_cpu_time_total for entry in found.key_averages()}
    total = sum(times.values())
    kinds = {
        "convolutions forward": ["aten::mkldnn_convolution"],
        "convolutions backward": ["aten::convolution_backward"],
        "batch normalisation": ["aten::native_batch_norm", "aten::native_batch_norm_backward"],
        "optimiser": ["aten::_fused_adam_"],
    }
    print("share of a step")
    for kind, names in kinds.items():
        print(f"{kind:<36} {sum(times.get(name, 0) for name in names) / total:6.0%}")


def print_preparation() -> None:
    """Time that a worker takes for a frame that is in memory."""
    frames = CachedFrames(Worlds("rooms", 8, size=SIZE))
    items = TrainingSet(frames, str(POINTS))
    start = time.perf_counter()
    for index in list(range(8)) * 3:
        items[index]
    print(f"preparing a frame {1000 * (time.perf_counter() - start) / 24:25.1f} ms")


def main() -> None:
    print_profile()
    print_preparation()
    variants = {
        "none of them": Variant(False, False, False, False),
        "all of them": Variant(),
        "all but channels-last": Variant(channels_last=False),
        "all but the fused optimiser": Variant(fused=False),
        "all but the mean without variance": Variant(mean_only=False),
        "all but joined maps convolved apart": Variant(apart=False),
    }
    steps = {name: make_step(variant) for name, variant in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(ROUNDS + 2):
        for name, step in steps.items():  # interleaved, so that all meet the same noise
            start = time.perf_counter()
            step()
            if round_number >= 2:
                times[name].append(1000 * (time.perf_counter() - start) / BATCH)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"ms for an image, a step of {BATCH} images of {SIZE[0]} x {SIZE[1]} pixels")
    for name, value in medians.items():
        print(f"{name:<36} {value:6.1f}  {value / medians['all of them']:.2f}x")


if __name__ == "__main__":
    main()
