# SPDX-License-Identifier: Apache-2.0
"""Starting the page: models, limits, address."""

import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from functools import cache
from pathlib import Path

from deepbasis.commands.serve import Serve
from deepbasis.commands.serve.file_access import CommandLineFiles
from deepbasis.data.limits import VARIABLE
from deepbasis.model import find_model
from deepbasis.model import load as load_model
from deepbasis.page.access import Access
from deepbasis.page.server import listen, make_app, run
from deepbasis.page.session import Workshop
from deepbasis.page.uploads import Uploads
from deepbasis.pretrained import installed

# Numbers that a dropped file may hold, for each pixel of the largest image: points of clouds and
# characters of tables count too.
NUMBERS_PER_PIXEL = 6


def start(settings: Serve) -> None:
    """Serve until Ctrl-C."""
    models = settings.model or installed()
    for name in models:
        if not find_model(name).is_file():
            raise ValueError(f"--model {name}: there is no model file {find_model(name)}")
    # uvicorn raises the signal again; files that were dropped are removed before the end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    load = cache(load_model)
    with listen(settings.host, settings.port) as bound, _folder(settings.folder) as folder:
        for name in settings.model:
            load(name)  # a file that is no model is refused before the page opens
        uploads = Uploads(
            Path(folder), round(1e6 * settings.max_upload), round(1e6 * settings.max_pixels)
        )
        _serve(settings, Workshop(models, CommandLineFiles(), uploads, load), bound)


def _serve(settings: Serve, workshop: Workshop, bound: socket.socket) -> None:
    token = secrets.token_urlsafe(16)
    access = Access.to(settings.host, token)
    # Readers refuse larger files before memory is taken for them.
    os.environ.setdefault(VARIABLE, f"{NUMBERS_PER_PIXEL * settings.max_pixels:g}")
    app = make_app(workshop, access, settings.max_pages)
    address = f"http://{settings.shown_host}:{bound.getsockname()[1]}/"
    address += "" if access.token is None else f"?token={access.token}"
    print(f"the page is at {address} (Ctrl-C stops it)", flush=True)
    if settings.browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    run(app, bound, workshop.uploads.max_bytes)


def _folder(parent: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A folder for dropped files, which is removed at the end."""
    try:
        return tempfile.TemporaryDirectory(dir=parent, prefix="deepbasis-")
    except OSError as error:
        raise ValueError(
            f"--folder {parent or tempfile.gettempdir()}: cannot write to it ({error.strerror}); "
            "choose another folder"
        ) from error
