# SPDX-License-Identifier: Apache-2.0
"""KITTI's test frames completed by a model, in the file that the benchmark's server takes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

from deepbasis import latent
from deepbasis.data.files import find_folder
from deepbasis.data.formats import KITTI, LARGEST
from deepbasis.data.kitti import SIZE, Kitti
from deepbasis.data.sample import Frames
from deepbasis.evaluation import Method, model_method
from deepbasis.shapes import Float
from deepbasis_paper.data.submission import (
    FRAMES,
    check_submission,
    submission_name,
    write_submission,
)
from deepbasis_paper.model import load

# All that 16 bits hold, in metres; 0 would mean that there is no depth.
NEAREST, FARTHEST = 1 / KITTI, LARGEST / KITTI


def check_or_run(model: str | None, root: Path | None, out: Path, check: Path | None) -> None:
    """Check a file that is there, or write one."""
    if check is None and model is not None and root is not None:
        run(model, root, out)
    elif check is not None and model is None and root is None:
        check_submission(check)
        print(f"{check} has the format of the benchmark")
    elif check is not None:
        raise ValueError("--check looks at a file that is there: it takes no model or --root")
    else:
        raise ValueError("a submission needs a model and --root, the folder of KITTI; or --check")


def run(
    model: str, root: Path, out: Path, expected: int = FRAMES, size: tuple[int, int] = SIZE
) -> None:
    """Complete the test frames and write them: all of them and checked, or nothing."""
    if out.suffix != ".zip":
        raise ValueError(f"--out {out} does not end in .zip; name a zip file")
    find_folder(out.parent, "make it first")
    frames = Kitti(root, "test", halve=False)
    check_frames(frames, expected)
    clamped: list[int] = []
    depths = complete(model_method(load(model)), frames, clamped)
    quiet = not sys.stdout.isatty()
    shown = track(depths, "completing", expected, transient=True, disable=quiet)
    write_submission(out, shown, expected, size)
    print(f"{expected} depth maps in {out}, in the format of the benchmark")
    if sum(clamped):
        print(f"{sum(clamped)} pixels lay outside {NEAREST:.3f} to {FARTHEST:.3f} m: clamped")


def check_frames(frames: Frames, expected: int) -> None:
    """Refuse a test set that is not the benchmark's, before hours are spent on it."""
    found = [f"{frames.name(index)}.png" for index in range(len(frames))]
    names = [submission_name(index) for index in range(expected)]
    if found != names:
        raise ValueError(
            f"there are {len(found)} test frames, {found[0]} to {found[-1]}, but the benchmark has "
            f"{expected}, {names[0]} to {names[-1]}; unpack data_depth_selection.zip again"
        )


def complete(
    method: Method, frames: Frames, clamped: list[int]
) -> Iterator[Float[np.ndarray, "h w"]]:
    """Depth of one frame after the other, and how many of its pixels 16 bits would not hold."""
    for index in range(len(frames)):
        sample = frames[index]
        depth = latent.to_depth(method(sample.image, sample.sparse).mean).numpy()
        held = np.clip(depth, NEAREST, FARTHEST)
        clamped.append(int((held != depth).sum()))
        yield held
