# SPDX-License-Identifier: Apache-2.0
"""Files on this machine or at an address that fsspec supports, such as s3://BUCKET/NAME."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from deepbasis.data.extras import need
from deepbasis.data.files import atomic_write, find_file

# A `Path` makes one slash of two. One letter is a drive, not a scheme.
ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/+")


def to_path(text: str) -> Path:
    """A file name or an address as a path; `address` gives it back."""
    return Path(re.sub(r"^file:/+", "/", text))


def address(path: Path) -> str | None:
    """The address that a path stands for; None for a file of this machine."""
    text = str(path)
    return ADDRESS.sub(r"\1://", text) if ADDRESS.match(text) else None


def show(path: Path) -> str:
    """The path as the user wrote it."""
    return address(path) or str(path)


def exists(path: Path) -> bool:
    """Whether there is a file."""
    if address(path) is None:
        return path.is_file()
    system, name = _open_system(path)
    with _telling(path):
        return bool(system.isfile(name))


def remove(path: Path) -> None:
    """Remove a file if there is one."""
    if address(path) is None:
        path.unlink(missing_ok=True)
    elif exists(path):
        system, name = _open_system(path)
        with _telling(path):
            system.rm_file(name)


def names_in(folder: Path) -> list[str]:
    """Names of the files of a folder, sorted; none if it does not exist."""
    if address(folder) is None:
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    system, name = _open_system(folder)
    with _telling(folder):
        found = system.ls(name, detail=False) if system.exists(name) else []
        return sorted(str(one).rstrip("/").rpartition("/")[2] for one in found)


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """Open a file for reading."""
    if address(path) is None:
        with find_file(path).open("rb") as file:
            yield file
        return
    system, name = _open_system(path)
    with _telling(path), system.open(name, "rb") as file:
        yield file


def fetch(path: Path, folder: Path) -> Path:
    """A file of this machine with the same contents, in the folder if it is a copy."""
    if address(path) is None:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / path.name
    system, name = _open_system(path)
    with _telling(path):
        system.get_file(name, str(copy))
    return copy


def create_folder(out: Path) -> None:
    """Create the folder of the results, unless it exists."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"--out {out} cannot be created ({error.strerror}); choose another folder"
        ) from error


@contextmanager
def write_whole(path: Path, scratch: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears when it is complete, or not at all.

    At an address, a file of `scratch` is uploaded as one object in the end.
    """
    if address(path) is None:
        create_folder(path.parent)
        with atomic_write(path) as file:
            yield file
        return
    part = scratch / path.name
    with part.open("wb") as file:
        yield file
    system, name = _open_system(path)
    with _telling(path):
        system.makedirs(name.rpartition("/")[0], exist_ok=True)
        system.put_file(str(part), name)
    part.unlink()


def _open_system(path: Path) -> tuple[Any, str]:
    core = need("fsspec.core", "ray", f"reading and writing {show(path)}")
    try:
        system, name = core.url_to_fs(show(path))
    except (ImportError, ValueError) as error:  # a package for it is missing, or it is unknown
        raise ValueError(f"{show(path)} cannot be reached: {error}") from error
    return system, name


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Name the address in whatever a file system raises."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {show(path)}; check its name") from error
    except (ValueError, ModuleNotFoundError):
        raise
    except Exception as error:  # each file system has errors of its own
        raise OSError(f"{show(path)} cannot be reached: {error}") from error
