# SPDX-License-Identifier: Apache-2.0
"""Inference time of each method, measured in turns, so that other load affects all alike."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from deepbasis.points import Points
from deepbasis_paper.methods import METHODS
from deepbasis_paper.model import Ensemble
from deepbasis_paper.networks import Given, PaperArchitecture
from deepbasis_paper.targets.config import Plan
from deepbasis_paper.targets.pages import markdown, write_page
from deepbasis_paper.targets.paper import RUNTIME

SIZE = (240, 320)
SHARE = 0.05
ROUNDS = 15
SCAFFOLD = "scaffold alone"
TEXT = (
    "Median of {rounds} rounds; in each round every method completes the same image of {width} x "
    "{height} pixels with 5 % points, one after the other, on a CPU with {threads} threads (the "
    "paper's times are of a GPU). Networks are untrained, which does not change the time. All of "
    "them see the points; the time includes the interpolation of the points, the scaffold. The "
    "ratio in brackets is without it."
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
        architecture = PaperArchitecture(method=name, input="rgbd", errors="independent")
        calls[name] = partial(Ensemble(architecture, METHODS[name].copies), image, sparse)
    correlated = Ensemble(PaperArchitecture(method="bdbf", input="rgbd", errors="correlated"))
    calls["bdbf, correlated"] = partial(correlated, image, sparse)
    calls[SCAFFOLD] = lambda: Given(image, Points.from_maps(sparse)).depth_input
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:  # the first round warms up
                taken[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in taken.items()}
