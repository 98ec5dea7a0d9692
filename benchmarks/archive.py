# SPDX-License-Identifier: Apache-2.0
"""Archives: throughput of Ray with two workers beside one process with two threads, memory, kills.

    deepbasis render rooms --out rooms --count 2000 --size 120 160
    python benchmarks/archive.py --root rooms

    python benchmarks/archive.py --sizes

prints the CPU time of a frame by image size, of one thread: reading, completing, compressing; and
the size of its row, as float32 and as float16.

    python benchmarks/archive.py --list

prints the memory that the list of frames takes in the driver.

Both ways take turns, so that a busy machine slows both alike; the ratio is what counts. The rate is
that between the first and the last shard, without the start. Memory is that of the whole tree of
processes, its largest value in the first half and in the last quarter of the run. CPU time is that
of all processes between the first and the last shard, which other work on the machine hardly
changes. Then a worker is killed, then the driver, and the run is repeated: all shards must have the
bytes of those that nobody disturbed.
"""

import argparse
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.archive import Workbench, assign
from deepbasis.commands.complete.manifest import list_frames, read_manifest
from deepbasis.data.formats import read_depth_png
from deepbasis.data.worlds import Worlds
from deepbasis.data.worlds.export import export

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
POLL = 0.5
# Frames of --list.
LISTED = 20_000
# Frames of each size of --sizes.
SIZED, SIZES = 4, ((120, 160), (240, 320), (480, 640))
WAYS = {
    "one process, 2 threads": ("2", ()),
    "Ray, 2 workers": ("1", ("--ray", "local", "--workers", "2")),
}


@dataclass
class Run:
    """What was seen of a run."""

    seconds: float = 0.0
    rate: float = 0.0
    cpu: float = 0.0
    """Seconds of CPU time a frame."""
    memory: list[int] = field(default_factory=list)


def draw_points(root: Path, points: int) -> None:
    """Rows of measured pixels beside the rendered depth."""
    folder = root / f"points{points}"
    folder.mkdir(exist_ok=True)
    for path in sorted((root / "depth").glob("*.png")):
        if (file := folder / f"{path.stem}.npy").exists():
            continue
        depth = read_depth_png(path, 1000)
        v, u = np.nonzero(depth)
        chosen = np.random.default_rng(0).permutation(len(u))[:points]
        np.save(file, np.stack([u, v, depth[v, u]], 1)[chosen])


def command(
    images: Path, sparse: Path, out: Path, options: argparse.Namespace, way: str
) -> list[str]:
    """A run of one way."""
    return [
        sys.executable, "-m", "deepbasis.cli", "complete", str(images), "--sparse", str(sparse),
        "--out", str(out), "--model", options.model, "--shard-frames", str(options.shard_frames),
        "--quiet", *WAYS[way][1],
    ]  # fmt: skip


def start(words: list[str], way: str) -> subprocess.Popen[bytes]:
    """Start a run with the threads of its way."""
    environment = os.environ | {"OMP_NUM_THREADS": WAYS[way][0]}
    return subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)


