# SPDX-License-Identifier: Apache-2.0
"""Optional packages, imported where they are used; a message says how to install them."""

import importlib
from typing import Any


def need(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: to import.
        extra: of this package, which installs it.
        what: cannot be done without it, as the beginning of a sentence.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        raise ModuleNotFoundError(
            f'{what} needs {package}: pip install "deepbasis[{extra}]"', name=error.name
        ) from error
