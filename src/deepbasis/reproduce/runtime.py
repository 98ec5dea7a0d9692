# SPDX-License-Identifier: Apache-2.0
"""How long each method takes for an image, measured in turns so that a busy machine is fair."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from deepbasis.methods import METHODS
from deepbasis.model import Completer
from deepbasis.networks import Architecture
from deepbasis.reproduce.config import Plan
from deepbasis.reproduce.pages import markdown, write_page
from deepbasis.reproduce.paper import RUNTIME

SIZE = (240, 320)
SHARE = 0.05
ROUNDS = 15
SCAFFOLD = "scaffold alone"
TEXT = (
    "Median of {rounds} rounds; in each round every method completes the same image of {width} x "
    "{height} pixels with 5 % points, one after the other, on a CPU, threads: {threads} (the "
    "paper's are of a GPU). Networks are untrained, which changes no time. All of them see the "
    "points; making that input, the scaffold, is part of their time, and left out of the ratio in "
    "brackets."
)


def write(plan: Plan, command: str) -> None:
    """Measure and write the page."""
    times = measure(ROUNDS)
    threads = torch.get_num_threads()
    told = TEXT.format(rounds=ROUNDS, width=SIZE[1], height=SIZE[0], threads=threads)
    head = ["method", "ms", "over log's", "paper: ms", "over log's"]
    lines = markdown(head, [_line(name, times) for name in times], 1)
    print("\n".join(lines))
    write_page(plan, "runtime", command, [told, "", *lines], {}, seconds=times)


def _line(name: str, times: dict[str, float]) -> list[str]:
    """Ours, the ratio with and without the scaffold, and the paper's."""
    alone, log = times[SCAFFOLD], times["log"]
    ratio = f"{times[name] / log:.2f} ({(times[name] - alone) / (log - alone):.2f})"
    ours = [name, f"{1000 * times[name]:.0f}", ratio if name != SCAFFOLD else "-"]
    if name not in RUNTIME:
        return [*ours, "-", "-"]
    return [*ours, f"{RUNTIME[name]}", f"{RUNTIME[name] / RUNTIME['log']:.2f}"]


def measure(rounds: int, size: tuple[int, int] = SIZE) -> dict[str, float]:
    """Median seconds of every method."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (1, 3, *size), generator=generator, dtype=torch.uint8)
    depth = 1 + 4 * torch.rand(1, 1, *size, generator=generator)
    sparse = torch.where(torch.rand(depth.shape, generator=generator) < SHARE, depth, 0)
    calls: dict[str, Callable[[], object]] = {}
    for name in RUNTIME:
        model = Completer(Architecture(name, depth_input=True), METHODS[name].copies)
        calls[name] = partial(model, image, sparse)
    local = Completer(Architecture("bdbf", depth_input=True, errors="local"))
    calls["bdbf, local"] = partial(local, image, sparse)
    calls[SCAFFOLD] = partial(local.fill, sparse)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:  # the first round warms up
                taken[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in taken.items()}
