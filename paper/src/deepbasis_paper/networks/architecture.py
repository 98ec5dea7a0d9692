# SPDX-License-Identifier: Apache-2.0
"""What a model of the paper's experiments is made of."""

from dataclasses import dataclass
from typing import Literal

from deepbasis.nets import Architecture
from deepbasis_paper.methods import METHODS, MethodSpec

Input = Literal["rgb", "rgbd"]


@dataclass(frozen=True)
class PaperArchitecture(Architecture):
    """What a model is made of; its weights fit no other."""

    method: str = "bdbf"
    """One of `METHODS`."""
    input: Input = "rgb"
    """Whether the basis network sees the image alone or the points too."""
    width: int = 32
    """Of ENet: channels at full size."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"`method` is {self.method!r}; choose one of {', '.join(METHODS)}")

    @property
    def spec(self) -> MethodSpec:
        """Of the method."""
        return METHODS[self.method]
