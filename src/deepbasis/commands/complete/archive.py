# SPDX-License-Identifier: Apache-2.0
"""Archives: frames completed in groups, here or by the workers of Ray, each group exactly once.

Frames are sorted by name and cut into groups, so what a group holds depends on the list alone. Its
results depend on its frames and the settings alone, and its shard is written as a whole: whatever
is killed, and wherever the work is done again, the files are the same.
"""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import deepbasis
from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.attempts import Attempts
from deepbasis.commands.complete.inputs import Frame, find_frames
from deepbasis.commands.complete.manifest import FILES, list_frames
from deepbasis.commands.complete.plan import Planned, check_tables, digest, name_all, plan
from deepbasis.commands.complete.run import (
    Computed,
    Failed,
    complete_all,
    finish,
    make_bar,
    of_frames,
    open_model,
    save_table,
    state_together,
)
from deepbasis.commands.complete.shards import (
    pack_check,
    read_shard,
    to_row,
    unpack_check,
    write_shard,
)
from deepbasis.commands.complete.storage import (
    address,
    exists,
    fetch,
    names_in,
    open_file,
    remove,
    show,
    write_whole,
)
from deepbasis.data.extras import need
from deepbasis.data.files import remove_abandoned
from deepbasis.model import Completer, find_model
from deepbasis.self_check import Check

R = TypeVar("R")

# Frames of a group whose results are files of their own.
GROUP = 16
# Frames whose held-out points are judged together; more would not fit into memory.
MOST_CHECKED = 2000
# A frame is set aside when this many workers ended while it was the only one they worked on.
MOST_LOST = 2
# Failures that are printed; all are in the report.
LISTED = 20
# Seconds between two lines of progress where there is no terminal.
TELL_EVERY = 30.0
REPORT = "_archive.json"


@dataclass(frozen=True)
class Task:
    """A group of frames, which one worker completes."""

    number: int
    total: int
    frames: tuple[Frame, ...]
    """Sorted by name."""
    recorded: bool = False
    """Whether they are those of a recording, which each worker opens by itself."""
    checked: frozenset[str] = frozenset()
    """Frames whose held-out points are wanted."""

    def shard(self, out: Path) -> Path:
        """The file that holds the results."""
        return out / f"shard-{self.number:06d}-of-{self.total:06d}.parquet"


@dataclass
class GroupReport:
    """Report of a group; it consists of sums, so that those of all groups can be added."""

    number: int
    frames: int
    already: int = 0
    """Frames that were up to date."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why frames were set aside, by name."""
    points: int = 0
    outliers: int = 0
    median_std: float = 0.0
    """Sum over the frames."""
    warned: int = 0
    """Frames with warnings."""
    verdicts: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    """Frames with a ground truth; the next two are sums over them."""
    mae: float = 0.0
    coverage90: float = 0.0
    checks: list[bytes] = field(default_factory=list)
    lacks_option: bool = False
    """Whether all frames probably fail for the same reason."""

    def add(self, summary: dict[str, Any]) -> None:
        """Count a frame that was completed."""
        self.points += summary["points"]
        self.outliers += summary["outliers"]
        self.median_std += summary["median_std"]
        self.warned += bool(summary["warnings"])
        if summary["check"]:
            self.verdicts[summary["check"]["verdict"]] += 1
        if truth := summary["ground_truth"]:
            self.compared += 1
            self.mae += truth["mae"]
            self.coverage90 += truth["coverage90"]


class Workbench:
    """One worker's means: the settings and, once it is needed, the model."""

    def __init__(self, settings: Complete, attempts: Any = None) -> None:
        self.settings = settings
        self.attempts: Attempts = attempts or Attempts()
        self.model: Completer | None = None
        self.recorded: dict[str, Frame] = {}

    def complete(self, task: Task) -> GroupReport:
        """Complete a group, or what is left of it."""
        lost = self.attempts.begin(task.number)
        with TemporaryDirectory(prefix="deepbasis-") as scratch:
            group = Group(self, task, Path(scratch), lost)
            report = group.run_shard() if self.settings.shard_frames else group.run_files()
        self.attempts.end(task.number)
        return report

    def get_model(self) -> Completer:
        """The model, opened once."""
        self.model = self.model or open_model(self.settings)
        return self.model

    def find(self, task: Task) -> Sequence[Frame]:
        """The frames of a group, with their recording."""
        if not task.recorded:
            return task.frames
        if not self.recorded:
            found = find_frames(replace(self.settings, quiet=True))
            self.recorded = {one.name: one for one in found}
        return [self.recorded[frame.name] for frame in task.frames]


