# SPDX-License-Identifier: Apache-2.0
"""Finding files, with messages for missing ones, and writing files atomically."""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PICTURES = (".jpg", ".jpeg", ".png")


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name only when it is complete.

    Until then it is locked, so that `remove_abandoned` knows that somebody is writing it.
    """
    find_folder(path.parent, "make it first")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("wb") as file:
            with suppress(OSError):  # some file systems have no locks
                _lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut could leave an empty file
        part.replace(path)
    except OSError as error:
        raise OSError(f"cannot write {path} ({error.strerror or error})") from error
    finally:
        part.unlink(missing_ok=True)


def remove_abandoned(paths: Sequence[Path]) -> None:
    """Remove what processes that were killed have left of files; others may be writing them."""
    names = {path.name for path in paths}
    for folder in {path.parent for path in paths}:
        for part in folder.glob(".*.part"):
            if part.name[1:].rsplit(".", 2)[0] not in names:
                continue
            with suppress(OSError):
                with part.open("rb") as file:
                    _lock(file)
                part.unlink()


def _lock(file: BinaryIO) -> None:
    """Lock a file until it is closed or the process ends; an OSError if another has locked it."""
    if sys.platform != "win32":  # there, nobody can remove an open file
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def find_file(path: Path, hint: str = "check its name") -> Path:
    """Return the path if the file exists."""
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder, not a file; {hint}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; {hint}")
    return path


def find_folder(path: Path, hint: str = "check its name") -> Path:
    """Return the path if the folder exists."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}; {hint}")
    return path


def list_by_stem(folder: Path, suffixes: Sequence[str], hint: str = "") -> dict[str, Path]:
    """Files of a folder by name without suffix, sorted; hidden files are ignored."""
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
