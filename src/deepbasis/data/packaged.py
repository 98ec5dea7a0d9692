# SPDX-License-Identifier: Apache-2.0
"""A few rendered frames included in the package, for demos and tests."""

from importlib.resources import files
from pathlib import Path

from deepbasis.data.folder import Folder


def packaged(world: str = "rooms") -> Folder:
    """Three frames of `rooms` or one of `roads`, as `deepbasis render` wrote them."""
    return Folder(Path(str(files("deepbasis") / "samples" / world)))
