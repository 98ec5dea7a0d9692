# SPDX-License-Identifier: Apache-2.0
"""Run a target by its name."""

from deepbasis_paper.targets import (
    bounds,
    curves,
    enet,
    ensembles,
    gallery,
    judgement,
    kitti,
    nees,
    neighbours,
    noise_term,
    prior,
    qualitative,
    runtime,
    shift,
    showcase,
    sparsity,
    tables,
    variances,
)
from deepbasis_paper.targets.config import Plan, Target

WRITERS = {
    "sparsity": sparsity.write, "curves": curves.write, "bounds": bounds.write,
    "shift": shift.write, "nees": nees.write, "prior": prior.write, "runtime": runtime.write,
    "qualitative": qualitative.write, "variances": variances.write,
    "neighbours": neighbours.write, "showcase": showcase.write, "enet": enet.write,
    "zero-points": qualitative.write_zero_points, "published": kitti.write_published,
    "unguided": kitti.write_unguided, "claims": judgement.write,
    "ensembles": ensembles.write,
}  # fmt: skip


def run(target: Target, plan: Plan, command: str) -> None:
    """Train what is missing, evaluate, write."""
    if target == "noise-term":
        noise_term.write_noise_term(plan.out, plan.seed)
    elif target == "worlds":
        gallery.write_worlds(plan.out, plan.seed)
    elif target in ("mid", "low"):
        tables.write(plan, target, command)
    else:
        WRITERS[target](plan, command)
