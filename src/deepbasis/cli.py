# SPDX-License-Identifier: Apache-2.0
"""The command line: `deepbasis COMMAND`. No heavy import stands here, so that `--help` is quick."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import tyro

import deepbasis
from deepbasis.commands.adapt import Adapt
from deepbasis.commands.complete import Complete
from deepbasis.commands.demo import Demo
from deepbasis.commands.evaluate import Evaluate
from deepbasis.commands.export import Export
from deepbasis.commands.models import Models
from deepbasis.commands.render import Render
from deepbasis.commands.serve import Serve
from deepbasis.commands.train import Train
from deepbasis.options import CONFIG

COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": Demo, "complete": Complete, "serve": Serve, "train": Train, "adapt": Adapt,
    "evaluate": Evaluate, "render": Render, "export": Export, "models": Models,
}  # fmt: skip


def main() -> None:
    """Run a command."""
    if sys.argv[1:] == ["--version"]:
        print(f"deepbasis {deepbasis.__version__}")
        return
    run("deepbasis", COMMANDS, deepbasis.__doc__ or "")


def run(program: str, commands: dict[str, Callable[..., Any]], description: str) -> None:
    """Parse the arguments and run a command; a user's mistake is one sentence and exit code 2."""
    warnings.formatwarning = lambda message, *_, **__: f"{program}: warning: {message}\n"
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            commands, prog=program, description=description, config=CONFIG
        )
        command.run()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest when it ends
        sys.exit(141)  # as a program that ends by SIGPIPE
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"{program}: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        sys.stderr.flush()
        os._exit(130)  # threads that are still computing are not waited for


def _sentence(error: Exception) -> str:
    """What an error says; one from a data loader's worker hides it below a traceback."""
    text = str(error)
    if "Original Traceback" in text:
        return text.strip().rpartition("\n")[2].partition(": ")[2]
    return text


if __name__ == "__main__":
    main()