class Group:
    """The work on one group."""

    def __init__(
        self, bench: Workbench, task: Task, scratch: Path, lost: dict[str, int] | None
    ) -> None:
        self.bench, self.task, self.lost, self.scratch = bench, task, lost, scratch
        self.report = GroupReport(task.number, len(task.frames))
        frames = [self.localise(frame) for frame in bench.find(task)]
        settings = bench.settings
        if settings.shard_frames:
            settings = replace(settings, out=scratch / "out")
        self.settings = settings
        self.planned = plan(frames, settings, find_model(settings.chosen_model))

    def localise(self, frame: Frame) -> Frame:
        """The frame with local copies of remote files; a file that cannot be copied is reported."""
        if frame.recording is not None:
            return frame
        try:
            files: dict[str, Any] = {
                role: fetch(path, self.scratch / "in" / frame.name / role)
                for role in FILES
                if (path := getattr(frame, role)) is not None
            }
        except (OSError, ValueError) as error:
            return frame._replace(missing=str(error))
        return frame._replace(**files, shown=show(frame.image))

    def run_files(self) -> GroupReport:
        """Write the files of each frame, as without groups."""
        left = []
        for one in self.planned:
            if (summary := one.read_summary()) is None:
                left.append(one)
            else:
                self.report.already += 1
                self.count(one, summary)
        for one, found in self.each(left, finish):
            if isinstance(found, Failed):
                self.fail(found)
            else:
                self.count(one, found)
        return self.report

    def count(self, one: Planned, summary: dict[str, Any]) -> None:
        """Count a frame whose files are written."""
        self.report.add(summary)
        if one.frame.name in self.task.checked:
            self.report.checks.append(pack_check(Check.read(one.files["check"])))

    def run_shard(self) -> GroupReport:
        """Write the shard, unless it is there and nothing has changed."""
        path = self.task.shard(self.bench.settings.out)
        keys = {one.frame.name: made_from(one) for one in self.planned}
        done = self.up_to_date(path, keys, maps=False)
        if len(done) < len(self.planned) and done:  # their maps may be damaged
            done = self.up_to_date(path, keys, maps=True)
        left = [one for one in self.planned if one.frame.name not in done]
        self.report.already = len(done)
        if not left:
            for row in done.values():
                self.count_row(row)
            return self.report
        maps = ["depth", "std"]
        for level in self.settings.interval:
            maps += [f"low{100 * level:g}", f"high{100 * level:g}"]
        with write_whole(path, self.scratch) as file:
            write_shard(file, self.rows(left, done, keys), maps)
        return self.report

    def up_to_date(self, path: Path, keys: dict[str, str], maps: bool) -> dict[str, dict[str, Any]]:
        """Rows of an earlier shard that need not be made again."""
        if not exists(path):
            return {}
        try:
            with open_file(path) as file:
                rows = read_shard(file, maps)
        except Exception as error:  # Arrow's own, whatever is wrong with the file
            need("pyarrow", "ray", "reading shards")
            print(f"warning: {show(path)} is written again: {error}", file=sys.stderr)
            return {}
        return {
            row["name"]: row
            for row in rows
            if row["error"] is None and keys.get(row["name"]) == row["made_from"]
        }

    def rows(
        self, left: list[Planned], done: dict[str, dict[str, Any]], keys: dict[str, str]
    ) -> Iterator[dict[str, Any]]:
        """All rows of the shard, in order."""

        def to_result(step: Computed | Failed, settings: Complete) -> dict[str, Any] | Failed:
            if isinstance(step, Failed):
                return step
            return to_row(step, keys[step.planned.frame.name], settings)

        with closing(self.each(left, to_result)) as made:
            for one in self.planned:
                name = one.frame.name
                found = done[name] if name in done else next(made)[1]
                if isinstance(found, Failed):
                    self.fail(found)
                    yield {
                        "name": name,
                        "image": one.frame.shown or show(one.frame.image),
                        "error": self.report.failed[name],
                        "made_from": keys[name],
                    }
                else:
                    self.count_row(found)
                    yield found

    def count_row(self, row: dict[str, Any]) -> None:
        """Count a frame of the shard."""
        self.report.add(json.loads(row["summary"]))
        if row["name"] in self.task.checked:
            self.report.checks.append(row["check"])

    def fail(self, failed: Failed) -> None:
        """Set a frame aside."""
        reason = failed.message
        for path in sorted(self.scratch.rglob("in/*/*/*")):
            name, role = path.parts[-3:-1]
            if name == failed.planned.frame.name:  # the user knows the original, not the copy
                original = next(frame for frame in self.task.frames if frame.name == name)
                reason = reason.replace(str(path), show(getattr(original, role)))
        self.report.failed[failed.planned.frame.name] = reason
        self.report.lacks_option |= failed.lacks_option

    def each(
        self, left: list[Planned], finish: Callable[[Computed | Failed, Complete], R]
    ) -> Generator[tuple[Planned, R | Failed]]:
        """Complete frames in order; one by one if a worker has ended in this group before."""
        if self.lost is None:
            yield from complete_all(left, self.settings, self.bench.get_model, finish)
            return
        for one in left:
            name = one.frame.name
            if self.lost.get(name, 0) >= MOST_LOST:
                reason = f"{MOST_LOST} workers died while completing it (out of memory?)"
                yield one, Failed(one, reason)
                continue
            self.bench.attempts.work_on(self.task.number, name)
            yield from complete_all([one], self.settings, self.bench.get_model, finish)
            self.bench.attempts.work_on(self.task.number, None)


