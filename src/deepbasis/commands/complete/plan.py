# SPDX-License-Identifier: Apache-2.0
"""Which files a run writes, decided before anything is written, and which are up to date."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import deepbasis
from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.inputs import Frame, find_scales
from deepbasis.conformal import FEWEST_GROUPS, ConformalTable
from deepbasis.data.files import find_file

# Settings that change what is printed or where, but not the results; of the model, its contents
# count.
NOT_RESULTS = (
    "images", "out", "model", "quiet", "json", "device", "save_calibration", "out_bag", "rerun",
    "ray", "workers", "shard_frames",
)  # fmt: skip
# End of the name of the file of held-out points.
CHECK = "-check.npy"


def check_tables(settings: Complete, frames: Sequence[Frame]) -> None:
    """Refuse a conformal table that cannot be read, or will not be written, before the work."""
    if settings.calibration is not None:
        ConformalTable.load(settings.calibration)
    if (path := settings.save_calibration) is None:
        return
    if path.suffix.lower() != ".json":
        raise ValueError(f"--save-calibration {path} must end in .json, the format of the table")
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"--save-calibration {path} cannot be written: {folder} is not a folder, or is "
            "read-only; choose another file"
        )
    if path.exists():
        _check_is_table(path)
    if (count := sum(frame.has_points for frame in frames)) < FEWEST_GROUPS:
        hint = "" if count else "; pass them with --sparse"
        raise ValueError(
            f"--save-calibration needs {FEWEST_GROUPS} frames with points or more, and there are "
            f"{count}{hint}"
        )


def _check_is_table(path: Path) -> None:
    """Refuse to replace a file that is not a conformal table."""
    try:
        ConformalTable.load(path)
    except (ValueError, OSError):
        raise ValueError(
            f"--save-calibration {path} exists and is not a conformal table, so it is not "
            "replaced; choose another file"
        ) from None


@dataclass(frozen=True)
class Planned:
    """A frame, the files that it is written to, and all that its results depend on."""

    frame: Frame
    files: dict[str, Path]
    made_from: dict[str, Any]

    @property
    def summary(self) -> Path:
        """The file that is written last."""
        return self.files["json"]

    def read_summary(self) -> dict[str, Any] | None:
        """The summary of an earlier run, if the frame is up to date: made from the same contents of
        all inputs, the same model, version and settings, and all files are there.
        """
        try:
            found = json.loads(self.summary.read_text())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("made_from") != self.made_from:
            return None
        return found if all(path.is_file() for path in self.files.values()) else None


def plan(frames: Sequence[Frame], settings: Complete, model: Path) -> list[Planned]:
    """Name all files, and find out what the results depend on."""
    named = name_all(frames, settings)
    results = {k: v for k, v in asdict(settings).items() if k not in NOT_RESULTS}
    common: dict[str, Any] = {
        "version": deepbasis.__version__,
        "model": str(model) if str(model).startswith("hf:") else digest(find_file(model)),
        "settings": json.loads(json.dumps(results, default=str)),
    }
    common |= {role: digest(path) for role, path in _shared_inputs(settings).items()}
    planned = []
    before = ""  # of all frames before, on which a frame of a sequence depends
    for frame, files in zip(frames, named, strict=True):
        contents = {role: digest(path) for role, path in _inputs(frame).items()}
        made_from = common | {"inputs": contents}
        if settings.sequence:
            made_from["before"] = before
            before = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
        planned.append(Planned(frame, files, made_from))
    return planned


def name_all(frames: Sequence[Frame], settings: Complete) -> list[dict[str, Path]]:
    """Files of all frames; two of one name, and any that would replace an input, are refused."""
    _check_folder(settings.out)
    folders = [path for path in settings.images if path.is_dir()]
    if any(os.path.realpath(path) == os.path.realpath(settings.out) for path in folders):
        raise ValueError(
            f"--out {settings.out} is the folder of the images, where results would be taken for "
            "images the next time; choose another folder"
        )
    inputs = {os.path.realpath(path) for path in _shared_inputs(settings).values()}
    inputs |= {os.path.realpath(path) for frame in frames for path in _inputs(frame).values()}
    owner: dict[Path, Frame] = {}
    named = [name_files(frame.name, settings) for frame in frames]
    table = settings.save_calibration and os.path.realpath(settings.save_calibration)
    for frame, files in zip(frames, named, strict=True):
        for path in files.values():
            if os.path.realpath(path) == table:
                raise ValueError(
                    f"--save-calibration {settings.save_calibration} is the name of a result of "
                    f"the frame {frame.name}; choose another file"
                )
            if os.path.realpath(path) in inputs:
                raise ValueError(
                    f"--out {settings.out} holds {path.name}, an input that results would replace; "
                    "choose another folder"
                )
            if path in owner:
                raise ValueError(
                    f"the results of {owner[path].image} and {frame.image} would both be called "
                    f"{path.name}; rename one of the images"
                )
            owner[path] = frame
    return named


def name_files(name: str, settings: Complete) -> dict[str, Path]:
    """Files of a frame, by what they hold."""
    kinds = ["depth", "std"]
    for level in settings.interval:
        kinds += [f"low{100 * level:g}", f"high{100 * level:g}"]
    files = {f"{kind}.{end}": f"{name}-{kind}.{end}" for kind in kinds for end in ("npy", "png")}
    files |= {"cloud": f"{name}.ply"} if settings.cloud else {}
    files |= {"exr": f"{name}.exr"} if settings.exr else {}
    files |= {"figure": f"{name}.png"} if settings.figure else {}
    files |= {"check": name + CHECK} if settings.checks else {}
    files["json"] = f"{name}.json"
    return {kind: settings.out / file for kind, file in files.items()}


def digest(path: Path) -> str | None:
    """Of the contents of a file; None if it cannot be read, which its reader reports later."""
    try:
        status = path.stat()
        return _digest(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return None


@lru_cache(maxsize=1024)  # a camera is shared by many frames, an image is not
def _digest(path: Path, written: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shared_inputs(settings: Complete) -> dict[str, Path]:
    """All files that the results of every frame depend on, by their role."""
    roles = ("intrinsics", "extrinsics", "trajectory", "poses", "calibration")
    paths: dict[str, Path | None] = {role: getattr(settings, role) for role in roles}
    return {role: path for role, path in paths.items() if path is not None and not path.is_dir()}


def _inputs(frame: Frame) -> dict[str, Path]:
    """All files that the results of a frame depend on, by their role."""
    files = {name: path for name, path in frame._asdict().items() if isinstance(path, Path)}
    for role in ("sparse", "ground_truth"):
        if role in files and (scales := find_scales(files[role])):
            files[f"{role} scale"] = scales[0]
    if frame.recording is not None:
        files.pop("image")  # one of these, or the recording itself
        # Image and depth are often called the same, in two folders.
        recorded = enumerate(frame.recording.files(frame.name))
        files |= {f"recording {number} {path.name}": path for number, path in recorded}
    return files


def _check_folder(out: Path) -> None:
    above = (out, *out.absolute().parents)
    if dangling := [path for path in above if path.is_symlink() and not path.exists()]:
        raise ValueError(
            f"--out {out}: {dangling[0]} is a symbolic link to nowhere; choose another folder"
        )
    there = next(path for path in above if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        kind = "cannot be written to" if there.is_dir() else "is a file"
        raise ValueError(f"--out {out}: {there} {kind}; choose another folder")
