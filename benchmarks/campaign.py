# SPDX-License-Identifier: Apache-2.0
"""Reliability in figures: invalid input, kill -9, threads, processes and many frames.

    python benchmarks/campaign.py --out docs/reliability

writes docs/reliability.md and docs/reliability.json; about 30 minutes on two idle cores. `--scale
0.01` is a trial; `--parts kill --keep` runs a part anew and keeps the figures of the others, and
`--parts ray --keep`, which takes minutes for a kill, adds a part that is not run by default. Each
part runs in a process of its own. The exit code is 1 if anything was seen but answers and clear
refusals, equal bytes and flat memory.
"""

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import platform
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Report = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "tests" / "fuzz" / "worker.py"
PACKAGES = ("deepbasis", "torch", "numpy", "pillow", "rosbags", "av", "laspy", "transformers")
# Of a whole campaign.
CASES, KILLS, FRAMES = 100_000, 50, 5_000
# Seconds of CPU time that a case may take; after which it is ended; and seconds without any CPU
# time after which it hangs.
MOST_SECONDS, LONGEST_CASE, MOST_WAITED = 20.0, 120.0, 120.0
# Memory in MB that a single case may take.
MOST_MEMORY = 300.0
# Frames after which memory is compared with that at the end, as a share of all frames, and how
# many MB it may grow.
EARLY, MOST_GROWTH = 0.1, 20.0
SIZE = (48, 64)
# What is killed, and what makes its input.
INPUTS = "render rooms --out . --count 4 --size 48 64 --seed 3"
COMPLETE = (
    "complete rgb --sparse points --intrinsics intrinsics --out out --cloud --exr --interval 0.9 "
    "--no-figure --device cpu --model open"
)
RENDER = "render rooms --out out --count 6 --size 48 64"
TRAIN = (
    "train --data rooms --frames 5 --size 32 48 --cache --val-frames 1 --fit-points 400 --batch 2 "
    "--workers 0 --accelerator cpu --epochs 2 --checkpoint-minutes 0 --few-points-weight 0 "
    "--embedding 0 --out out"
)
# Defects that the page lists.
LISTED = 20
INTRODUCTION = (
    "# Reliability\n\n"
    "`make campaign` tests four things: invalid input gives a result or a clear error message, a "
    "killed run leaves no partial files, threads and processes do not change results, and memory "
    "does not grow. It exits with code 1 if it finds a defect."
)
NOT_RUN = "No part of it has been run on this version yet."


@dataclass(frozen=True)
class Plan:
    """How much is to be done."""

    scale: float
    seed: int
    processes: int
    minutes: float
    """After which no new case is begun."""


@dataclass
class Counts:
    """How the cases of one kind ended."""

    answer: int = 0
    refusal: int = 0
    other: int = 0
    slowest: float = 0.0
    memory: float = 0.0


# Invalid input


def fuzz(plan: Plan) -> Report:
    """Cases of all kinds, in processes that are watched: one that dies or hangs is a defect."""
    cases, step = max(round(CASES * plan.scale), 1), plan.processes
    end = time.monotonic() + 60 * plan.minutes
    with ThreadPoolExecutor(step) as pool:
        parts = list(pool.map(lambda i: watch(plan.seed, i, step, cases, end), range(step)))
    kinds: dict[str, Counts] = defaultdict(Counts)
    defects: list[str] = []
    largest = 0
    for lines, broken in parts:
        for line in lines:
            largest = max(largest, line["peak"])
            count(kinds[line["kind"]], line, defects)
        for kind, what in broken:
            kinds[kind].other += 1
            defects.append(what)
    total = Counts(*(sum(getattr(c, f.name) for c in kinds.values()) for f in fields(Counts)[:3]))
    return {
        "cases": total.answer + total.refusal + total.other,
        "answers": total.answer,
        "refusals": total.refusal,
        "anything else": total.other,
        "largest memory of a process, MB": largest,
        "kinds": {kind: vars(kinds[kind]) for kind in sorted(kinds)},
        "defects": defects,
    }


