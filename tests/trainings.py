# SPDX-License-Identifier: Apache-2.0
"""Trainings of seconds."""

from dataclasses import replace
from pathlib import Path

from deepbasis.train.config import TrainConfig

# Six frames of 32 x 48 pixels, of which four are trained on: two steps an epoch.
SMALL = TrainConfig(
    data="rooms", frames=6, size=(32, 48), cache=True, val_frames=2, fit_points="400",
    few_points_weight=0.0, epochs=1, batch=2, workers=0, lr=1e-3, accelerator="cpu",
)  # fmt: skip
WORDS = [
    "--data", "rooms", "--frames", "6", "--size", "32", "48", "--cache", "--val-frames", "2",
    "--fit-points", "400", "--few-points-weight", "0", "--batch", "2", "--workers", "0",
    "--lr", "1e-3", "--accelerator", "cpu",
]  # fmt: skip


def small(out: Path, **changes: object) -> TrainConfig:
    """A small training in a folder of its own."""
    return replace(SMALL, out=out, **changes)  # type: ignore[arg-type]
