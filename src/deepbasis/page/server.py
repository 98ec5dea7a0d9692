# SPDX-License-Identifier: Apache-2.0
"""The server of the page: static files and one WebSocket for each page."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from deepbasis.page.access import Access
from deepbasis.page.protocol import Request, pack, unpack
from deepbasis.page.session import Session, Workshop

STATIC = Path(__file__).parent / "static"
# Nothing of another site is loaded, and no other site may show the page in a frame. The address
# may hold a token, so it is told to nobody.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
# What needs the token; the other files are the same for everybody.
PRIVATE = ("/", "/ws")
# Requests of one page that may wait. A page sends one at a time, so more are a mistake.
WAITING = 16
# Requests of all pages may together take as much memory as this many of the largest ones, besides
# at most two of each page that were received and wait for room.
LARGEST_WAITING = 4
# A page that asks for one of the first no longer wants the rest of one of the second before it.
REPLACING = ("complete", "open", "model", "frame")
REPLACED = ("rest", "frame")
# Bytes of a message besides files: the points of a page, as text.
LARGEST_HEADER = 8_000_000
# Seconds in which a page answers a ping, which waits behind maps on a slow connection.
SLOWEST = 300
# WebSocket close codes: a rule was broken; try again later.
REFUSED, BUSY = 1008, 1013
# Errors that another port avoids.
PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)
log = logging.getLogger("deepbasis.page")


class Guard:
    """Refuses requests before anything else sees them, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refused = self._refuse(scope)
        if refused and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": REFUSED, "reason": refused})
        elif refused:
            await PlainTextResponse(f"{refused}\n", 403, HEADERS)(scope, receive, send)
        else:
            await self.app(scope, receive, _with_headers(send))

    def _refuse(self, scope: Scope) -> str:
        headers, access = Headers(scope=scope), self.access
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = hosts[0] if len(hosts) == 1 else ""
        refused = access.refuses_host(host)
        if not refused and (origins or scope["type"] == "websocket"):
            origin = origins[0] if len(origins) == 1 else ""
            refused = access.refuses_origin(origin, host)
        if not refused and scope["path"] in PRIVATE:
            tokens = QueryParams(scope["query_string"]).getlist("token")
            refused = access.refuses_token(tokens)
        return refused


class MemoryBudget:
    """Bytes that the requests of all pages may take until they are answered."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self.freed = asyncio.Event()

    async def take(self, size: int) -> None:
        """Wait until there is room; a request alone always has it."""
        while self.used and self.used + size > self.most:
            self.freed.clear()
            await self.freed.wait()
        self.used += size

    def give_back(self, size: int) -> None:
        """Let others have it."""
        self.used -= size
        self.freed.set()


class Line:
    """Requests of one page that wait for their answer."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget, self.held = budget, 0
        self.queue: asyncio.Queue[tuple[bytes | Request, int]] = asyncio.Queue(WAITING)
        self.newer = 0
        """How many of them replace what is being computed."""

    async def put(self, message: bytes) -> None:
        """Add a message; an invalid one is answered in its turn. Waits until there is room."""
        await self.budget.take(len(message))
        self.held += len(message)
        found: bytes | Request = message
        with suppress(ValueError):
            found = unpack(message)
            self.newer += found.header.get("do") in REPLACING
        await self.queue.put((found, len(message)))

    @asynccontextmanager
    async def next(self) -> AsyncIterator[bytes | Request]:
        """The next one; its bytes are given back when it is answered."""
        found, size = await self.queue.get()
        if isinstance(found, Request):
            self.newer -= found.header.get("do") in REPLACING
        yield found
        self.held -= size
        self.budget.give_back(size)

    def close(self) -> None:
        """Forget what waits."""
        self.budget.give_back(self.held)
        self.held = 0