def count(kind: Counts, line: Report, defects: list[str]) -> None:
    """Add a case to those of its kind."""
    ended, what = line["ended"], line["what"]
    if line["seconds"] > MOST_SECONDS:
        ended, what = "else", f"case {line['number']} took {line['seconds']:.0f} s"
    if line["memory"] > MOST_MEMORY:
        ended, what = "else", f"case {line['number']} took {line['memory']:.0f} MB"
    if ended == "else":
        defects.append(f"{line['kind']}: {what}")
    name = "other" if ended == "else" else ended
    setattr(kind, name, getattr(kind, name) + 1)
    kind.slowest = max(kind.slowest, line["seconds"])
    kind.memory = max(kind.memory, line["memory"])


def watch(
    seed: int, first: int, step: int, last: int, end: float = math.inf
) -> tuple[list[Report], list[tuple[str, str]]]:
    """Run every `step`-th case; after one that ends its process or hangs, the next one goes on."""
    done: list[Report] = []
    broken: list[tuple[str, str]] = []
    while first < last and time.monotonic() < end:
        words = [sys.executable, str(WORKER), *map(str, (seed, first, step, last))]
        running: Report | None = None
        why = ""
        # Not a pipe for errors: nobody would read it meanwhile.
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            for line in lines_of(process, end):
                if line is None:
                    why = "hung"
                    break
                if "ended" in line:
                    done.append(line)
                    first, running = line["number"] + step, None
                else:
                    running = line
            process.kill()
            process.wait()
            errors.seek(0)
            said = errors.read().decode(errors="replace")[-300:]
        if time.monotonic() > end:
            break
        if running is None:
            if process.returncode != 0 or first < last:
                raise RuntimeError(f"the process of cases failed by itself: {said}")
            continue
        why = why or f"ended its process with code {process.returncode}: {said}"
        broken.append((running["kind"], f"{running['kind']}: case {running['number']} {why}"))
        first = running["number"] + step
    return done, broken


def lines_of(process: subprocess.Popen[bytes], end: float) -> Iterator[Report | None]:
    """Lines of JSON that a process writes until `end`; None if it hangs.

    It hangs if it is silent and computes for too long, or does not compute at all; one that a busy
    machine does not let compute is waited for.
    """
    assert process.stdout is not None
    rest, waited = b"", time.monotonic()
    since = used = seconds_of(process.pid)
    while time.monotonic() < end:
        ready, _, _ = select.select([process.stdout], [], [], min(MOST_WAITED, 5.0))
        if ready:
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                process.wait()
                return
            *whole, rest = (rest + part).split(b"\n")
            yield from map(json.loads, whole)
            since = seconds_of(process.pid)
        now = seconds_of(process.pid)
        if ready or now > used:
            used, waited = now, time.monotonic()
        if now - since > LONGEST_CASE or time.monotonic() - waited > MOST_WAITED:
            yield None
            return


