# SPDX-License-Identifier: Apache-2.0
"""Files of the user, on their way through readers that take paths."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepbasis.data.formats import tell_scale

# Longest name of a file that is kept.
LONGEST_NAME = 80
# Files of a sequence, and what they can be.
MOST_FILES = 1000
ROLES = ("frames", "points", "truth", "camera")
# What readers and models say of the command line, in the words of the page.
WORDS = {
    **dict.fromkeys(
        map(tell_scale, ("--depth-scale", "--ground-truth-scale")),
        "set the depth scale beside the list of points",
    ),
    "pass --intrinsics": "drop its camera file first, or type fx, fy, cx and cy",
    "--depth-scale": "the depth scale",
    "choose another model (`deepbasis models`), or adapt one (`deepbasis adapt`)": (
        "or choose another model"
    ),
}


@dataclass(frozen=True)
class Uploads:
    """Where files are kept while they are read, and how large they may be."""

    root: Path
    """The only folder that anything is written to."""
    max_bytes: int
    max_pixels: int

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder of its own, which is removed afterwards.

        Messages of errors name files as the user does, not where they were kept.
        """
        with self.kept_folder() as place, speaking_of(place):
            yield Path(place)

    def kept_folder(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for files that are read again and again, until it is cleaned up."""
        return tempfile.TemporaryDirectory(dir=self.root, prefix="page-")

    def unpack(self, folder: Path, listed: object, content: bytes) -> None:
        """Write files that came in one message, each into the folder of its role.

        Args:
            folder: to write to.
            listed: role, name and bytes of each file, as the page lists them.
            content: the files, one after the other.
        """
        if len(content) > self.max_bytes:
            raise ValueError(
                f"the files have {len(content) / 1e6:.1f} MB together, more than the limit of "
                f"{self.max_bytes / 1e6:g} MB; drop fewer frames"
            )
        if not isinstance(listed, list) or not listed:
            raise ValueError("the request lists no files")
        if len(listed) > MOST_FILES:
            raise ValueError(f"{len(listed)} files are more than the page allows, {MOST_FILES}")
        at = 0
        for entry in listed:
            if not _is_entry(entry):
                raise ValueError("the request lists files without role, name and size")
            role, name, size = entry
            if not size:
                raise ValueError(f"{harmless(name)} is empty")
            path = folder / role / harmless(name)
            if path.exists():
                raise ValueError(f"there are two files called {path.name}; rename one of them")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content[at : at + size])
            at += size
        if at != len(content):
            raise ValueError("the files have other sizes than the request says")

    @contextmanager
    def stored(self, name: str, content: bytes) -> Iterator[Path]:
        """A file of the user, under a harmless name."""
        if not content:
            raise ValueError(f"{harmless(name)} is empty")
        if len(content) > self.max_bytes:
            raise ValueError(
                f"{harmless(name)} has {len(content) / 1e6:.1f} MB, more than the limit of "
                f"{self.max_bytes / 1e6:g} MB"
            )
        with self.folder() as folder:
            path = folder / harmless(name)
            path.write_bytes(content)
            yield path

    def check_pixels(self, name: str, size: tuple[int, int]) -> None:
        """Refuse an image that is too large for many pages at once."""
        if size[0] * size[1] > self.max_pixels:
            raise ValueError(
                f"{name} has {size[0] * size[1] / 1e6:.1f} million pixels, more than the limit of "
                f"{self.max_pixels / 1e6:g} million; reduce it, or use `deepbasis complete`"
            )


@contextmanager
def speaking_of(folder: str) -> Iterator[None]:
    """Messages of errors name files in this folder as the user does."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError(in_words_of_the_page(str(error), folder)) from error


def harmless(name: str) -> str:
    """The last part of a name, in letters, digits and a few signs, with its suffix."""
    last = re.split(r"[/\\]", name)[-1]
    clean = re.sub(r"[^\w.() -]", "_", last).strip(". ")
    stem, dot, suffix = clean.rpartition(".")
    if not dot:
        stem, suffix = clean, ""
    short = _cut(stem or "file", LONGEST_NAME - 10)
    return f"{short}.{_cut(suffix, 9)}" if suffix else short


def _cut(text: str, most: int) -> str:
    """The beginning of a text: file systems count the bytes of a name."""
    return text.encode()[:most].decode(errors="ignore")


def in_words_of_the_page(text: str, place: str) -> str:
    """A message of a reader, without the folder of the server and options of the command line."""
    text = re.sub(rf"{re.escape(place)}/(?:({'|'.join(ROLES)})/)?", "", text).replace(
        place, "the server's folder"
    )
    return without_commands(text)


def without_commands(text: str) -> str:
    """A message without options and commands of the command line."""
    for option, words in WORDS.items():
        text = text.replace(option, words)
    return text


def _is_entry(entry: object) -> bool:
    """Whether this is role, name and bytes of a file."""
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    role, name, size = entry
    known = role in ROLES and isinstance(name, str)
    return known and isinstance(size, int) and not isinstance(size, bool) and size >= 0
