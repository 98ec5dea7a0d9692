# SPDX-License-Identifier: Apache-2.0
"""The networks of the paper's experiments, all with one interface: `PaperNetwork`."""

from deepbasis_paper.networks.architecture import PaperArchitecture
from deepbasis_paper.networks.inputs import Direct, Given, PaperNetwork
from deepbasis_paper.networks.on_bases import ConvNetwork, RgbdNetwork, RgbNetwork
from deepbasis_paper.networks.pncnn import Probabilistic
from deepbasis_paper.networks.two_branch import ConvBranches, FitBranches, TwoBranch
from deepbasis_paper.networks.unguided import Unguided

__all__ = [
    "ConvBranches",
    "ConvNetwork",
    "Direct",
    "FitBranches",
    "Given",
    "PaperArchitecture",
    "PaperNetwork",
    "Probabilistic",
    "RgbNetwork",
    "RgbdNetwork",
    "TwoBranch",
    "Unguided",
    "new_network",
]


def new_network(architecture: PaperArchitecture) -> PaperNetwork:
    """A new network of the kind that the method uses."""
    spec = architecture.spec
    if spec.network == "ncnn":
        probabilistic = architecture.method.startswith("pncnn")
        return Probabilistic(architecture) if probabilistic else Unguided(architecture)
    if spec.network == "enet":
        return FitBranches(architecture) if spec.fits else ConvBranches(architecture)
    if not spec.fits:
        return ConvNetwork(architecture)
    return RgbdNetwork(architecture) if architecture.input == "rgbd" else RgbNetwork(architecture)
