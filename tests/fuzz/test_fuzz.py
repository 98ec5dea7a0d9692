# SPDX-License-Identifier: Apache-2.0
"""Odd and damaged input ends in an answer or a clear refusal.

`python tests/fuzz/test_fuzz.py 20000` runs that many cases and counts how they end; a second number
is the seed. `python tests/fuzz/test_fuzz.py recordings 2000` damages each kind of image, depth map,
cloud, camera, video and recording that many times; names of kinds after it, such as `cloud.e57`,
choose some of them.
"""

import faulthandler
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from cases import Defect, campaign, judge, recordings

# Memory that odd input may take beyond that of the library and a model, in MB, and seconds a case.
MOST_MEMORY, MOST_SECONDS = 300.0, 20.0


def run(cases: int | str, seed: int) -> str:
    """Run cases in a Python without the tests' type checker, which would refuse before we do."""
    done = subprocess.run(
        [sys.executable, __file__, str(cases), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_some_cases():
    said = run(120, 0)
    assert "120 cases, 0 defects" in said
    for kind in ("files", "tensors", "arrays"):
        assert f"{kind}: answer" in said
        assert f"{kind}: refusal" in said


@pytest.mark.slow
def test_damaged_recordings():
    assert "42 kinds, 21000 cases, 0 defects" in run("recordings", 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_thousands_of_cases(seed):
    assert "2000 cases, 0 defects" in run(2000, seed)


def test_a_defect_is_noticed():
    def broken():
        raise KeyError("x")

    with pytest.raises(Defect, match="KeyError"):
        judge(broken, "a case")
    with pytest.raises(Defect, match="unclear refusal"):
        judge(lambda: (_ for _ in ()).throw(ValueError("x" * 10000)), "a case")
    with pytest.raises(Defect, match="RuntimeWarning"):
        judge(lambda: __import__("numpy").log(__import__("numpy").zeros(1)), "a case")


def peak() -> float:
    """Largest memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Count how cases end; the exit code is 1 if one is a defect."""
    if sys.argv[1] == "recordings":
        return damage_recordings(int(sys.argv[2]), sys.argv[3:])
    start, number = time.perf_counter(), int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    with tempfile.TemporaryDirectory() as folder:
        counts, defects, before = campaign(Path(folder), number, seed, peak, MOST_SECONDS)
    for kind, count in sorted(counts.items()):
        print(f"{count:7d}  {kind}")
    alike = Counter(text.partition(": ")[2] for text in defects)
    for text, count in alike.most_common(20):
        first = next(one for one in defects if one.endswith(text))
        print(f"{count:7d}  {first}")
    more, seconds = peak() - before, time.perf_counter() - start
    memory = f"{before:.0f} + {more:.0f} MB"
    print(f"{number} cases, {len(defects)} defects, {seconds:.0f} s, peak {memory}")
    if more > MOST_MEMORY:
        print(f"more than {MOST_MEMORY:.0f} MB were taken by odd input")
    return int(bool(defects) or more > MOST_MEMORY)


def damage_recordings(each: int, kinds: list[str]) -> int:
    """The same for recordings."""
    start = time.perf_counter()
    # A case that takes too long ends the run, with the place where it is.
    faulthandler.register(signal.SIGVTALRM, chain=True)
    with tempfile.TemporaryDirectory() as folder:
        recordings(Path(folder), 1, 8, MOST_SECONDS, kinds)
        before = peak()
    with tempfile.TemporaryDirectory() as folder:
        counts, defects = recordings(Path(folder), each, 7, MOST_SECONDS, kinds)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    more = peak() - before
    for kind, count in sorted(counts.items()):
        print(f"{count:7d}  {kind}")
    for text in defects[:20]:
        print(text)
    many = len({kind.partition(":")[0] for kind in counts})
    seconds, total = time.perf_counter() - start, sum(counts.values())
    said = f"{many} kinds, {total} cases, {len(defects)} defects, {seconds:.0f} s"
    print(f"{said}, peak {before:.0f} + {more:.0f} MB")
    return int(bool(defects) or more > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
