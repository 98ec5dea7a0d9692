# SPDX-License-Identifier: Apache-2.0
"""Methods as recipes: what stands on which network, and how it is trained."""

from dataclasses import dataclass, replace
from typing import Literal

MethodName = Literal[
    "bdbf", "dbf", "log", "snap", "snap+log", "dropout", "dropout+log", "bootstrap",
    "bootstrap+log", "enet", "enet-bdbf", "ncnn",
]  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """One method. Its first four numbers are the columns of the paper's table 1 (K = 5)."""

    summary: str
    epochs: int
    """Of each training, in the paper."""
    fits: bool = False
    """The last layer, in ENet that of the colour branch, is a fit; otherwise a convolution."""
    prior: bool = False
    """The fit's prior is learned."""
    variance: bool = False
    """The network tells a variance too; a convolution's is trained by its likelihood."""
    trainings: int = 1
    copies: int = 1
    passes: int = 1
    dropout: float = 0.0
    cycles: int = 1
    """Times that the learning rate is annealed; each time ends in a snapshot."""
    network: Literal["basis", "enet", "ncnn"] = "basis"
    """What it stands on: the paper's basis network, or one of another paper."""

    @property
    def aleatoric(self) -> bool:
        """Whether it knows the noise of the data."""
        return self.fits or self.variance

    @property
    def epistemic(self) -> bool:
        """Whether it knows what the model has not learned."""
        return self.fits or self.passes > 1


K = 5

METHODS: dict[str, Recipe] = {
    "bdbf": Recipe("Bayesian fit of the bases to the points", 20, fits=True, prior=True),
    "dbf": Recipe("the same fit without a learned prior", 20, fits=True),
    "log": Recipe("mean and variance by convolution", 30, variance=True),
    "snap": Recipe("snapshots of one training", 30, copies=K, passes=K, cycles=K + 1),
    "dropout": Recipe("random passes through one network", 30, passes=K, dropout=0.1),
    "bootstrap": Recipe("independent trainings", 30, trainings=K, copies=K, passes=K),
}
for _name in ("snap", "dropout", "bootstrap"):
    _summary = f"{METHODS[_name].summary}, with a variance"
    METHODS[f"{_name}+log"] = replace(METHODS[_name], summary=_summary, variance=True)
METHODS |= {
    "enet": Recipe("ENet, of two branches", 10, network="enet"),
    "enet-bdbf": Recipe("ENet with a fit", 10, fits=True, prior=True, network="enet"),
    "ncnn": Recipe("normalised convolutions, no image", 10, variance=True, network="ncnn"),
}


def table() -> str:
    """What the methods cost and know, as text."""
    lines = ["method         trainings  copies  passes  aleatoric  epistemic"]
    for name, recipe in METHODS.items():
        numbers = f"{recipe.trainings:9} {recipe.copies:7} {recipe.passes:7}"
        knows = ["yes" if known else "no" for known in (recipe.aleatoric, recipe.epistemic)]
        lines.append(f"{name:<14} {numbers} {knows[0]:>10} {knows[1]:>10}  {recipe.summary}")
    return "\n".join(lines)
