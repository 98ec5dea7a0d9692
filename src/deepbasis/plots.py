# SPDX-License-Identifier: Apache-2.0
"""What figures share."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: "Figure", path: Path) -> None:
    """Write a figure whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, dpi=110, format=path.suffix[1:])
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
