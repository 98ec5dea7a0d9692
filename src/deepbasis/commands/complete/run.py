# SPDX-License-Identifier: Apache-2.0
"""Completing many frames: one thread reads, one computes, one writes."""

import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.inputs import Loaded, find_frames, load
from deepbasis.commands.complete.outputs import write
from deepbasis.commands.complete.plan import Planned, check_tables, plan
from deepbasis.commands.complete.sinks import Sinks, open_sinks
from deepbasis.commands.complete.storage import create_folder
from deepbasis.conformal import ConformalTable
from deepbasis.data.files import remove_abandoned
from deepbasis.data.limits import MissingOption, in_memory
from deepbasis.model import Completer, find_model
from deepbasis.model import load as load_model
from deepbasis.result import Completion
from deepbasis.self_check import Check, check, check_frame
from deepbasis.stream import Stream

T = TypeVar("T")
R = TypeVar("R")

# Frames that wait to be computed, or to be written, so that memory stays bounded.
WAITING = 2
# Frames whose names are printed in one line.
NAMED = 10


class Failed(NamedTuple):
    """A frame that could not be completed, and why."""

    planned: Planned
    reason: str
    lacks_option: bool = False
    """Whether all frames probably fail for the same reason."""

    @property
    def message(self) -> str:
        """The reason, and whether files of an earlier run are still there."""
        if not any(path.is_file() for path in self.planned.files.values()):
            return self.reason
        out = self.planned.summary.parent
        return f"{self.reason}; results of an earlier run, which may be outdated, remain in {out}"


class Computed(NamedTuple):
    """A frame that is ready to be written."""

    planned: Planned
    loaded: Loaded
    answer: Completion
    check: Check | None


def run(settings: Complete) -> None:
    """Complete images, or folders of them, and print what was found.

    A frame that cannot be completed does not stop the others; it is named at the end, and the exit
    code is 1.
    """
    frames = find_frames(settings)
    check_tables(settings, frames)
    planned = plan(frames, settings, find_model(settings.chosen_model))
    remove_abandoned([path for one in planned for path in one.files.values()])
    summaries = {one.frame.name: one.read_summary() for one in planned}
    left = [one for one in planned if summaries[one.frame.name] is None]
    if settings.sequence and left:
        left, summaries = planned, dict.fromkeys(summaries)  # each frame needs those before it
    failed: list[Failed] = []
    warned: Counter[str] = Counter()
    tell_done(planned, summaries, settings, warned)
    with open_sinks(settings, () if left else planned) as sinks:
        waiting = deque(planned)  # for the sinks, which take frames in order
        # Closed at any end, so that the bar gives the terminal its cursor back.
        with closing(complete_with_bar(left, settings)) as results:
            for one, result in results:
                if isinstance(result, Failed):
                    failed.append(result)
                    if len(planned) == 1 or (result.lacks_option and not any(summaries.values())):
                        raise ValueError(result.message)
                else:
                    summaries[one.frame.name] = result
                    tell(one, result, settings, warned)
                add_up_to(one, waiting, sinks, summaries)
        add_up_to(None, waiting, sinks, summaries)
    done = [one for one in planned if summaries[one.frame.name] is not None]
    tell_repeated(warned)
    report_checks(done, summaries, settings)
    if done:
        places = [f"depth, std and summaries are in {settings.out}"] if left else []
        if places := places + sinks.places:
            settings.say("; ".join(places))
    if failed:
        report_failures(failed, len(planned), settings)


def tell_done(
    planned: Sequence[Planned],
    summaries: dict[str, dict[str, Any] | None],
    settings: Complete,
    warned: Counter[str],
) -> None:
    """Print which frames an earlier run has completed."""
    done = [(one, found) for one in planned if (found := summaries[one.frame.name]) is not None]
    if done:
        verb = "is" if len(done) == 1 else "are"
        settings.say(f"{of_frames(len(done), len(planned))} {verb} done already")
    for one, found in done if settings.json else []:
        tell(one, found, settings, warned)


def tell_repeated(warned: Counter[str]) -> None:
    """Print how many frames share a warning that was printed for the first of them only."""
    for warning, count in warned.items():
        if count > 1:
            more = "1 more frame" if count == 2 else f"{count - 1} more frames"
            print(f"warning: the same for {more}: {warning}", file=sys.stderr)


