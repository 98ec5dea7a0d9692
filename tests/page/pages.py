# SPDX-License-Identifier: Apache-2.0
"""A page without a browser: it speaks the protocol of `deepbasis.page.protocol`."""

import json
import struct
from typing import Any

import numpy as np


def encode(header: dict[str, Any], content: bytes = b"") -> bytes:
    """A message as the page sends it."""
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + b"\0" * (-(4 + len(text)) % 8) + content


def decode(message: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A message as the page reads it."""
    (length,) = struct.unpack_from("<I", message)
    header, at = json.loads(message[4 : 4 + length]), 4 + length
    arrays = {}
    for name, dtype, shape in header.pop("arrays"):
        at += -at % 8
        kind = np.dtype(f"<{dtype}")
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(message, kind, count, at).reshape(shape)
        at += count * kind.itemsize
    return header, arrays


class Page:
    """Asks and waits for the answer."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.asked = socket, 0
        self.hello, self.colours = self.receive()

    def receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        while True:
            header, arrays = decode(self.socket.receive_bytes())
            if header.get("event") != "waiting":
                return header, arrays

    def ask(
        self, do: str, content: bytes = b"", **more: Any
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The last part of the answer."""
        self.asked += 1
        self.socket.send_bytes(encode({"do": do, "id": self.asked} | more, content))
        header, arrays = self.receive()
        assert header["id"] == self.asked
        if do == "complete" and not ("error" in header or header.get("done")):
            return self.ask("rest")
        return header, arrays
