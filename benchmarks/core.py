# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of the layer and of the fit, as ratios measured side by side in one run.

Image 320x240, 63 bases at strides 16, 8, 4, 2, 1 and the constant. Each time is the median over
rounds in which the candidates take turns, so that a busy machine slows all of them alike.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import reference
from deepbasis import BasisFit, Points, fit

HEIGHT, WIDTH = 240, 320
CHANNELS, STRIDES = (2, 4, 8, 16, 32), (16, 8, 4, 2, 1)
M = 1 + sum(CHANNELS)
ROUNDS = 7


def make_input(batch: int, points: int) -> tuple[list[Tensor], Tensor]:
    """Bases at five scales, and sparse depth of a scene that they can explain."""
    torch.manual_seed(0)
    scales = [
        torch.randn(batch, c, HEIGHT // s, WIDTH // s)
        for c, s in zip(CHANNELS, STRIDES, strict=True)
    ]
    basis = reference.full_basis(scales, (HEIGHT, WIDTH))
    z = torch.einsum("bmhw,bm->bhw", basis, 0.1 * torch.randn(batch, M)) + 1
    chosen = torch.stack([torch.randperm(HEIGHT * WIDTH)[:points] for _ in range(batch)])
    sparse = torch.zeros(batch, HEIGHT * WIDTH)
    sparse.scatter_(
        1, chosen, (z.flatten(1).gather(1, chosen) + 0.02 * torch.randn(batch, points)).exp()
    )
    return scales, sparse.view(batch, 1, HEIGHT, WIDTH)


def times(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each: in every round each rests, runs once to warm up, then three times.

    Worker threads of the previous candidate keep spinning for some milliseconds; hence the rest.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, run in candidates.items():
            time.sleep(0.1)
            run()
            for _ in range(3):
                start = time.perf_counter()
                run()
                taken[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in taken.items()}


def sklearn_loop(phi: Tensor, z: Tensor) -> None:
    from sklearn.linear_model import BayesianRidge

    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
    for one, target in zip(phi.numpy(), z.numpy(), strict=True):
        BayesianRidge(fit_intercept=False, **flat).fit(one, target)


@torch.no_grad()
def compare(batch: int, points: int) -> None:
    """One row of each table: the layer, its plain twin, a convolution head, and the fit alone."""
    scales, sparse = make_input(batch, points)
    layer = BasisFit(M - 1).eval()
    prior = layer.prior.value
    head = nn.Conv2d(M, 2, 3, padding=1)
    full = reference.full_basis(scales, (HEIGHT, WIDTH))
    seen = layer.observe(scales, Points.from_maps(sparse), (HEIGHT, WIDTH))
    phi, z = seen.phi.double().contiguous(), seen.z.double()
    got = times(
        {
            "layer": lambda: layer(scales, sparse),
            "plain": lambda: reference.layer(scales, sparse, prior),
            "head": lambda: head(reference.full_basis(scales, (HEIGHT, WIDTH))),
            "convolution": lambda: head(full),
        }
    ) | times(
        {
            "evidence": lambda: fit.evidence(phi, z, prior),
            "sklearn": lambda: sklearn_loop(phi, z),
        }
    )
    ms = {name: f"{1e3 * seconds:.1f}" for name, seconds in got.items()}
    print(
        f"{batch:5d} {points:6d} | {ms['layer']:>7} {ms['plain']:>7} "
        f"{got['plain'] / got['layer']:6.1f}x | {ms['evidence']:>7} {ms['sklearn']:>8} "
        f"{got['sklearn'] / got['evidence']:7.1f}x | {ms['head']:>7} "
        f"{got['head'] / got['layer']:6.2f}x {ms['convolution']:>7} "
        f"{got['convolution'] / got['layer']:6.2f}x"
    )


@torch.no_grad()
def peak_memory(which: str, batch: int, points: int) -> None:
    """Print by how many MB one call raises this process's peak; for a process of its own."""
    scales, sparse = make_input(batch, points)
    layer = BasisFit(M - 1).eval()
    prior = layer.prior.value

    def run(bases: list[Tensor], depth: Tensor) -> None:
        layer(bases, depth) if which == "layer" else reference.layer(bases, depth, prior)

    run([s[:1] for s in scales], sparse[:1])  # loads code, starts threads
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = memory("VmRSS")
    run(scales, sparse)
    print(memory("VmHWM") - before)


def memory(field: str) -> float:
    """MB from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure_memory(batch: int, points: int) -> None:
    megabytes = {}
    for which in ("layer", "plain"):
        command = [sys.executable, __file__, "--memory-of", which, str(batch), str(points)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        megabytes[which] = float(done.stdout)
    print(
        f"{batch:5d} {points:6d} | {megabytes['layer']:7.0f} {megabytes['plain']:7.0f} "
        f"{megabytes['layer'] / megabytes['plain']:6.0%}"
    )


def main() -> None:
    """Print the tables."""
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, torch {torch.__version__}")
    print(f"{WIDTH}x{HEIGHT}, {M} bases; milliseconds, and how many times the layer is faster")
    print(
        "            |          layer           |       fit.evidence        |  3x3 convolution head"
    )
    print("batch points|   layer   plain    ratio |    ours  sklearn    ratio |"
          "  with upsampling   alone")  # fmt: skip
    for batch in (1, 8):
        for points in (500, 3840):
            compare(batch, points)
    print("\npeak memory of one call, MB, and its share of the plain version's")
    print("batch points|   layer   plain  share")
    for points in (500, 3840):
        measure_memory(8, points)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-of", nargs=3, metavar=("WHICH", "BATCH", "POINTS"))
    chosen = parser.parse_args().memory_of
    if chosen:
        peak_memory(chosen[0], int(chosen[1]), int(chosen[2]))
    else:
        main()
