# SPDX-License-Identifier: Apache-2.0
"""Finding files, writing them whole, and what users are told when one is missing."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PICTURES = (".jpg", ".jpeg", ".png")


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that appears under its name only once it is complete."""
    find_folder(path.parent, "make it first")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the name without the bytes
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def find_file(path: Path, hint: str = "check its name") -> Path:
    """The path itself, if a file is there."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; {hint}")
    return path


def find_folder(path: Path, hint: str = "check its name") -> Path:
    """The path itself, if a folder is there."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}; {hint}")
    return path


def list_by_stem(folder: Path, suffixes: Sequence[str], hint: str = "") -> dict[str, Path]:
    """Files of a folder, sorted by name without suffix; hidden files are left alone."""
    found: dict[str, Path] = {}
    for path in sorted(find_folder(folder, hint or "check its name").iterdir()):
        if path.suffix.lower() not in suffixes or path.name.startswith("."):
            continue
        if path.stem in found:
            raise ValueError(
                f"{found[path.stem]} and {path.name} differ only in their suffix, so frame "
                f"{path.stem!r} is not clear; remove one of them"
            )
        found[path.stem] = path
    if not found:
        raise FileNotFoundError(f"{folder} holds no file that ends in {', '.join(suffixes)}")
    return dict(sorted(found.items()))


def check_paired(
    one: Mapping[str, Path], other: Mapping[str, Path], where: tuple[str, str]
) -> None:
    """Refuse two sets of files that do not have the same stems.

    Args:
        one, other: files by stem.
        where: pattern of each, as the user would write it.
    """
    lonely = sorted(one.keys() ^ other.keys())
    if lonely:
        first = one.get(lonely[0]) or other[lonely[0]]
        raise ValueError(
            f"{where[0]} are {len(one)} files and {where[1]} are {len(other)}, "
            f"{len(lonely)} of them without a partner, first {first}; each frame needs both"
        )


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise ValueError(f"`{option}` is {value!r}; choose one of {', '.join(map(repr, choices))}")
