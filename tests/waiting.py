# SPDX-License-Identifier: Apache-2.0
"""Waiting for what another process does: for a condition, never for a time."""

import subprocess
import time
from collections.abc import Callable

# Seconds after which something is broken, not slow: a busy machine may take minutes for seconds.
LIMIT = 600
POLL = 0.02


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Return once the condition holds; fail at once if the process ended before that."""
    end = time.monotonic() + LIMIT
    while not condition():
        code = process.poll()
        assert code is None or condition(), f"the process ended with exit code {code}"
        assert time.monotonic() < end, f"nothing happened in {LIMIT} s"
        time.sleep(POLL)
