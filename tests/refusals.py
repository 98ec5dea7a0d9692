# SPDX-License-Identifier: Apache-2.0
"""What users are told when they get it wrong, in a Python without the tests' type checker."""

import json
import subprocess
import sys
from collections.abc import Iterable

PROGRAM = """
import json, sys, torch
from math import nan
from torch import ones
from deepbasis import BasisFit, fit
setup, cases = json.load(sys.stdin)
said = {}
for case in cases:
    exec(setup)
    try:
        eval(case)
    except ValueError as error:
        said[case] = str(error)
json.dump(said, sys.stdout)
"""


def refusals(setup: str, cases: Iterable[str]) -> dict[str, str]:
    """Evaluate each case after `setup`; the message of its ValueError, if it has one."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([setup, list(cases)]),
        text=True,
        capture_output=True,
        check=True,
    )
    return json.loads(run.stdout)
