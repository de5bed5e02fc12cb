"""A server that answers every request with the same scripted bytes: for replies that no honest HTTP server makes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO

Part = bytes | float
"""Bytes to send in one write, or seconds to wait."""


class RawUpstream:
    """Reads a request's head and body, plays `parts`, and then closes, or waits for the next request if `keep_open`.

    With `reads_body=False` it answers each connection's first request after its head, and reads no further.

    With `answers` it leaves every later request of a connection unanswered, and closes (or, with `reset`, resets) the
    connection instead: as a server whose keep-alive has run out meets a request that is on its way.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        keep_open: bool = False,
        answers: int | None = None,
        reset: bool = False,
        reads_body: bool = True,
    ) -> None:
        self.parts = parts
        self.requests = 0
        self.played = 0
        """Replies that were sent to their end."""
        self.connections = 0
        self.keep_open = keep_open
        self.answers = answers
        self.reset = reset
        self._reads_body = reads_body
        self._closed = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]

    @property
    def url(self) -> str:
        """The base URL, as an OpenAI client wants it."""
        return f"http://127.0.0.1:{self.port}/v1"

    def serve(self) -> None:
        """Accepts until closed."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stops accepting."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as incoming:
            for answered in itertools.count():
                if not _read_request(incoming, with_body=self._reads_body):
                    return
                self.requests += 1
                if self.answers is not None and answered >= self.answers:
                    if self.reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                self._play(connection)
                self.played += 1
                if not self._reads_body:
                    self._closed.wait(10)
                    return
                if not self.keep_open:
                    connection.shutdown(socket.SHUT_WR)
                    return

    def _play(self, connection: socket.socket) -> None:
        for part in self.parts:
            if isinstance(part, bytes):
                connection.sendall(part)
            else:
                time.sleep(part)


def _read_request(incoming: BinaryIO, *, with_body: bool) -> bool:
    length = 0
    line = first = incoming.readline()
    while line not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        line = incoming.readline()
    if with_body:
        incoming.read(length)
    return bool(first)


@contextlib.contextmanager
def raw_upstream(
    *parts: Part,
    keep_open: bool = False,
    answers: int | None = None,
    reset: bool = False,
    reads_body: bool = True,
) -> Iterator[RawUpstream]:
    """A listening RawUpstream."""
    server = RawUpstream(parts, keep_open=keep_open, answers=answers, reset=reset, reads_body=reads_body)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(2)


@contextlib.contextmanager
def never_connects() -> Iterator[str]:
    """The base URL of a port whose connections are neither accepted nor refused."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # The backlog takes a connection or two; once it is full, the kernel drops what comes.
        for _ in range(4):
            filler = waiting.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        time.sleep(0.05)
        yield f"http://127.0.0.1:{address[1]}/v1"
