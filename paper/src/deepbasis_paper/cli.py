# SPDX-License-Identifier: Apache-2.0
"""The command line: `deepbasis-paper COMMAND`. No heavy import stands here."""

from collections.abc import Callable
from typing import Any

import deepbasis_paper
from deepbasis.cli import run
from deepbasis_paper.commands import Evaluate, Methods, Reproduce, Submit, Train

PROGRAM = "deepbasis-paper"
COMMANDS: dict[str, Callable[..., Any]] = {
    "train": Train, "evaluate": Evaluate, "reproduce": Reproduce, "submit": Submit,
    "methods": Methods,
}  # fmt: skip


def main() -> None:
    """Run a command; a user's mistake is one sentence and exit code 2."""
    run(PROGRAM, COMMANDS, deepbasis_paper.__doc__ or "")


if __name__ == "__main__":
    main()
