# SPDX-License-Identifier: Apache-2.0
"""The command line. Heavy imports stand inside the commands, so that `--help` answers at once."""

import sys
from pathlib import Path
from typing import Literal

import tyro

import deepbasis

app = tyro.extras.SubcommandApp()


@app.command
def demo(out: Path = Path("demo.png"), seed: int = 0) -> None:
    """Fit the built-in example: depth and error bars of a wall with a step, from 40 points.

    Args:
        out: Picture to write (.png, .pdf or .svg).
        seed: Another seed draws other points and other noise.
    """
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--out {out} does not end in .png, .pdf or .svg; name a picture file")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.parent} does not exist; make it first")
    from deepbasis.demo import run

    run(out, seed)


@app.command
def reproduce(
    target: tyro.conf.Positional[Literal["noise-term"]], out: Path = Path(), seed: int = 0
) -> None:
    """Run one of the documentation's experiments: table on the screen, figure to a folder.

    Args:
        target: Which one. noise-term: what the paper's variance leaves out, by simulation.
        out: Folder to write the figure to.
        seed: Another seed draws other data.
    """
    if not out.is_dir():
        raise ValueError(f"--out {out} is not a folder; make it first")
    from deepbasis.reproduce import write_noise_term

    {"noise-term": write_noise_term}[target](out, seed)


def main() -> None:
    """Run a command; what the user did wrong is said in one sentence, with exit code 2."""
    try:
        app.cli(prog="deepbasis", description=deepbasis.__doc__)
    except (ValueError, OSError) as error:
        print(f"deepbasis: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