def below(pid: int) -> dict[int, str]:
    """The processes of a tree, with their titles."""
    parents, titles = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            titles[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
        except OSError:  # it has ended
            continue
    found = {}
    for one in titles:
        above = one
        while above != pid and above in parents:
            above = parents[above]
        if above == pid:
            found[one] = titles[one]
    return found


def memory_of(pid: int) -> int:
    """Bytes that the processes of a tree have for themselves."""
    total = 0
    for one in below(pid):
        try:
            _, resident, shared, *_ = Path(f"/proc/{one}/statm").read_text().split()
            total += (int(resident) - int(shared)) * PAGE
        except OSError:
            continue
    return total


def cpu_of(pid: int, before: dict[int, float]) -> float:
    """Seconds of CPU time of all processes that a tree ever had, as far as they were seen."""
    for one in below(pid):
        try:
            numbers = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            before[one] = (int(numbers[11]) + int(numbers[12])) / TICKS
        except OSError:
            continue
    return sum(before.values())


def measure(words: list[str], out: Path, way: str, frames: int, size: int) -> Run:
    """Run to the end."""
    found, begun = Run(), time.monotonic()
    process = start(words, way)
    seen: dict[int, float] = {}
    times, cpu = [], []
    while process.poll() is None:
        found.memory.append(memory_of(process.pid))
        times.append(time.time())
        cpu.append(cpu_of(process.pid, seen))
        time.sleep(POLL)
    found.seconds = time.monotonic() - begun
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with exit code {process.returncode}")
    written = sorted(path.stat().st_mtime for path in out.glob("*.parquet"))
    found.rate = (frames - size) / (written[-1] - written[0])
    first, last = np.interp([written[0], written[-1]], times, cpu)
    found.cpu = float(last - first) / (frames - size)
    return found


def digests(out: Path) -> dict[str, str]:
    """Of all shards."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.glob("*.parquet"))
    }


def kill_test(words: list[str], out: Path, whole: dict[str, str]) -> None:
    """Kill a worker, then the driver, and do it again; print what happens."""
    shutil.rmtree(out, ignore_errors=True)
    way = "Ray, 2 workers"
    process, begun = start(words, way), time.monotonic()

    def tell(text: str) -> None:
        print(
            f"{time.monotonic() - begun:7.1f} s  {len(digests(out)):4d} shards  {text}", flush=True
        )

    def wait_for(shards: int) -> None:
        while len(digests(out)) < shards and process.poll() is None:
            time.sleep(POLL)

    wait_for(len(whole) // 4)
    workers = [pid for pid, title in below(process.pid).items() if "MapWorker" in title]
    os.kill(workers[0], signal.SIGKILL)
    tell(f"killed worker {workers[0]} of {len(workers)}")
    wait_for(len(whole) // 2)
    process.kill()
    process.wait()
    tell("killed the driver")
    left = digests(out)
    same = sum(whole[name] == digest for name, digest in left.items())
    parts = len(list(out.glob(".*.part")))
    tell(f"{same} of {len(left)} shards have the bytes of an undisturbed run; {parts} part files")
    process = start(words, way)
    tell(f"the same command again: exit code {process.wait()}")
    same = sum(whole.get(name) == digest for name, digest in digests(out).items())
    tell(f"{same} of {len(whole)} shards have the bytes of an undisturbed run")


def by_size(options: argparse.Namespace) -> None:
    """CPU time and bytes of frames of several sizes."""
    torch.set_num_threads(1)
    print(f"{SIZED} frames, {options.points} points, {options.model}, one thread")
    print("| height x width | CPU ms/frame | float32 kB/frame | float16 kB/frame |")
    print("|---|---|---|---|")
    for size in SIZES:
        root = options.work / f"{size[0]}x{size[1]}"
        shutil.rmtree(root, ignore_errors=True)
        for _ in export(Worlds("rooms", SIZED, 0, "clone", size), root, 1):
            pass
        draw_points(root, options.points)
        settings = Complete(
            (root / "rgb",), root / "out", root / f"points{options.points}", model=options.model,
            shard_frames=SIZED, figure=False,
        )  # fmt: skip
        (task,) = assign(list_frames(settings), SIZED)
        bench = Workbench(replace(settings, max_depth=1000.0))
        bench.complete(replace(task, frames=task.frames[:1]))  # opens the model
        found = []
        for half in (False, True):
            bench.settings, begun = replace(settings, half=half), time.process_time()
            bench.complete(task)
            taken = 1e3 * (time.process_time() - begun) / SIZED
            found.append((taken, task.shard(settings.out).stat().st_size / 1e3 / SIZED))
        (first, full), (second, small) = found
        print(f"| {size[0]} x {size[1]} | {(first + second) / 2:.0f} | {full:.0f} | {small:.0f} |")


def by_list(options: argparse.Namespace) -> None:
    """Memory of frames that are listed, and of the groups that are sent to the workers."""
    options.work.mkdir(parents=True, exist_ok=True)
    drive = "s3://bucket/archive/drive0007"
    names = [f"{number:09d}" for number in range(LISTED)]
    rows = [
        {"name": f"drive0007-{name}", "image": f"{drive}/rgb/{name}.jpg",
         "sparse": f"{drive}/lidar/{name}.npy", "intrinsics": f"{drive}/camera.txt"}
        for name in names
    ]  # fmt: skip
    path = options.work / "frames.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    del rows, names
    tracemalloc.start()
    tasks = assign(read_manifest(path), 64)
    sent = [pickle.dumps(task) for task in tasks]
    held = tracemalloc.get_traced_memory()[0] / LISTED
    print(f"{LISTED} frames listed: the driver holds {held / 1e3:.2f} kB a frame")
    print(f"{sum(map(len, sent)) / LISTED:.0f} bytes a frame are sent to the workers")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", action="store_true", help="print the table of image sizes")
    parser.add_argument("--list", action="store_true", help="print the memory of the list")
    parser.add_argument("--root", type=Path, help="folder of `deepbasis render`")
    parser.add_argument("--frames", type=int, default=2000, help="of the folder, at most")
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--model", default="indoor")
    parser.add_argument("--shard-frames", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("archive-benchmark"))
    options = parser.parse_args()
    if options.sizes:
        by_size(options)
        return
    if options.list:
        by_list(options)
        return
    if options.root is None:
        parser.error("pass --root, --sizes or --list")
    draw_points(options.root, options.points)
    images, sparse = options.work / "rgb", options.root / f"points{options.points}"
    shutil.rmtree(options.work, ignore_errors=True)
    images.mkdir(parents=True)
    chosen = sorted((options.root / "rgb").iterdir())[: options.frames]
    for path in chosen:
        (images / path.name).symlink_to(path.resolve())
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    shards: list[dict[str, str]] = []
    for _ in range(options.rounds):
        for number, way in enumerate(WAYS):
            out = options.work / f"out{number}"
            shutil.rmtree(out, ignore_errors=True)
            words = command(images, sparse, out, options, way)
            runs[way].append(measure(words, out, way, len(chosen), options.shard_frames))
            shards.append(digests(out))
    print(f"{len(chosen)} frames, {options.points} points, {options.model}, {os.cpu_count()} cores")
    size = sum(path.stat().st_size for path in (options.work / "out1").glob("*.parquet"))
    print(f"shards: {size / len(chosen) / 1e3:.1f} kB a frame")
    print("| | frames/s | CPU ms/frame | whole run (s) | memory, first half (MB) | last quarter |")
    print("|---|---|---|---|---|---|")
    for way, found in runs.items():
        rate, seconds = median(r.rate for r in found), median(r.seconds for r in found)
        memory = found[-1].memory
        quarter = max(1, len(memory) // 4)
        first, last = (max(part) / 1e6 for part in (memory[: 2 * quarter], memory[-quarter:]))
        cpu = 1e3 * median(r.cpu for r in found)
        print(f"| {way} | {rate:.2f} | {cpu:.0f} | {seconds:.0f} | {first:.0f} | {last:.0f} |")
    ratios = [two.rate / one.rate for one, two in zip(*runs.values(), strict=True)]
    print(f"ratio of the rates, by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    ray = shards[1::2]
    print(f"shards of all rounds of Ray have the same bytes: {all(one == ray[0] for one in ray)}")
    out = options.work / "killed"
    kill_test(command(images, sparse, out, options, "Ray, 2 workers"), out, ray[0])


if __name__ == "__main__":
    main()
