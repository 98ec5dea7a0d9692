# SPDX-License-Identifier: Apache-2.0
"""The pretrained models: what each is for, its terms, and where its file is.

`open` is part of this package. The others have terms of their own and are in `deepbasis_models`.
"""

import difflib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

WEIGHTS = Path(__file__).parent / "weights"
# The package with the other models.
MODELS = "deepbasis_models"


class Pretrained(NamedTuple):
    """A model in one line; its card, `NAME.md` beside its file, has the details."""

    name: str
    purpose: str
    data: str
    """What it was trained on."""
    mae: str
    """Mean absolute error at 500 points in metres, and where."""
    terms: str

    @property
    def file(self) -> Path | None:
        """Its weights; None if they are not installed."""
        spec = find_spec(MODELS)
        more = spec.submodule_search_locations if spec else None
        files = (Path(folder) / f"{self.name}.safetensors" for folder in (WEIGHTS, *(more or ())))
        return next((file for file in files if file.is_file()), None)

    @property
    def missing(self) -> str:
        """What to do if it is not installed."""
        return f"{self.name!r} is not installed: pip install deepbasis-models ({self.terms})"


PRETRAINED = (
    Pretrained("indoor", "rooms, 0.5 to 10 m", "NYU Depth V2", "0.059 m on NYU", "research only"),
    Pretrained(
        "outdoor",
        "streets, 2 to 80 m",
        "KITTI and rendered roads",
        "0.865 m on KITTI",
        "non-commercial",
    ),
    Pretrained("open", "rooms", "rendered scenes", "0.073 m on NYU", "Apache-2.0"),
)


def installed() -> tuple[str, ...]:
    """Names of the models that can be loaded."""
    return tuple(one.name for one in PRETRAINED if one.file)


def default_model() -> str:
    """`indoor`, or `open` with a warning if that is not installed."""
    indoor = PRETRAINED[0]
    if indoor.file:
        return indoor.name
    warnings.warn(f"the model 'open' is used, since {indoor.missing}", stacklevel=2)
    return "open"


def find_pretrained(name: str) -> Path:
    """The file of a model; an error says what to install, or which name was meant."""
    known = {one.name: one for one in PRETRAINED}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.5)
        guess = f"did you mean {near[0]!r}? Pass" if near else "pass"
        raise ValueError(
            f"there is no model {name!r}; {guess} one of {', '.join(known)}, a model file, or a "
            "training folder"
        )
    if (file := known[name].file) is None:
        raise ModuleNotFoundError(f"the model {known[name].missing}", name=MODELS)
    return file
