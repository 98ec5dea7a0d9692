# SPDX-License-Identifier: Apache-2.0
"""The commands with their settings. Heavy imports stand inside `run`, so that `--help` is quick."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import tyro
from tyro.conf import Positional

from deepbasis.commands import evaluate
from deepbasis.options import options
from deepbasis_paper import methods
from deepbasis_paper.config import PRESETS, PaperConfig
from deepbasis_paper.targets.config import Plan, Target

if TYPE_CHECKING:
    Preset = PaperConfig
else:
    Preset = tyro.extras.subcommand_type_from_defaults(
        {name: config for name, (_, config) in PRESETS.items()},
        {name: text for name, (text, _) in PRESETS.items()},
        prefix_names=False,
    )


@dataclass(frozen=True)
class Train:
    """Train a method of the paper, with a preset and any changes to it, into one model file.

    It can be stopped at any time (Ctrl-C); the same command with --resume continues.
    """

    config: Preset

    def run(self) -> None:
        """Train, and say how to resume if it was stopped."""
        train(self.config)


def train(config: PaperConfig) -> None:
    """Train, and say how to resume if it was stopped."""
    config.check()
    from deepbasis.train.loop import Stopped
    from deepbasis_paper.train.run import train as start

    try:
        start(config)
    except Stopped as stopped:
        message, number = stopped.args
        if message:  # the first process speaks for all
            print(f"deepbasis-paper: {message}", file=sys.stderr)
            sys.exit(128 + number)  # as shells report a process that a signal ended


class Evaluate(evaluate.Evaluate):
    """Evaluate models of the paper and of the library on the test frames of a data set."""

    centred: ClassVar[bool] = True

    def run(self) -> None:
        """Evaluate, print the table row by row, write the files."""
        from deepbasis_paper.model import load

        self.evaluate("deepbasis-paper", load)


@options
@dataclass(frozen=True, kw_only=True)
class Reproduce(Plan):
    """Write the page of one experiment, with its table or figure, to a folder.

    Models that are missing are trained first. It can be stopped at any time; the same command
    continues.
    """

    target: Positional[Target]
    """Experiment to run; paper/docs/reproduction.md describes them."""

    def run(self) -> None:
        """Train what is missing, evaluate, write."""
        if not self.out.is_dir():
            raise ValueError(f"--out {self.out}: there is no such folder; create it")
        self.check()
        from deepbasis_paper.targets.run import run

        run(self.target, self, shlex.join(["deepbasis-paper", *sys.argv[1:]]))


@options
@dataclass(frozen=True)
class Submit:
    """Complete KITTI's test frames and write the zip file for its benchmark.

    The file is checked, and appears only when it is complete.
    """

    model: Positional[str | None] = None
    """Name of a pretrained model, a model file, or a training folder."""
    root: Path | None = None
    """Folder of KITTI depth completion; its depth_selection/ holds the test frames."""
    out: Path = Path("submission.zip")
    """Zip file to write."""
    check: Path | None = None
    """Write nothing, only check this zip file."""

    def run(self) -> None:
        """Check a file, or write one."""
        from deepbasis_paper.submit import check_or_run

        check_or_run(self.model, self.root, self.out, self.check)


@dataclass(frozen=True)
class Methods:
    """List the paper's methods, with their cost and their kinds of uncertainty."""

    def run(self) -> None:
        """Print the table."""
        print(methods.table())