def made_from(planned: Planned) -> str:
    """Digest of all that a row depends on: inputs, model, version, settings."""
    content = json.dumps([planned.frame.name, planned.made_from], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def assign(frames: Sequence[Frame], size: int, checked: bool = False) -> list[Task]:
    """Cut the sorted frames into groups; the points of some, evenly spread, are judged together."""
    step = -(-len(frames) // MOST_CHECKED)
    chosen = {frame.name for frame in frames[::step]} if checked else set()
    starts = range(0, len(frames), size)
    tasks = []
    for number, start in enumerate(starts):
        group = frames[start : start + size]
        names = frozenset(frame.name for frame in group)
        sent = tuple(one._replace(recording=None) for one in group)
        recorded = any(one.recording is not None for one in group)
        tasks.append(Task(number, len(starts), sent, recorded, names & chosen))
    return tasks


def run_archive(
    settings: Complete, work: Callable[[list[Task], Complete], Generator[GroupReport]]
) -> None:
    """Complete all frames in groups, here or elsewhere, and write and print the report of all.

    A frame that cannot be completed is set aside and named at the end, and the exit code is 1.
    """
    settings = replace(settings, model=settings.chosen_model)
    if settings.shard_frames:
        need("pyarrow.parquet", "ray", "writing shards")
        settings = replace(settings, figure=False)
    frames = list_frames(settings)
    check_tables(settings, frames)
    tasks = assign(frames, settings.shard_frames or GROUP, settings.checks)
    check_out(frames, tasks, settings)
    remove(settings.out / REPORT)  # it would describe what this run replaces
    reports: dict[int, GroupReport] = {}
    with closing(work(tasks, settings)) as results:
        for report in follow(results, len(frames), settings):
            reports[report.number] = report
            if report.lacks_option and all(r.frames == len(r.failed) for r in reports.values()):
                raise ValueError(next(iter(report.failed.values())))
    conclude([reports[task.number] for task in tasks], settings)


def check_out(frames: list[Frame], tasks: list[Task], settings: Complete) -> None:
    """Refuse a place where results cannot be written, or would be mixed with others."""
    out = settings.out
    if address(out) is None:
        name_all([] if settings.shard_frames else frames, settings)
    elif not settings.shard_frames:
        raise ValueError(f"--out {show(out)} is not on this machine: pass --shard-frames")
    if not settings.shard_frames and any(f"{frame.name}.json" == REPORT for frame in frames):
        raise ValueError(f"the frame {Path(REPORT).stem!r} has the name of the report; rename it")
    if settings.shard_frames:
        own = {task.shard(out).name for task in tasks}
        others = [name for name in names_in(out) if name.startswith("shard-") and name not in own]
        if others:
            raise ValueError(
                f"--out {show(out)} holds shards of another list of frames ({others[0]}), and this "
                f"one has {len(tasks)} shards; choose another folder"
            )
        if address(out) is None:
            remove_abandoned([task.shard(out) for task in tasks])


def complete_here(tasks: list[Task], settings: Complete) -> Generator[GroupReport]:
    """Complete all groups in this process."""
    bench = Workbench(settings)
    yield from map(bench.complete, tasks)


def follow(
    results: Iterable[GroupReport], frames: int, settings: Complete
) -> Iterator[GroupReport]:
    """Show progress and the time left: a bar, or a line now and then where there is no terminal."""
    begun = told = time.monotonic()
    done = made = failed = 0
    with make_bar(frames, settings) as bar:
        for report in results:
            done += report.frames
            made += report.frames - report.already
            failed += len(report.failed)
            bar.advance(bar.task_ids[0], report.frames)
            now = time.monotonic()
            if bar.disable and now - told > TELL_EVERY and done < frames:
                told = now
                left = (frames - done) * (now - begun) / max(made, 1)
                settings.say(f"{done} of {frames} frames, {failed} failed; {_duration(left)} left")
            yield report


def conclude(reports: list[GroupReport], settings: Complete) -> None:
    """Add the reports of all groups, write and print the sum; exit code 1 if frames failed."""
    report = merge(reports, settings)
    if settings.checks and (parts := [unpack_check(c) for one in reports for c in one.checks]):
        joined = replace(Check.join(parts), widened=settings.rescale)
        report["check"]["statement"] = joined.statement
        if settings.save_calibration is not None:
            save_table(joined, settings.save_calibration)
    with (
        TemporaryDirectory(prefix="deepbasis-") as scratch,
        write_whole(settings.out / REPORT, Path(scratch)) as file,
    ):
        file.write(json.dumps(report, indent=1, allow_nan=False).encode())
    already = sum(one.already for one in reports)
    if already:
        were = "was" if already == 1 else "were"
        settings.say(f"{of_frames(already, report['frames'])} {were} done already")
    settings.say(describe(report))
    if settings.checks and (wrong := report["check"]["verdicts"].get("contradicted")):
        checked = of_frames(wrong, report["completed"])
        print(f"warning: {checked} contradicted; see `check` in their summaries", file=sys.stderr)
    settings.say(f"the report is {show(settings.out / REPORT)}")
    if failed := report["failed"]:
        for one in failed[:LISTED]:
            print(f"deepbasis: {one['name']} failed: {one['error']}", file=sys.stderr)
        more = f"; {len(failed) - LISTED} more are in {REPORT}" if len(failed) > LISTED else ""
        print(
            f"deepbasis: {of_frames(len(failed), report['frames'])} failed{more}; the same command "
            "tries them again",
            file=sys.stderr,
        )
        sys.exit(1)


def merge(reports: list[GroupReport], settings: Complete) -> dict[str, Any]:
    """One report of all groups; it holds no time, so that the same results give the same report."""
    frames = sum(one.frames for one in reports)
    failed = [
        {"name": name, "error": error} for one in reports for name, error in one.failed.items()
    ]
    completed, compared = frames - len(failed), sum(one.compared for one in reports)
    verdicts = sum((one.verdicts for one in reports), Counter[str]())
    model = find_model(settings.chosen_model)
    return {
        "version": deepbasis.__version__,
        "model": settings.chosen_model,
        "model_digest": digest(model),
        "frames": frames,
        "completed": completed,
        "failed": failed,
        "shards": len(reports) if settings.shard_frames else None,
        "points": sum(one.points for one in reports),
        "outliers": sum(one.outliers for one in reports),
        "frames_with_warnings": sum(one.warned for one in reports),
        "mean_median_std": _ratio(sum(one.median_std for one in reports), completed),
        "check": {"verdicts": dict(sorted(verdicts.items()))} if settings.checks else None,
        "ground_truth": {
            "frames": compared,
            "mae": _ratio(sum(one.mae for one in reports), compared),
            "coverage90": _ratio(sum(one.coverage90 for one in reports), compared),
        }
        if compared
        else None,
    }


def describe(report: dict[str, Any]) -> str:
    """The report in sentences."""
    lines = [f"{of_frames(report['completed'], report['frames'])} completed"]
    if report["completed"]:
        wrong = report["outliers"]
        lines[0] += (
            f": {report['points'] / report['completed']:.4g} points used a frame, "
            f"{wrong} wrong point{'s' * (wrong != 1)} in all, "
            f"mean of the median std {report['mean_median_std']:.3g} m"
        )
    if warned := report["frames_with_warnings"]:
        lines.append(f"{warned} frames have warnings, see their summaries")
    if truth := report["ground_truth"]:
        lines.append(
            f"MAE {truth['mae']:.3f} m, coverage of the 90% interval {truth['coverage90']:.1%} "
            f"(means of {truth['frames']} frames)"
        )
    if (found := report["check"]) and "statement" in found:
        verdicts = [name for name, count in found["verdicts"].items() for _ in range(count)]
        lines.append(f"check: {state_together(verdicts, found['statement'])}")
    return "\n".join(lines)


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