@dataclass
class Desk:
    """Answers the pages, one request at a time: each has all cores while it is computed."""

    workshop: Workshop
    max_pages: int
    pages: int = 0
    in_line: int = 0
    budget: MemoryBudget = field(init=False)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def __post_init__(self) -> None:
        largest = largest_message(self.workshop.uploads.max_bytes)
        self.budget = MemoryBudget(LARGEST_WAITING * largest)

    async def serve(self, socket: WebSocket) -> None:
        """Serve one page until it leaves."""
        await socket.accept()
        if self.pages >= self.max_pages:
            said = f"{self.pages} pages are open, the maximum of this server; close one of them"
            await socket.send_bytes(pack({"event": "full", "error": said}))
            await socket.close(BUSY)
            return
        self.pages += 1
        session, line = Session(self.workshop), Line(self.budget)
        # Either ends when the page has left, while the other may wait for ever.
        tasks = [
            asyncio.create_task(self._answer_all(socket, session, line)),
            asyncio.create_task(_receive_all(socket, line)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.pages -= 1
            for task in tasks:
                task.cancel()
            # After what is being computed for it, so that no file goes while it is read.
            self.pool.submit(session.close)
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
            line.close()

    async def _answer_all(self, socket: WebSocket, session: Session, line: Line) -> None:
        await socket.send_bytes(await self._compute(session.greet))
        while True:
            async with line.next() as request:
                if not isinstance(request, Request):
                    await socket.send_bytes(pack({"error": "this is not a message of the page"}))
                    continue
                if self.in_line:
                    await socket.send_bytes(pack({"event": "waiting"}))
                await self._answer(socket, session, request, line)

    async def _answer(
        self, socket: WebSocket, session: Session, request: Request, line: Line
    ) -> None:
        """Send all parts of an answer, unless the page asks for another one meanwhile."""
        replies = session.reply(request)
        while not (line.newer and request.header.get("do") in REPLACED):
            reply = await self._compute(lambda: _next_or_error(replies, request))
            if reply is None:
                return
            await socket.send_bytes(reply)
        replies.close()
        await socket.send_bytes(pack({"id": _id(request), "done": True, "skipped": True}))

    async def _compute(self, work: Callable[[], Any]) -> Any:
        self.in_line += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work)
        finally:
            self.in_line -= 1


def make_app(workshop: Workshop, access: Access, max_pages: int) -> ASGIApp:
    """The application."""
    desk = Desk(workshop, max_pages)

    async def index(_: Any) -> Response:
        return FileResponse(STATIC / "index.html")

    app = Starlette(
        routes=[
            Route("/", index),
            WebSocketRoute("/ws", desk.serve),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )
    return Guard(app, access)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is reported before anything is loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen()  # browsers that come early wait
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        said = f"cannot listen on {host} ({reason}); choose another --host"
        if getattr(error, "errno", None) in PORT_ERRORS:
            said = f"cannot listen on port {port} ({reason}); choose another --port, or 0 for any"
        raise ValueError(said) from error
    return bound


def largest_message(max_bytes: int) -> int:
    """Bytes of the largest request, with a file."""
    return max_bytes + LARGEST_HEADER


def run(app: ASGIApp, bound: socket.socket, max_bytes: int) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off",
        ws="websockets-sansio", ws_max_size=largest_message(max_bytes),
        ws_per_message_deflate=False, ws_ping_interval=20, ws_ping_timeout=SLOWEST,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[bound])


async def _receive_all(socket: WebSocket, line: Line) -> None:
    with suppress(WebSocketDisconnect):
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await line.put(message.get("bytes") or b"")


def _next_or_error(replies: Generator[bytes], request: Request) -> bytes | None:
    """The next part of an answer; None after the last. A mistake is one sentence."""
    try:
        return next(replies, None)
    except (ValueError, OSError) as error:
        return pack({"id": _id(request), "error": str(error)})
    except Exception as error:
        log.exception("the request %r failed", request.header.get("do"))
        return pack({"id": _id(request), "error": f"the server failed ({type(error).__name__})"})


def _id(request: Request) -> Any:
    value = request.header.get("id")
    return value if isinstance(value, int | str) else None


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return wrapped
