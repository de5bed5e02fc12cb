"""A scripted OpenAI-compatible model server on a real socket, with every fault a backend can have.

    with Upstream() as upstream:
        upstream.on("hard question").reply(text="no idea", logprob=-3.0)    # a word of the prompt, or a predicate
        upstream.queue(error_reply(503), Reply(text="second time lucky"))   # once each, before any rule
        ...                                                                  # talk to upstream.url
        assert upstream.requests[0].body["model"] == "small"
        upstream.requests[0].wait_gone(0.1)                                  # the peer cancelled

It runs an event loop in a thread of its own, so tests of any kind, and processes they start, can use it. With nothing
scripted it answers any chat completion; see `Reply`. Times are `time.monotonic()` seconds.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from gateway.parts.local.kinds.scripted.script import Fault, ToolCall, error_reply
from gateway.parts.local.kinds.scripted.script import ModelReply as Reply
from tests.support.connection import Connection, Received
from tests.support.loop_thread import LoopThread
from tests.support.wait import until

__all__ = ["Fault", "Received", "Reply", "ToolCall", "Upstream", "error_reply"]


Match = Callable[[Received], bool]


@dataclass(eq=False)
class Rule:
    """Replies for the requests that match: in order, the last one again and again."""

    match: Match
    replies: deque[Reply] = field(default_factory=deque)

    def reply(self, *replies: Reply, **members: Any) -> None:
        """Answers with `replies`, or with `Reply(**members)`."""
        self.replies.extend(replies or (Reply(**members),))

    def next(self) -> Reply:
        """The reply for one more request."""
        return self.replies.popleft() if len(self.replies) > 1 else self.replies[0]


class Upstream:
    """See the module's docstring. `reset()` forgets the script and the requests, and keeps the port."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[Received] = []
        """The model calls, in order."""
        self.probes: list[Received] = []
        """Everything else: health checks, lists of models."""
        self.default = Reply()
        self.connections = 0
        self._host, self._port = host, port
        self._queue: deque[Reply] = deque()
        self._rules: list[Rule] = []
        self._open: set[Connection] = set()
        self._thread = LoopThread("upstream")
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None

    def __enter__(self) -> Upstream:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._run(self._stop())
        self._thread.stop()

    @property
    def url(self) -> str:
        """The base URL, as an OpenAI client wants it."""
        return f"http://{self._host}:{self._port}/v1"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed."""
        return len(self._open)

    @property
    def in_flight(self) -> int:
        """Model calls whose reply is neither complete nor abandoned."""
        return sum(1 for request in self.requests if request.done_at is None and request.gone_at is None)

    def on(self, match: Match | str) -> Rule:
        """Replies for the requests that `match`, or whose last message contains it; the newest rule wins."""
        rule = Rule((lambda request: match in request.prompt) if isinstance(match, str) else match)
        self._rules.insert(0, rule)
        return rule

    def queue(self, *replies: Reply) -> None:
        """Answers the next model calls with these, one each, whatever the rules say."""
        self._queue.extend(replies)

    def reset(self) -> None:
        """Back to the beginning: the default reply, no rules, no requests, listening; hung replies are closed."""
        self.accept()
        self._run(self._reset())

    def refuse(self) -> None:
        """Connections are refused, and the open ones closed, until `accept()`; the port stays ours."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Listens again."""
        if self._placeholder is not None:
            self._run(self._listen())

    def close_idle(self) -> None:
        """Closes the kept-alive connections, as a server does that has waited long enough."""
        self._run(self._drop(lambda connection: not connection.busy))

    def wait_for(self, count: int, timeout_s: float = 5.0) -> list[Received]:
        """The model calls, once there are `count`."""
        until(lambda: len(self.requests) >= count, timeout_s, f"{count} model calls")
        return self.requests

    # Below: on the loop's thread.

    def _run(self, work: Any) -> None:
        self._thread.run(work)

    async def _reset(self) -> None:
        await self._drop(lambda connection: connection.busy)
        self.default = Reply()
        self._queue.clear()
        self._rules.clear()
        self.requests.clear()
        self.probes.clear()
        self.connections = 0

    async def _listen(self) -> None:
        self._free()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), self._host, self._port, reuse_address=True, backlog=1024
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        await self._stop()
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((self._host, self._port))
        self._placeholder = held

    async def _stop(self) -> None:
        self._free()
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._drop(lambda connection: True)

    async def _drop(self, which: Callable[[Connection], bool]) -> None:
        for connection in [one for one in self._open if which(one)]:
            connection.transport.abort()
        await asyncio.sleep(0)

    def _free(self) -> None:
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None

    def opened(self, connection: Connection) -> None:
        """See `Host`."""
        self.connections += 1
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        """See `Host`."""
        self._open.discard(connection)

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.method != "POST" or not request.path.endswith("/chat/completions"):
            self.probes.append(request)
            return _probe(request)
        self.requests.append(request)
        if self._queue:
            return self._queue.popleft()
        return next((rule.next() for rule in self._rules if rule.match(request)), self.default)


def _probe(request: Received) -> Reply:
    if request.path.endswith("/models"):
        found = {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}]}
        return Reply(body=json.dumps(found).encode())
    if request.path in ("/health", "/v1/health"):
        return Reply(body=b'{"status":"ok"}')
    return error_reply(404, f"no such path: {request.path}", "invalid_request_error", "unknown_url")
