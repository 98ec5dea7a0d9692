# SPDX-License-Identifier: Apache-2.0
"""The methods: what stands on which network, and how it is trained."""

from dataclasses import dataclass, replace
from typing import Literal

MethodName = Literal[
    "bdbf", "dbf", "log", "snap", "snap+log", "dropout", "dropout+log", "bootstrap",
    "bootstrap+log", "enet", "enet-bdbf", "ncnn", "ncnn-l2", "pncnn", "pncnn-exp",
]  # fmt: skip


@dataclass(frozen=True)
class MethodSpec:
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

METHODS: dict[str, MethodSpec] = {
    "bdbf": MethodSpec("Bayesian fit of the bases to the points", 20, fits=True, prior=True),
    "dbf": MethodSpec("the same fit without a learned prior", 20, fits=True),
    "log": MethodSpec("mean and variance by convolution", 30, variance=True),
    "snap": MethodSpec("snapshots of one training", 30, copies=K, passes=K, cycles=K + 1),
    "dropout": MethodSpec("random passes through one network", 30, passes=K, dropout=0.1),
    "bootstrap": MethodSpec("independent trainings", 30, trainings=K, copies=K, passes=K),
}
for _name in ("snap", "dropout", "bootstrap"):
    _summary = f"{METHODS[_name].summary}, with a variance"
    METHODS[f"{_name}+log"] = replace(METHODS[_name], summary=_summary, variance=True)
METHODS |= {
    "enet": MethodSpec("ENet, of two branches", 10, network="enet"),
    "enet-bdbf": MethodSpec("ENet with a fit", 10, fits=True, prior=True, network="enet"),
    "ncnn": MethodSpec("normalised convolutions, no image", 10, variance=True, network="ncnn"),
}
for _name, _summary in (
    ("ncnn-l2", "the same, trained by squared errors"),
    ("pncnn", "the same, with learned confidence and noise"),
    ("pncnn-exp", "the same, its noise an exponential"),
):
    METHODS[_name] = replace(METHODS["ncnn"], summary=_summary)


def table() -> str:
    """What the methods cost and know, as text."""
    lines = ["method         trainings  copies  passes  aleatoric  epistemic"]
    for name, spec in METHODS.items():
        numbers = f"{spec.trainings:9} {spec.copies:7} {spec.passes:7}"
        knows = ["yes" if known else "no" for known in (spec.aleatoric, spec.epistemic)]
        lines.append(f"{name:<14} {numbers} {knows[0]:>10} {knows[1]:>10}  {spec.summary}")
    return "\n".join(lines)