def of_frames(count: int, total: int) -> str:
    """As `2 of 3 frames`."""
    return f"{count} of {total} frame{'s' * (total != 1)}"


def add_up_to(
    last: Planned | None,
    waiting: deque[Planned],
    sinks: Sinks,
    summaries: dict[str, dict[str, Any] | None],
) -> None:
    """Give the sinks the frames that are done, up to this one, or all of them."""
    while waiting:
        one = waiting.popleft()
        if sinks and summaries[one.frame.name] is not None:
            sinks.add(one)
        if one is last:
            return


def report_checks(
    done: list[Planned], summaries: dict[str, dict[str, Any] | None], settings: Complete
) -> None:
    """Say what the checks of all frames find together, and save what they calibrate."""
    checks = [Check.read(one.files["check"]) for one in done if "check" in one.files]
    if len(checks) > 1:
        joined = replace(Check.join(checks), widened=settings.rescale)
        found = [(summaries[one.frame.name] or {})["check"]["verdict"] for one in done]
        settings.say(f"all {len(checks)} frames: {state_together(found, joined.statement)}")
        checked = zip(done, found, strict=True)
        if wrong := [one.frame.name for one, verdict in checked if verdict == "contradicted"]:
            more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
            settings.say(f"contradicted: {', '.join(wrong[:NAMED])}{more}")
    if settings.save_calibration is not None and checks:
        table = save_table(Check.join(checks), settings.save_calibration)
        settings.say(
            f"conformal table of {sum(table.scores)} points of {table.groups} frames: "
            f"{settings.save_calibration}"
        )


def save_table(joined: Check, path: Path) -> ConformalTable:
    """Save the conformal table of many frames, also if all but one have no held-out points."""
    table = ConformalTable.learn(joined.scores, joined.distance, joined.frame.astype(np.int64))
    table.save(path)
    return table


def state_together(verdicts: list[str], statement: str) -> str:
    """The joint statement, which does not hide contradictions of single frames."""
    if not (wrong := verdicts.count("contradicted")):
        return statement
    return (
        f"{wrong} contradicted; the average over all frames, which says nothing about a single "
        f"one: {statement}"
    )


def complete_with_bar(
    left: list[Planned], settings: Complete
) -> Generator[tuple[Planned, dict[str, Any] | Failed]]:
    """Read, compute and write frames; gives the summary of each, or why it failed."""
    if not left:
        return
    with (
        make_bar(len(left), settings) as bar,
        closing(complete_all(left, settings, lambda: open_model(settings), finish)) as results,
    ):
        for one, found in results:
            bar.advance(bar.task_ids[0])
            yield one, found


def complete_all(
    left: list[Planned],
    settings: Complete,
    get_model: Callable[[], Completer],
    finish: Callable[[Computed | Failed, Complete], R],
) -> Generator[tuple[Planned, R]]:
    """Read, compute and finish frames in order; one thread does each."""
    reader, writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    try:
        loading = ahead(reader, lambda one: try_load(one, settings), left)
        model = get_model()
        table = None if settings.calibration is None else ConformalTable.load(settings.calibration)
        steps = compute(model, zip(left, loading, strict=False), settings, table)
        written = ahead(writer, lambda step: finish(step, settings), steps)
        yield from zip(left, written, strict=True)
    finally:
        # Whoever presses Ctrl-C does not want to wait for frames that have not begun.
        for pool in (reader, writer):
            pool.shutdown(wait=False, cancel_futures=True)


def open_model(settings: Complete) -> Completer:
    """The model, on its device."""
    model = load_model(settings.chosen_model)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        if "device type at start of device string" in reason or "Invalid device" in reason:
            reason = "use cpu, cuda, or cuda:1 for the second GPU"
        raise ValueError(f"--device {device} cannot be used here ({reason})") from error


def try_load(one: Planned, settings: Complete) -> Loaded | Failed:
    """Read the files of a frame."""
    try:
        with in_memory(f"reading {one.frame.image}"):
            return load(one.frame, settings)
    except (ValueError, OSError) as error:
        return Failed(one, str(error), isinstance(error, MissingOption))