def seconds_of(process: int) -> float:
    """CPU time of a process so far."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# kill -9


@dataclass(frozen=True)
class Command:
    """A command that is killed and run again."""

    name: str
    words: list[str]
    again: list[str] = field(default_factory=list)
    """Added when there is something to resume."""
    resumable: str = ""
    """The file that tells so."""
    changes: tuple[str, ...] = ()
    """Files that hold times, or change while it runs, and so are not compared."""


def commands() -> list[Command]:
    """The commands, on files of the folder they run in."""
    complete, render, train = (text.split() for text in (COMPLETE, RENDER, TRAIN))
    return [
        Command("complete", complete),
        Command("render", render),
        Command(
            "train", train, ["--resume"], "checkpoint.safetensors",
            ("run.json", "checkpoint.safetensors", "events"),
        ),
    ]  # fmt: skip


def kill(plan: Plan) -> Report:
    """Kill commands at random moments, run them again, and compare all files with those of an
    uninterrupted run.
    """
    return kill_all(plan, commands())


def ray(plan: Plan) -> Report:
    """The same for archives, if Ray is there; it takes minutes to start and stop it."""
    from deepbasis.commands.complete import Complete

    if "ray" not in {one.name for one in fields(Complete)} or not find_spec("ray"):
        return {"defects": []}
    words = [*COMPLETE.split(), "--ray", "local", "--workers", "1"]
    return kill_all(plan, [Command("complete --ray local", words)])


def kill_all(plan: Plan, listed: list[Command]) -> Report:
    """Kill each command equally often."""
    import deepbasis.commands.complete.run
    import deepbasis.data.worlds.export
    import deepbasis.train.run  # noqa: F401  (children need not import it again)

    rng = random.Random(plan.seed)
    each = max(round(KILLS * plan.scale / len(listed)), 1)
    report: Report = {"defects": []}
    with tempfile.TemporaryDirectory() as place:
        inputs = Path(place) / "inputs"
        inputs.mkdir()
        if run_all(INPUTS.split(), inputs):
            raise RuntimeError((inputs / "said.txt").read_text()[-500:])
        write_points(inputs)
        for command in listed:
            report[command.name] = kill_one(command, each, rng, inputs, report["defects"])
    return report


def write_points(folder: Path, count: int = 100) -> None:
    """Tables of a few points of each depth map."""
    from deepbasis.data.formats import read_depth
    from deepbasis.data.worlds.export import DEPTH_SCALE

    (folder / "points").mkdir()
    for path in sorted((folder / "depth").iterdir()):
        depth = read_depth(path, DEPTH_SCALE["rooms"])
        row, column = np.nonzero(depth)
        chosen = np.random.default_rng(0).choice(len(row), count, replace=False)
        rows = np.column_stack([column, row, depth[row, column]])[chosen]
        np.savetxt(folder / "points" / f"{path.stem}.csv", rows, fmt="%.6g", delimiter=",")


def kill_one(
    command: Command, kills: int, rng: random.Random, inputs: Path, defects: list[str]
) -> Report:
    """Kill one command some times."""
    reference = inputs.parent / "reference"
    shutil.copytree(inputs, reference)
    start = time.monotonic()
    code = run_all(command.words, reference)
    seconds = time.monotonic() - start
    if code:
        raise RuntimeError(f"{command.name} failed: {(reference / 'said.txt').read_text()[-500:]}")
    wanted = contents(reference / "out", command)
    done = Counter[str]()
    while done["killed"] < kills and done["ended before"] < 10 * kills:
        here = inputs.parent / "run"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(inputs, here)
        process = start_one(command.words, here)
        # A random moment, not a condition: that is what is tried.
        time.sleep(rng.uniform(0, seconds))
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            done["ended before"] += 1
            continue
        done["killed"] += 1
        about = f"{command.name}, kill {done['killed']}"
        done["with files"] += (here / "out").is_dir() and any((here / "out").iterdir())
        defects += [f"{about}: {what}" for what in compare(here / "out", wanted, command)]
        resumes = command.resumable and (here / "out" / command.resumable).exists()
        if run_all([*command.words, *(command.again if resumes else [])], here):
            said = (here / "said.txt").read_text()[-300:]
            defects.append(f"{about}: the second run failed: {said}")
            continue
        found = contents(here / "out", command)
        if found.keys() != wanted.keys():
            defects.append(f"{about}: files differ: {sorted(found.keys() ^ wanted.keys())[:5]}")
        defects += [f"{about}: {what}" for what in compare(here / "out", wanted, command)]
    shutil.rmtree(reference)
    return {
        "killed": done["killed"],
        "killed with files written": done["with files"],
        "files compared": len(wanted),
        "seconds of an uninterrupted run": seconds,
    }


def contents(folder: Path, command: Command) -> dict[str, str]:
    """Hashes of the files of a folder; hidden ones count too."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not any(word in path.name for word in command.changes)
    }


def compare(folder: Path, wanted: dict[str, str], command: Command) -> list[str]:
    """What stands under a final name and is not what an uninterrupted run writes."""
    if not folder.is_dir():
        return []
    found = contents(folder, command)
    shown = {name for name in found if not Path(name).name.startswith(".")}
    wrong = sorted(name for name in shown if found[name] != wanted.get(name))
    if (checkpoint := folder / (command.resumable or "none")).is_file():
        wrong += [] if loads(checkpoint) else [checkpoint.name]
    return [f"{name} is not that of an uninterrupted run" for name in wrong]


