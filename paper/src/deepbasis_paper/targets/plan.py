# SPDX-License-Identifier: Apache-2.0
"""Which trainings the paper's tables need; each is done once, by a command anyone can repeat."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_args

from deepbasis.data.tensors import load_tensors, save_tensors
from deepbasis.train.checkpoint import FREE
from deepbasis_paper.config import PaperConfig, RecipeName
from deepbasis_paper.methods import METHODS
from deepbasis_paper.targets.config import Plan

# Points in training of the paper's two halves: many ("mid") and few ("low").
REGIMES = {"mid": "5%", "low": "500"}
# KITTI has a sensor of its own, whose points are about 5 % of the pixels.
SENSOR = {"kitti": "sensor"}
_BOTH = (("snap", "rgbd"), ("snap+log", "rgbd"), ("log", "rgbd"), ("dbf", "rgbd"), ("bdbf", "rgbd"))
ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "mid": _BOTH,
    "low": (*_BOTH, ("log", "rgb"), ("bdbf", "rgb")),
}
# The steps of these methods and recipes are the same; only what is learned after them differs.
TWINS = [(method, recipe) for method in ("bdbf", "dbf") for recipe in get_args(RecipeName)]
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Training:
    """One cell of the plan: a method, its input, its regime, its seed and its recipe."""

    plan: Plan
    regime: str
    method: str
    input: str
    seed: int = 0
    recipe: RecipeName = "paper"

    @property
    def name(self) -> str:
        """Row of the table, and folder below the plan's."""
        recipe = "" if self.recipe == "paper" else f"-{self.recipe}"
        return f"{self.regime}-{self.method}-{self.input}{recipe}-s{self.seed}"

    @property
    def model(self) -> Path:
        """The file that the training ends with."""
        return self.plan.runs / self.name / "model.safetensors"

    @property
    def config(self) -> PaperConfig:
        """Its settings. The paper's schedule needs its 20 epochs; others use one cosine."""
        plan, spec = self.plan, METHODS[self.method]
        epochs = spec.epochs
        if plan.epochs is not None:
            epochs = plan.epochs if spec.fits else plan.epochs * 3 // 2
        return PaperConfig(
            out=self.model.parent, data=plan.data, root=plan.root, frames=plan.frames,
            size=plan.size, downscale=plan.downscale, cache=plan.cache, val_frames=plan.val_frames,
            method=self.method, recipe=self.recipe,  # type: ignore[arg-type]
            encoder=plan.encoder, encoder_weights=plan.encoder_weights,
            normalisation=plan.normalisation, input=self.input,  # type: ignore[arg-type]
            input_points=trained_points(plan, self.regime), epochs=epochs,
            lr=2e-4 if plan.epochs is None else 4e-4,
            schedule="halve" if plan.epochs is None else "cosine", seed=self.seed,
            mixed_precision=plan.mixed_precision,
        )  # fmt: skip


def trained_points(plan: Plan, regime: str) -> str:
    """Points of the trainings of one half of the paper."""
    return SENSOR.get(plan.data, REGIMES[regime]) if regime == "mid" else REGIMES[regime]


def points_to_test(plan: Plan, regime: str, points: Sequence[str]) -> tuple[str, ...]:
    """Points of tests: those of training first. Of a sensor's points there are no fewer."""
    first = trained_points(plan, regime)
    return (first,) if first == "sensor" else tuple(points)


def trainings(plan: Plan, regime: str) -> Iterator[Training]:
    """Those of one half of the paper, all methods of a seed before the next."""
    for seed in range(plan.seeds):
        for method, depth_input in ROWS[regime]:
            yield Training(plan, regime, method, depth_input, seed)


def command(config: PaperConfig) -> list[str]:
    """Arguments that start a training with these settings."""
    default, words = PaperConfig(), ["train", "custom"]
    for entry in fields(config):
        value = getattr(config, entry.name)
        if value == getattr(default, entry.name):
            continue
        words.append(f"--{entry.name.replace('_', '-')}")
        if isinstance(value, tuple):
            words += [str(part) for part in value]
        elif value is not True:
            words.append(str(value))
    return words


def ensure(training: Training) -> Path:
    """The model of a finished training; start or resume the training if it is not finished."""
    if training.model.exists():
        _check(training)
        return training.model
    _borrow(training)
    words = command(training.config)
    if (training.model.parent / CHECKPOINT).exists():
        words.append("--resume")
    print(f"$ {shlex.join(['deepbasis-paper', *words])}", flush=True)
    done = subprocess.run([sys.executable, "-m", "deepbasis_paper.cli", *words], check=False)
    if done.returncode:
        raise ValueError(
            f"the training {training.name} ended early (exit code {done.returncode}); the same "
            "command resumes it"
        )
    return training.model


def _borrow(training: Training) -> None:
    """Copy the checkpoint of a finished twin, so that only what comes after it is left to do."""
    here = training.model.parent
    if (here / CHECKPOINT).exists() or (training.method, training.recipe) not in TWINS:
        return
    for method, recipe in TWINS:
        twin = replace(training, method=method, recipe=recipe)
        checkpoint = twin.model.parent / CHECKPOINT
        if not (twin.model.exists() and checkpoint.exists()):
            continue
        _check(twin)
        here.mkdir(parents=True, exist_ok=True)
        tensors, header = load_tensors(checkpoint)
        header["settings"] |= {"method": training.method, "recipe": training.recipe}
        save_tensors(here / CHECKPOINT, tensors, header)
        return


def _check(training: Training) -> None:
    """Refuse a finished training that had other settings."""
    before = load_tensors(training.model)[1]["training"]
    config = training.config
    for entry in fields(config):
        value = getattr(config, entry.name)
        value = list(value) if isinstance(value, tuple) else value
        was = before.get(entry.name, entry.default)  # a setting may be of a later version
        if entry.name not in FREE - {"lr"} and was != value:
            raise ValueError(
                f"{training.model} was trained with {entry.name} {was!r}, not {value!r}; choose "
                "another --runs folder"
            )
