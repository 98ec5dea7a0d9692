# SPDX-License-Identifier: Apache-2.0
"""What the paper's variance leaves out, by simulation."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from deepbasis import fit
from deepbasis.plots import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASES = 63
COUNTS = (16, 32, 63, 125, 250, 500, 768, 1920, 3840)
TRAINED_AT = 500
IMAGES = 64
PIXELS = 500
NOISE = 0.1


class NoiseTermRow(NamedTuple):
    """NEES at one number of points; 1 is calibrated, above 1 is overconfident."""

    points: int
    theory: float
    paper: float
    factor: float
    ours: float


def noise_term(seed: int = 0) -> list[NoiseTermRow]:
    """Simulate images whose depth *is* a linear fit, and judge two variances by their NEES.

    The paper's variance is the model part alone, either as it is or times the NEES factor learned
    at one point count; ours adds the noise 1 / beta. Theory for the paper's, without the factor,
    and N > M: the error has variance (1 + M/N) / beta, the model part is M/N / beta.
    """
    generator = torch.Generator().manual_seed(seed)
    paper, ours = zip(*(_simulate(n, generator) for n in COUNTS), strict=True)
    factor = paper[COUNTS.index(TRAINED_AT)]
    return [
        NoiseTermRow(n, 1 + n / BASES if n > BASES else torch.nan, p, p / factor, o)
        for n, p, o in zip(COUNTS, paper, ours, strict=True)
    ]


def _simulate(n: int, generator: torch.Generator) -> tuple[float, float]:
    """NEES with the model variance alone, and with noise and model variance."""
    phi = torch.randn(IMAGES, n + PIXELS, BASES, generator=generator)
    phi[..., 0] = 1
    w = torch.randn(IMAGES, BASES, 1, generator=generator)
    z = (phi @ w)[..., 0] + NOISE * torch.randn(IMAGES, n + PIXELS, generator=generator)
    prior = fit.Prior(torch.zeros(BASES), torch.eye(BASES))
    post = fit.evidence(phi[:, :n], z[:, :n], prior)
    mean, model_var, noise_var = post.predict(phi[:, n:])
    error = z[:, n:] - mean
    return float(fit.nees(error, model_var)), float(fit.nees(error, model_var + noise_var))


def write_noise_term(out: Path, seed: int = 0) -> None:
    """Print the table and write the figure."""
    from matplotlib.figure import Figure

    rows = noise_term(seed)
    print(f"NEES of a well-specified model: {BASES} bases, {IMAGES} images, {PIXELS} pixels each")
    print("points  1 + N/M  paper's  with its factor   ours")
    for row in rows:
        print(
            f"{row.points:6d} {row.theory:8.2f} {row.paper:8.2f} {row.factor:16.2f} {row.ours:6.2f}"
        )
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    draw_noise_term(figure.subplots(), rows)
    save(figure, out / "noise-term.png")
    print(f"figure  {out / 'noise-term.png'}")


def draw_noise_term(ax: "Axes", rows: list[NoiseTermRow]) -> "Axes":
    """NEES against the number of points."""
    points, theory, paper, factor, ours = zip(*rows, strict=True)
    ax.plot(points, theory, "k--", lw=1, label="theory, 1 + N/M")
    ax.plot(points, paper, "o-", color="tab:red", label="paper's variance")
    label = f"paper's variance, factor learned at {TRAINED_AT} points"
    ax.plot(points, factor, "s-", color="tab:orange", label=label)
    ax.plot(points, ours, "D-", color="tab:blue", label="ours: with the noise term")
    ax.axhline(1, color="black", lw=0.5)
    ax.set(xscale="log", yscale="log", xlabel="points N", ylabel="NEES (1 is calibrated)")
    ax.legend()
    return ax