def compute(
    model: Completer,
    loading: Iterable[tuple[Planned, Loaded | Failed]],
    settings: Complete,
    table: ConformalTable | None,
) -> Iterator[Computed | Failed]:
    """Complete and, if asked for, check frame by frame."""
    stream: Stream | None = None
    for one, loaded in loading:
        if isinstance(loaded, Failed):
            yield loaded
            continue
        try:
            if settings.sequence and stream is None:
                stream = Stream(
                    model.network.fit,
                    settings.errors,
                    settings.robust,
                    settings.huber,
                    settings.max_depth,
                    loaded.camera,
                )
            yield complete_one(model, one, loaded, settings, table, stream)
        except ValueError as error:
            yield Failed(one, f"{one.frame.sparse or one.frame.image}: {error}")


def complete_one(
    model: Completer,
    one: Planned,
    loaded: Loaded,
    settings: Complete,
    table: ConformalTable | None,
    stream: Stream | None,
) -> Computed:
    """Complete and, if asked for, check a frame."""
    scene = model.prepare(loaded.image, loaded.camera)
    options: Any = {"errors": settings.errors, "robust": settings.robust, "huber": settings.huber}
    if stream is None:
        answer = scene.complete(loaded.points, max_depth=settings.max_depth, **options)
        found = check(scene, answer, **options) if settings.checks else None
    else:
        frame = scene, loaded.points, one.frame.pose, one.frame.name
        found = check_frame(stream, *frame) if settings.checks else None
        answer = stream.add(*frame)
    if settings.rescale:
        assert found is not None
        answer = answer.with_conformal(found.table())
        found = replace(found, widened=True)
    elif table is not None:
        answer = answer.with_conformal(table)
    return Computed(one, loaded, answer, found)


def finish(step: Computed | Failed, settings: Complete) -> dict[str, Any] | Failed:
    """Write a frame."""
    if isinstance(step, Failed):
        return step
    create_folder(settings.out)
    with in_memory(f"writing the results of {step.planned.frame.image}"):
        return write(step.planned, step.loaded, step.answer, step.check, settings)


def ahead(pool: Executor, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Results in order, a few of them worked on before they are asked for."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > WAITING:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def make_bar(frames: int, settings: Complete) -> Progress:
    """A bar on the error stream with the time left."""
    console = Console(stderr=True)
    hidden = frames == 1 or settings.quiet or not console.is_terminal
    bar = Progress(
        TextColumn("completing"), BarColumn(), MofNCompleteColumn(), TextColumn("left"),
        TimeRemainingColumn(), console=console, transient=True, disable=hidden,
        redirect_stdout=sys.stdout.isatty(),  # what is piped elsewhere must not come here
    )  # fmt: skip
    bar.add_task("", total=frames)
    return bar


def tell(one: Planned, summary: dict[str, Any], settings: Complete, warned: Counter[str]) -> None:
    """Print what was found in a frame; warnings go to the error stream, each text once."""
    if settings.json:
        print(json.dumps({"name": one.frame.name} | summary), flush=True)
        return
    name = one.frame.name
    dropped = "".join(f", {count} {why}" for why, count in summary["dropped"].items())
    used = summary["points"]
    said = [f"{used} point{'s' * (used != 1)} used{dropped}"]
    said.append(f"median std {summary['median_std']:.3g} m")
    if wrong := summary["outliers"]:
        left_out = " left out as wrong" if summary["left_out"] else " may be wrong"
        said.append(f"{wrong} point{'s' * (wrong > 1)}{left_out}")
    if truth := summary["ground_truth"]:
        said.append(
            f"MAE {truth['mae']:.3f} m, coverage of the 90% interval {truth['coverage90']:.1%}"
        )
    settings.say(f"{name}: {'; '.join(said)}")
    if found := summary["check"]:
        if found["verdict"] == "contradicted":
            print(f"warning: {name}: {found['statement']}", file=sys.stderr)
        else:
            settings.say(f"{name}: {found['statement']}")
    for warning in summary["warnings"]:
        warned[warning] += 1
        if warned[warning] == 1:
            print(f"warning: {name}: {warning}", file=sys.stderr)


def report_failures(failed: list[Failed], total: int, settings: Complete) -> None:
    """Name the frames that failed, and end with exit code 1."""
    for one in failed:
        if settings.json:
            print(json.dumps({"name": one.planned.frame.name, "error": one.message}), flush=True)
        print(f"deepbasis: {one.planned.frame.name} failed: {one.message}", file=sys.stderr)
    print(
        f"deepbasis: {of_frames(len(failed), total)} failed; the same command tries them again",
        file=sys.stderr,
    )
    sys.exit(1)
