# SPDX-License-Identifier: Apache-2.0
"""Guards of all readers: damaged or huge files raise a clear error before memory is allocated."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Largest number of pixels, points or numbers that a file may hold, in millions.
DEFAULT_MILLIONS = 100.0
MOST_MILLIONS = 1e9
VARIABLE = "DEEPBASIS_MAX_MILLIONS"
# Messages are cut here: those of other libraries, and those of ours, which may list topics.
LONGEST_REASON, LONGEST_OWN = 200, 600


class MissingOption(ValueError):
    """The meaning of a file is unknown, and an option of the command sets it for all files."""


class WrongUnit(MissingOption):
    """Depths look like another unit than metres, so the scale is wrong by a factor."""

    def __init__(self, message: str, scale: float = 1.0) -> None:
        super().__init__(message)
        self.scale = scale


@contextmanager
def in_memory(what: str) -> Iterator[None]:
    """Turn running out of memory in PyTorch into a ValueError of one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On the CPU, PyTorch has no class for this.
        if isinstance(error, RuntimeError) and not _is_about_memory(error):
            raise
        raise ValueError(f"{what} needs more memory than is available") from error


def _is_about_memory(error: RuntimeError) -> bool:
    return any(words in str(error) for words in ("out of memory", "can't allocate memory"))


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn any exception that a damaged file causes in a library into a one-sentence ValueError."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"{path} needs more memory than is available") from error
    except (FileNotFoundError, MissingOption):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            reason = f"{reason} is not in it"
        ours = reason.startswith(f"{path}: ")
        longest = LONGEST_OWN if ours else LONGEST_REASON
        if len(reason) > longest + len(str(path)):
            reason = f"{reason[:longest]}..."
        if reason.startswith(str(path)):
            raise ValueError(reason) from error
        if not isinstance(error, ValueError | OSError):
            reason = f"it is damaged or has another format ({reason})"
        raise ValueError(f"{path} cannot be read as {kind}: {reason}") from error


def check_count(count: int, path: Path, things: str) -> None:
    """Refuse a file that claims to hold more than the limit."""
    millions = limit()
    if count > millions * 1e6:
        raise ValueError(
            f"{path} holds {count / 1e6:.4g} million {things}, more than the limit of {millions:g} "
            f"million; set {VARIABLE} to read it"
        )


def limit() -> float:
    """How much a file may hold, in millions."""
    try:
        millions = float(os.environ.get(VARIABLE, DEFAULT_MILLIONS))
    except ValueError:
        millions = math.nan
    if not 0 < millions < MOST_MILLIONS:
        raise ValueError(f"{VARIABLE} is {os.environ[VARIABLE][:40]!r}, not a number above 0")
    return millions


def unpack(make: Callable[[], Any], content: bytes) -> bytes:
    """Unpack compressed content, up to the limit.

    Args:
        make: a decompressor, as `bz2.BZ2Decompressor` is one.
        content: one compressed stream, or several of them.
    """
    most, left, found = round(1e6 * limit()), round(1e6 * limit()), []
    while content:
        decompressor = make()
        found.append(decompressor.decompress(content, max_length=left + 1))
        left -= len(found[-1])
        if left < 0:
            raise ValueError(
                f"a part of it unpacks to more than the limit of {most / 1e6:g} million bytes; set "
                f"{VARIABLE} to read it"
            )
        if not decompressor.eof:
            raise ValueError("a compressed part of it is cut off")
        content = decompressor.unused_data or b""
    return b"".join(found)


def read_text(path: Path) -> str:
    """The contents of a text file; a byte order mark is removed."""
    check_count(path.stat().st_size, path, "characters")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if "\0" in text:
        raise ValueError(
            f"{path} is not a text file but binary, or UTF-16; check its name, or save it as plain "
            "text in UTF-8"
        )
    return text
