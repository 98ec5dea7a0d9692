# SPDX-License-Identifier: Apache-2.0
"""`deepbasis serve`."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from deepbasis.options import options


@options
@dataclass(frozen=True)
class Serve:
    """Open a page in the browser: drop an image, click points, watch depth and error bars.

    Only this computer can open it, unless --host is given; then the address contains a token. Files
    that are dropped on the page are read and deleted; nothing is kept.
    """

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all networks of this computer."""
    port: int = 8321
    """Port to listen on; 0 for any free one."""
    model: tuple[str, ...] = ()
    """Models to choose from, by name, file or folder (default: all pretrained models that
    are installed)."""
    browser: bool = True
    """Do not open the browser."""
    folder: Path | None = None
    """Folder for dropped files while they are read (default: the system's temporary folder)."""
    max_pixels: float = 2.0
    """Largest image in millions of pixels; the page reduces larger photos."""
    max_upload: float = 64.0
    """Largest file in megabytes."""
    max_pages: int = 16
    """Pages that may be open at a time; each keeps its image in memory."""

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self.validate()
        try:
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
            import websockets  # noqa: F401
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the page needs {error.name}; install it with: pip install 'deepbasis[page]'"
            ) from error
        from deepbasis.commands.serve.start import start

        start(self)

    def validate(self) -> None:
        """Refuse settings that make no sense."""
        if not 0 <= self.port < 65536:
            raise ValueError(f"--port {self.port} is not a port; choose from 1 to 65535, or 0")
        if not self.host:
            raise ValueError("--host is empty; pass an address, or 0.0.0.0 for all networks")
        for name in ("max_pixels", "max_upload", "max_pages"):
            if not 0 < getattr(self, name) <= 1e6:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} {getattr(self, name):g} must be positive, and at most a million"
                )
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--folder {self.folder}: there is no such folder; create it")

    @property
    def shown_host(self) -> str:
        """The host as it stands in an address."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host
        if address.is_unspecified:
            import socket

            return socket.gethostname()
        return f"[{address}]" if address.version == 6 else str(address)