def loads(path: Path) -> bool:
    """Whether a file of tensors is whole."""
    from deepbasis.data.tensors import load_tensors

    try:
        load_tensors(path)
    except ValueError:
        return False
    return True


def run_all(words: list[str], folder: Path) -> int:
    """Run a command to its end."""
    process = start_one(words, folder)
    process.join()
    return int(process.exitcode or 0)


def start_one(words: list[str], folder: Path) -> multiprocessing.process.BaseProcess:
    """Start a command in a folder; forked, so that it need not import everything first."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(words, folder))
    process.start()
    return process


def _command(words: list[str], folder: Path) -> None:
    from deepbasis.cli import main

    os.chdir(folder)
    said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = ["deepbasis", *words]
    main()


# Threads and processes


def make_frames(count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images of noise with a few points."""
    draw = np.random.default_rng(seed)
    low, high = [0, 0, 1], [SIZE[1] - 1, SIZE[0] - 1, 5]
    return [
        (draw.integers(256, size=(*SIZE, 3), dtype=np.uint8), draw.uniform(low, high, (30, 3)))
        for _ in range(count)
    ]


def digest(model: Any, frame: tuple[np.ndarray, np.ndarray]) -> str:
    """Of all that is computed for a frame."""
    out = model.complete(*frame)
    parts = (out.depth, out.std, *out.interval(0.9), out.sample(2), out.next_points(2))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def threads(plan: Plan) -> Report:
    """Four threads that share a model compute the same bits as one."""
    import deepbasis

    model = deepbasis.load("open")
    frames = make_frames(max(round(200 * plan.scale), 8), plan.seed)
    alone = [digest(model, frame) for frame in frames]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda frame: digest(model, frame), frames))
    differ = sum(a != b for a, b in zip(alone, together, strict=True))
    defects = [f"{differ} of {len(frames)} frames differ"] if differ else []
    return {"frames": len(frames), "threads": 4, "that differ": differ, "defects": defects}


def forks(plan: Plan) -> Report:
    """Processes made by fork, of one that has computed already, and by spawn: the same bits."""
    import deepbasis

    frames = make_frames(max(round(20 * plan.scale), 4), plan.seed)
    model = deepbasis.load("open")
    wanted = [digest(model, frame) for frame in frames]
    report: Report = {"frames": len(frames), "defects": []}
    for kind in ("fork", "spawn"):
        context = multiprocessing.get_context(kind)
        queue = context.Queue()
        process = context.Process(target=_digests, args=(frames, queue))  # type: ignore[attr-defined]
        process.start()
        try:
            same = queue.get(timeout=MOST_WAITED) == wanted
        except Exception:
            same = False
        process.kill()
        report[kind] = "same bits" if same else "other bits, or none"
        report["defects"] += [] if same else [f"{kind}: {report[kind]}"]
    return report


def _digests(frames: list[tuple[np.ndarray, np.ndarray]], queue: Any) -> None:
    import deepbasis

    model = deepbasis.load("open")
    queue.put([digest(model, frame) for frame in frames])


# Many frames


