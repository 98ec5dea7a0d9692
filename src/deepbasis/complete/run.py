# SPDX-License-Identifier: Apache-2.0
"""Completing many frames: one thread reads, one computes, one writes."""

import math
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.progress import track

from deepbasis.complete.check import Check, hold_back
from deepbasis.complete.config import Settings
from deepbasis.complete.inputs import Frame, Loaded, find_frames, load
from deepbasis.complete.outputs import is_done, write
from deepbasis.completion import Completion
from deepbasis.model import Completer
from deepbasis.model import load as load_model

T = TypeVar("T")
R = TypeVar("R")

# Frames that wait to be computed, or to be written, so that memory stays bounded.
WAITING = 2


def run(images: Sequence[Path], settings: Settings) -> None:
    """Complete images, or folders of them, and tell what was found."""
    frames = find_frames(images, settings)
    check_out(settings.out, frames)
    left = [frame for frame in frames if not is_done(frame, settings)]
    if len(left) < len(frames):
        print(f"{len(frames) - len(left)} of {len(frames)} are done already, and left as they are")
    if not left:
        return
    checks: list[Check] = []
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        loading = ahead(reader, lambda frame: load(frame, settings), left)
        model = open_model(settings)
        steps = compute(model, loading, settings, checks)
        written = ahead(writer, lambda step: write(*step, settings), steps)
        quiet = len(left) == 1 or not sys.stdout.isatty()
        shown = track(written, "completing", len(left), transient=True, disable=quiet)
        for frame, summary in zip(left, shown, strict=True):
            tell(frame, summary)
    if len(checks) > 1:
        print(f"all frames: {Check.join(checks).verdict}")
    print(f"depth, std and summaries are in {settings.out}")


def open_model(settings: Settings) -> Completer:
    """The model, on its device, set as the user wants it."""
    model = load_model(settings.model).assume(settings.errors, settings.variance, settings.huber)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {device} cannot be used here ({reason})") from error


def compute(
    model: Completer, loading: Iterable[Loaded], settings: Settings, checks: list[Check]
) -> Iterator[tuple[Loaded, Completion, Check | None]]:
    """Complete and, if wanted, check frame by frame."""
    cap = math.inf if settings.max_depth is None else settings.max_depth
    for loaded in loading:
        try:
            answer = model.complete(loaded.image, loaded.sparse, max_depth=cap)
        except ValueError as error:
            raise ValueError(f"{loaded.frame.sparse or loaded.frame.image}: {error}") from error
        check = None
        if settings.check or settings.rescale:
            check = hold_back(model, loaded.image, answer)
        if check is not None:
            checks.append(check)
        if settings.rescale and check is not None and check.factor is not None:
            answer = answer.rescale(check.factor)
        settings.out.mkdir(parents=True, exist_ok=True)
        yield loaded, answer, check


def ahead(pool: Executor, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Results in order, a few of them worked on before they are asked for."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > WAITING:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def check_out(out: Path, frames: Sequence[Frame]) -> None:
    """Refuse a folder that cannot be written to, or where results would replace an input."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        kind = "cannot be written to" if there.is_dir() else "is a file"
        raise ValueError(f"--out {out}: {there} {kind}; choose another folder")
    given = {path.resolve() for frame in frames for path in frame[1:] if isinstance(path, Path)}
    here = {path.name for path in given if path.parent == out.resolve()}
    for frame in frames:
        written = rf"{re.escape(frame.name)}(\.(png|json|ply)|-\w+\.(png|npy))"
        if lost := [name for name in here if re.fullmatch(written, name)]:
            raise ValueError(f"--out {out} holds {lost[0]}, an input that results could replace")


def tell(frame: Frame, summary: dict[str, Any]) -> None:
    """Print what was found in a frame; warnings go to the error stream."""
    dropped = "".join(f", {count} {why}" for why, count in summary["dropped"].items())
    noise = summary["noise_percent"]
    said = [f"{summary['points']} points used{dropped}"]
    said += [] if noise is None else [f"noise {noise:.1f} %"]
    if wrong := summary["outliers"]:
        said.append(f"{wrong} outlier{'s' * (wrong > 1)}")
    if truth := summary["truth"]:
        said.append(f"MAE {truth['mae']:.3f} m, 90% intervals hold {truth['coverage90']:.1%}")
    print(f"{frame.name}: {'; '.join(said)}")
    if summary["check"]:
        print(f"{frame.name}: {summary['check']['verdict']}")
    for warning in summary["warnings"]:
        print(f"deepbasis: {frame.name}: {warning}", file=sys.stderr)
