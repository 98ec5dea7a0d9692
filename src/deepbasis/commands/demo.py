# SPDX-License-Identifier: Apache-2.0
"""`deepbasis demo`."""

from dataclasses import dataclass
from pathlib import Path

from deepbasis.options import options


@options
@dataclass(frozen=True)
class Demo:
    """Complete the built-in example: a room from 500, 50, 5 and no points."""

    out: Path = Path("demo.png")
    """Picture to write (.png, .pdf or .svg)."""
    seed: int = 0
    """Seed of the random points."""

    def run(self) -> None:
        """Complete, print error, coverage and time, and write the picture."""
        if self.out.suffix not in (".png", ".pdf", ".svg"):
            raise ValueError(f"--out {self.out} does not end in .png, .pdf or .svg")
        if not self.out.parent.is_dir():
            raise ValueError(f"--out {self.out}: there is no folder {self.out.parent}; create it")
        from deepbasis.demo import run

        run(self.out, self.seed)
