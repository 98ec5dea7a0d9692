# SPDX-License-Identifier: Apache-2.0
"""A server in a process of its own, and Chromium: what tests and pictures of the page share."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
# Nothing but the page is to be fetched, and the tests may run as root.
OPTIONS = [
    "--no-sandbox", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-quic", "--enable-unsafe-swiftshader",
]  # fmt: skip

# Seconds to wait for anything: machines that run tests may be busy.
PATIENCE = 180.0


class Server:
    """`deepbasis serve`, which can be killed and started again at the same address."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.options = ("--no-browser", "--folder", str(folder), *options)
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "deepbasis.cli", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *self.options], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found, said
        self.address = found[0]
        self.port = int(re.findall(r":(\d+)/", self.address)[0])

    def stop(self, by: int = signal.SIGINT) -> int:
        self.process.send_signal(by)
        code = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    @property
    def memory(self) -> float:
        """Resident memory in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Any, address: str, **options: Any) -> Any:
    """A page in a context of its own, as if in a browser of its own, when it is connected."""
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    page.goto(address)
    wait_ready(page)
    return page


def wait_until(page: Any, condition: str, seconds: float = PATIENCE) -> None:
    """Until an expression is true in the page, whose policy allows no `eval` inside it."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, f"not true after {seconds} seconds: {condition}"
        page.wait_for_timeout(20)


def wait_ready(page: Any) -> None:
    """Until everything that was asked for has been answered."""
    wait_until(page, "deepbasis.idle")


def place(page: Any, u: float, v: float, view: str = "image") -> tuple[float, float]:
    """Where a pixel of the image is on the screen."""
    found = page.evaluate(
        """([u, v, name]) => {
            const canvas = document.querySelector(`[data-view=${name}] canvas`);
            canvas.scrollIntoView({block: "nearest"});
            const box = canvas.getBoundingClientRect();
            const [x, y] = deepbasis.lens.toScreen(u, v, box.width, box.height);
            return [box.left + x, box.top + y];
        }""",
        [u, v, view],
    )
    return (found[0], found[1])


def click(page: Any, u: float, v: float, metres: float | None = None) -> None:
    """Click a pixel of the image and, if metres are asked for, type them."""
    page.mouse.click(*place(page, u, v))
    if metres is not None:
        page.fill("#popover input", str(metres))
        page.press("#popover input", "Enter")
