# SPDX-License-Identifier: Apache-2.0
"""What figures share."""

from pathlib import Path
from typing import TYPE_CHECKING

from deepbasis.data.files import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: "Figure", path: Path) -> None:
    """Write a figure whole or not at all."""
    with whole(path) as file:
        figure.savefig(file, dpi=110, format=path.suffix[1:])
