# SPDX-License-Identifier: Apache-2.0
"""What users are told when they get it wrong, in a Python without the tests' type checker."""

import json
import subprocess
import sys
from collections.abc import Iterable
from functools import cache

PROGRAM = """
import json, sys, torch
from math import nan
from torch import ones
from deepbasis import BasisFit, fit
for line in sys.stdin:
    setup, cases = json.loads(line)
    said, names = {}, dict(globals())
    exec(setup, names)
    for case in cases:
        try:
            eval(case, names)
        except ValueError as error:
            said[case] = str(error)
        except Exception as error:
            print(json.dumps(f"{case}: {error!r}"), flush=True)
            break
    else:
        print(json.dumps(said), flush=True)
"""


@cache
def start() -> "subprocess.Popen[str]":
    """One Python for all tests of a worker: to import torch takes seconds."""
    words = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def refusals(setup: str, cases: Iterable[str]) -> dict[str, str]:
    """Evaluate each case after `setup`; the message of its ValueError, if it has one."""
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([setup, list(cases)]) + "\n")
    process.stdin.flush()
    said = json.loads(process.stdout.readline())
    assert isinstance(said, dict), said
    return said
