# SPDX-License-Identifier: Apache-2.0
"""Dense depth with calibrated error bars, from an image and sparse depth measurements."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "BasisFit", "Completer", "Completion", "FrozenBases", "Points", "baselines", "data", "fit",
    "latent", "layer", "load", "metrics", "nets", "patterns", "points",
]  # fmt: skip

HOMES = {
    "BasisFit": "deepbasis.layer", "Completer": "deepbasis.model", "Completion": "deepbasis.result",
    "FrozenBases": "deepbasis.nets", "Points": "deepbasis.points", "load": "deepbasis.model",
}  # fmt: skip

if TYPE_CHECKING:
    from deepbasis import baselines, data, fit, latent, layer, metrics, nets, patterns, points
    from deepbasis.layer import BasisFit
    from deepbasis.model import Completer, load
    from deepbasis.nets import FrozenBases
    from deepbasis.points import Points
    from deepbasis.result import Completion


def __getattr__(name: str) -> Any:
    """Import on first use, so that `deepbasis --help` does not wait for torch."""
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    if name in __all__:
        return import_module(f"deepbasis.{name}")
    raise AttributeError(f"module 'deepbasis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
