# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of the page in docs/: a screenshot, and an animation of clicking points.

PYTHONPATH=tests python tests/page/pictures.py docs
"""

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from page.browser import Server, chromium, click, new_page, place, wait_ready

WINDOW = {"width": 1280, "height": 780}
# Where the animation clicks; the room's ground truth gives the metres.
CLICKS = ((60, 190), (230, 130), (150, 60), (40, 60), (300, 220), (280, 60), (170, 215), (210, 175))
# Milliseconds that a frame of the animation is shown, and the last one.
SHOWN, LAST = 700, 2500
ANIMATION_WIDTH = 960


def shot(page: Any) -> Image.Image:
    page.wait_for_timeout(150)
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def make(page: Any, folder: Path) -> None:
    """An animation of some clicks, then a picture with all of these points and a distance."""
    page.click("#sample-room")
    wait_ready(page)
    frames = [shot(page)]
    for u, v in CLICKS:
        click(page, u, v)
        wait_ready(page)
        frames.append(shot(page))
    height = round(ANIMATION_WIDTH * WINDOW["height"] / WINDOW["width"])
    small = [frame.resize((ANIMATION_WIDTH, height), Image.Resampling.LANCZOS) for frame in frames]
    small[0].save(
        folder / "page.webp", save_all=True, append_images=small[1:], loop=0, quality=70, method=4,
        duration=[SHOWN] * (len(small) - 1) + [LAST],
    )  # fmt: skip
    page.emulate_media(color_scheme="light")
    page.keyboard.press("2")
    page.mouse.click(*place(page, 122, 15))
    page.mouse.click(*place(page, 124, 165))
    wait_ready(page)
    page.mouse.move(*place(page, 180, 150, "depth"))
    page.evaluate("document.activeElement.blur()")
    shot(page).save(folder / "page.png", optimize=True)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as uploads, chromium() as browser:
        server = Server(Path(uploads))
        try:
            make(new_page(browser, server.address, viewport=WINDOW, color_scheme="dark"), folder)
        finally:
            server.stop()
    for name in ("page.png", "page.webp"):
        print(f"{folder / name}: {(folder / name).stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