def resident() -> float:
    """Memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def frames(plan: Plan) -> Report:
    """Many frames in one process: memory stays flat."""
    import deepbasis

    model, some = deepbasis.load("open"), make_frames(50, plan.seed)
    total = max(round(FRAMES * plan.scale), 20)
    early = max(round(EARLY * total), 10)
    report: Report = {"frames": total, "defects": []}
    endless = (some[i % len(some)] for i in range(total))
    for name, results in (
        ("complete", (model.complete(*frame) for frame in endless)),
        ("stream", model.stream(some[i % len(some)] for i in range(total))),
    ):
        memory = {}
        for number, out in enumerate(results, 1):
            if not (np.isfinite(out.depth).all() and np.isfinite(out.std).all()):
                report["defects"].append(f"{name}: frame {number} is not finite")
            if number in (early, total):
                memory[str(number)] = resident()
        report[name] = {f"MB after {number}": value for number, value in memory.items()}
        growth = memory[str(total)] - memory[str(early)]
        if growth > MOST_GROWTH:
            report["defects"].append(f"{name}: memory grew by {growth:.0f} MB")
    return report


# The page

PARTS: dict[str, Callable[[Plan], Report]] = {
    "fuzz": fuzz, "kill": kill, "ray": ray, "threads": threads, "forks": forks, "frames": frames,
}  # fmt: skip


@contextmanager
def announced(name: str) -> Iterator[None]:
    """Say on the error stream what runs, and how long it took."""
    start = time.monotonic()
    print(f"{name} ...", file=sys.stderr, flush=True)
    yield
    print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def run_part(name: str, arguments: argparse.Namespace) -> Report:
    """Run a part in a process of its own."""
    words = [sys.executable, __file__, "--part", name, "--scale", str(arguments.scale)]
    words += ["--seed", str(arguments.seed), "--processes", str(arguments.processes)]
    words += ["--minutes", str(arguments.minutes)]
    start = time.monotonic()
    with announced(name):
        done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    report: Report = {"defects": [f"{name} failed by itself, with code {done.returncode}"]}
    if not done.returncode:
        report = json.loads(done.stdout)
    minutes = (time.monotonic() - start) / 60
    return report | {"scale": arguments.scale, "seed": arguments.seed, "minutes": minutes}


def about() -> Report:
    """Where and with what it ran."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "processor cores": os.cpu_count(),
        "threads of PyTorch": os.environ.get("OMP_NUM_THREADS", "default"),
        "versions": {name: version(name) for name in PACKAGES},
    }


