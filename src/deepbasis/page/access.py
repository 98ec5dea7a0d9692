# SPDX-License-Identifier: Apache-2.0
"""Access rules of the server: host names that it answers to, pages that it trusts, a token."""

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Access:
    """The rules of one server.

    Host: a page of another site can make its own name point to this machine (DNS rebinding), and
    its requests then carry that name. So only names of this machine, and addresses, are answered.
    Origin: a page of another site can open a WebSocket to this machine, and says whose it is.
    Token: on another address than this machine's own, whoever has no token gets nothing.
    """

    host: str
    """Address that the server is bound to."""
    token: str | None = None

    @classmethod
    def to(cls, host: str, token: str) -> "Access":
        """The rules for an address; the token is used if others can reach it."""
        return cls(host, None if host in LOOPBACK else token)

    def refuses_host(self, host: str) -> str:
        """Why a Host header is refused; empty if it is not."""
        name = _name(host)
        if name in LOOPBACK or name == self.host.lower():
            return ""
        if self.token is not None and (_is_address(name) or name in _own_names()):
            return ""
        return f"this server does not answer to the name {name[:80]!r}"

    def refuses_origin(self, origin: str, host: str) -> str:
        """Why a page may not open a WebSocket; empty if it may."""
        if origin.lower() == f"http://{host.lower()}":
            return ""
        return "only the page of this server may connect to it"

    def refuses_token(self, tokens: Iterable[str]) -> str:
        """Why a request without the right token is refused; empty if it is not."""
        if self.token is None:
            return ""
        if any(hmac.compare_digest(one.encode(), self.token.encode()) for one in tokens):
            return ""
        return "open the address that `deepbasis serve` printed: it ends in a token"


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> tuple[str, str]:
    own = socket.gethostname().lower()
    return own, f"{own}.local"
