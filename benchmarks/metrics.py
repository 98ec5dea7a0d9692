# SPDX-License-Identifier: Apache-2.0
"""Time to score a frame beside the time of the network's forward pass on it, at 320x240.

Both take turns, frame by frame, so that a busy machine slows both alike; times are medians. Scoring
is one `Tally.add`: every metric of an image. What is done once per data set is shown
for 1,000 images.
"""

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from deepbasis.latent import to_depth
from deepbasis.metrics import Tally, confidence
from deepbasis.nets import BasisNet

HEIGHT, WIDTH = 240, 320
FRAMES, DATA_SET = 10, 1000


def make_frame(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Latent mean and variance and true depth; a fifth of the pixels have no truth."""
    generator = torch.Generator().manual_seed(seed)
    size = (HEIGHT, WIDTH)
    z = 1 + 0.5 * torch.randn(size, generator=generator)
    var = 0.05 * torch.rand(size, generator=generator) + 1e-3
    mean = z + var.sqrt() * torch.randn(size, generator=generator)
    known = torch.rand(size, generator=generator) > 0.2
    return mean, var, torch.where(known, to_depth(z), 0)


def seconds(run: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.no_grad()
def compare() -> dict[str, float]:
    """Median seconds a frame of the network and of scoring, after one frame to warm up."""
    net, tally = BasisNet().eval(), Tally()
    image = torch.zeros(1, 3, HEIGHT, WIDTH, dtype=torch.uint8)
    taken: dict[str, list[float]] = {"network": [], "scoring": []}
    for at in range(FRAMES + 1):
        frame = make_frame(at)
        taken["network"].append(seconds(partial(net, image)))
        taken["scoring"].append(seconds(partial(tally.add, f"{at}", *frame)))
    return {name: median(values[1:]) for name, values in taken.items()}


def large_tally() -> Tally:
    """A tally of 1,000 small images: `finish` does not know how large they were."""
    tally = Tally()
    mean, var, true = (t[::16, ::16] for t in make_frame(0))
    for at in range(DATA_SET):
        tally.add(f"frame {at}", mean + at / DATA_SET, var, true)
    return tally


def main() -> None:
    """Print the times and their ratio."""
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, torch {torch.__version__}")
    got = compare()
    for name, value in got.items():
        print(f"{name:8} {1e3 * value:7.1f} ms a frame, {value * DATA_SET:5.0f} s for {DATA_SET}")
    print(f"the network takes {got['network'] / got['scoring']:.1f} times as long as scoring")
    tally = large_tally()
    ends: dict[str, Callable[[], object]] = {
        "finish": tally.finish,
        "confidence": lambda: confidence(tally.per_image()),
    }
    print(f"\nonce, for {DATA_SET} images")
    for name, run in ends.items():
        print(f"{name:18} {1e3 * seconds(run):7.1f} ms")
    size = sum(tensor.nbytes for tensor in (*tally.rows.values(), *tally.totals.values()))
    print(f"{'memory':18} {size / 1e6:7.2f} MB")


if __name__ == "__main__":
    main()
