# SPDX-License-Identifier: Apache-2.0
"""Where a training stands, as a function of the step number alone: so it can go on anywhere."""

import math
from dataclasses import dataclass

from deepbasis.methods import METHODS
from deepbasis.train.config import TrainConfig

# Of ENet: weight of each branch's loss in the first, second, ... fifth of a training. Its authors
# give 2 epochs to 0.2, 2 to 0.05 and the others to 0; the comparison with bdbf had 10 epochs.
BRANCHES = (0.2, 0.05, 0.0, 0.0, 0.0)
# Share of the steps in which the rate of the "cosine" schedule rises.
WARM_UP = 0.1


@dataclass(frozen=True)
class Schedule:
    """Steps are counted over all trainings of a method, from 0; see `Recipe`."""

    config: TrainConfig
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        """Steps of one training."""
        return self.steps_per_epoch * self.config.total_epochs

    @property
    def total(self) -> int:
        """Steps of all trainings."""
        return self.steps * METHODS[self.config.method].trainings

    @property
    def cycle(self) -> int:
        """Steps from one snapshot to the next; the last cycle may be shorter."""
        return math.ceil(self.steps / METHODS[self.config.method].cycles)

    def training(self, step: int) -> int:
        """Number of the training."""
        return step // self.steps

    def starts_training(self, step: int) -> bool:
        """Whether the network is new at this step."""
        return step % self.steps == 0

    def ends_member(self, done: int) -> bool:
        """Whether the network is a member of the ensemble after so many steps."""
        within = done % self.steps
        return within == 0 or within % self.cycle == 0

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        within = step % self.steps
        if METHODS[self.config.method].cycles > 1:
            # Loshchilov and Hutter, 2017, as Huang et al., 2017, write it; their t starts at 1.
            return self.config.lr / 2 * (math.cos(math.pi * (within % self.cycle) / self.cycle) + 1)
        if self.config.schedule == "halve":
            epoch = within // self.steps_per_epoch
            return self.config.lr * 0.5 ** (epoch // self.config.halve_every)
        rise = max(1.0, WARM_UP * self.steps)
        if within < rise:
            return self.config.lr * (within + 1) / (rise + 1)
        share = (within - rise) / max(1.0, self.steps - rise)
        return self.config.lr / 2 * (math.cos(math.pi * share) + 1)

    def side(self, step: int) -> float:
        """Weight of what networks of other papers add to their loss; see `loss`."""
        within, network = step % self.steps, METHODS[self.config.method].network
        if network == "enet":
            return BRANCHES[len(BRANCHES) * within // self.steps]
        return 1 / (1 + within // self.steps_per_epoch) if network == "ncnn" else 0.0