def table(head: list[str], rows: list[list[object]]) -> str:
    """A table of Markdown; all columns but the first are numbers."""
    lines: list[list[object]] = [[*head], ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def commands_of(parts: dict[str, Report], out: Path) -> str:
    """The commands that made the figures, parts of one scale and seed together."""
    alike: dict[tuple[float, int], list[str]] = defaultdict(list)
    for name, part in parts.items():
        alike[part["scale"], part["seed"]].append(name)
    start = f"$ python benchmarks/campaign.py --out {out}"
    return "\n".join(
        f"{start} --scale {scale:g} --seed {seed} --parts {' '.join(names)} --keep"
        for (scale, seed), names in alike.items()
    )


def page(report: Report, out: Path) -> str:
    """The page."""
    parts = report["parts"]
    if not parts:
        return f"{INTRODUCTION}\n\n{NOT_RUN}\n"
    versions = ", ".join(f"{name} {value}" for name, value in report["about"]["versions"].items())
    cores = report["about"]["processor cores"]
    text = [
        INTRODUCTION,
        f"[The same figures as JSON]({out.name}.json). They were written by",
        f"```text\n{commands_of(parts, out)}\n```",
        f"on {report['about']['date']} with {cores} CPU cores, Python "
        f"{report['about']['python']}, {versions}. A whole campaign, `--scale 1`, is {CASES:,} "
        f"cases, {KILLS} kills and {FRAMES:,} frames.{report['note']}",
    ]
    text += [part for name in parts for part in WRITERS[name](parts[name])]
    wrong = [f"{name}: {what}" for name, found in parts.items() for what in found["defects"]]
    text.append("## Defects")
    listed = "\n".join(f"- {' '.join(what.split())[:300]}" for what in wrong[:LISTED])
    text.append(f"{len(wrong)} defects:\n\n{listed}" if wrong else "None were found.")
    return "\n\n".join(text) + "\n"


def _fuzz_page(found: Report) -> list[str]:
    if "kinds" not in found:
        return []
    rows: list[list[object]] = [
        [kind, sum(c[n] for n in ("answer", "refusal", "other")), c["answer"], c["refusal"],
         c["other"], f"{c['slowest']:.2f}", f"{c['memory']:.0f}"]
        for kind, c in found["kinds"].items()
    ]  # fmt: skip
    rows.append(["**all**", found["cases"], found["answers"], found["refusals"],
                 found["anything else"], "", ""])  # fmt: skip
    return [
        "## Invalid input",
        "Files are damaged at random, functions called with invalid arguments. An answer must be "
        "finite, with error bars that are not negative; a refusal is a `ValueError` or `OSError` "
        "of at most a few lines. Anything else is a defect: another exception, a warning, NaN, a "
        f"crash, more than {MOST_SECONDS:.0f} s of CPU time, more than {MOST_MEMORY:.0f} MB of "
        "memory for one case.",
        table(["Input", "Cases", "Answers", "Refusals", "Defects", "Slowest (s)",
               "Peak memory (MB)"], rows),
        f"Largest memory of a process with the library, a model and all readers: "
        f"{found['largest memory of a process, MB']} MB.",
    ]  # fmt: skip


def _kill_page(found: Report) -> list[str]:
    return [
        "## kill -9",
        "Each command was killed at a random moment and run again. Right after the kill, whatever "
        "stands under a final name must be what an uninterrupted run writes there, to the byte "
        "(a checkpoint must load); after the second run, all files must be, and no part files may "
        "be left. Not compared: the log and run.json of a training, which hold times.",
        _kill_table(found),
    ]


def _ray_page(found: Report) -> list[str]:
    return ["## kill -9 with Ray", "In the same way:", _kill_table(found)]


def _kill_table(found: Report) -> str:
    rows: list[list[object]] = [
        [f"`deepbasis {name}`", part["killed"], part["killed with files written"],
         part["files compared"], f"{part['seconds of an uninterrupted run']:.1f}"]
        for name, part in found.items() if isinstance(part, dict)
    ]  # fmt: skip
    head = ["Command", "Kills", "With files on disk", "Files compared", "Whole run (s)"]
    return table(head, rows)


def _threads_page(found: Report) -> list[str]:
    if "frames" not in found:
        return []
    return [
        "## Threads and processes",
        f"{found['frames']} frames completed, sampled and asked for their next points by "
        f"{found['threads']} threads that share a model: {found['that differ']} differ from one "
        "thread in any bit.",
    ]


def _forks_page(found: Report) -> list[str]:
    if "fork" not in found:
        return []
    said = f"Processes made by fork: {found['fork']}; by spawn: {found['spawn']}."
    return [f"{said} ({found['frames']} frames; the parent had computed before it forked.)"]


def _frames_page(found: Report) -> list[str]:
    if "complete" not in found:
        return []
    rows: list[list[object]] = [
        [f"`model.{name}`", *(f"{value:.0f}" for value in found[name].values())]
        for name in ("complete", "stream")
    ]
    head = ["Memory of the process (MB)", *(key[3:] for key in found["complete"])]
    return [
        "## Many frames in one process",
        f"{found['frames']} frames of {SIZE[0]} x {SIZE[1]} pixels with the model `open`.",
        table(head, rows),
    ]


WRITERS: dict[str, Callable[[Report], list[str]]] = {
    "fuzz": _fuzz_page, "kill": _kill_page, "ray": _ray_page, "threads": _threads_page,
    "forks": _forks_page, "frames": _frames_page,
}  # fmt: skip


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description="Reliability in figures.")
    parser.add_argument("--out", type=Path, default=Path("reliability"),
                        help="page and JSON to write, without their suffix")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the other parts of the JSON")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=[name for name in PARTS if name != "ray"]
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of a whole campaign")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--processes", type=int, default=2, help="that run cases")
    parser.add_argument("--minutes", type=float, default=math.inf, help="most for the cases")
    parser.add_argument("--note", default="", help="added to the page, about how it was run")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        how = (getattr(arguments, one.name) for one in fields(Plan))
        print(json.dumps(PARTS[arguments.part](Plan(*how))))
        return 0
    file = arguments.out.with_suffix(".json")
    found = {name: run_part(name, arguments) for name in arguments.parts}
    kept = json.loads(file.read_text())["parts"] if arguments.keep and file.exists() else {}
    parts = {name: (kept | found)[name] for name in PARTS if name in kept | found}
    note = f" {arguments.note}" if arguments.note else ""
    report = {"about": about(), "note": note, "parts": parts}
    wrong = [what for part in parts.values() for what in part["defects"]]
    file.write_text(json.dumps(report, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(report, arguments.out))
    for what in wrong[:LISTED]:
        print(what, file=sys.stderr)
    print(f"{len(wrong)} defects", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
