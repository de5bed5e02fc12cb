"""Open the sockets that the gateway listens on, or take over those that its supervisor holds open, and accept.

`tierline up` opens them once and hands them to each gateway that it starts, so that connections wait while a gateway
that was killed starts again, and are not refused.

Many connections are accepted in one turn of the event loop; uvloop accepts one. A turn answers what has arrived on all
open connections, so it takes long under load, and each new connection would wait for as many turns as there are before
it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

from gateway.config.launch import CannotServe

log = logging.getLogger("tierline.connections")

_AT_ONCE: Final = 64
"""Most connections accepted in one turn, in some 8 ms; those that are open must not wait for longer."""
_FULL: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_S: Final = 0.01
"""Time until the next try when the system has no descriptor or no memory for a connection."""
_SAY_EVERY_S: Final = 10.0

# Linux' struct tcp_info: of a listening socket, tcpi_unacked is the number of connections that wait to be accepted.
_UNACKED: Final = Struct("24x I")
BACKLOG: Final = 2048
_HANDED: Final = "TIERLINE_LISTENERS"
"""Environment variable with the descriptors of the sockets handed over: a JSON object, by `HOST:PORT`."""

Address = tuple[str, int]
"""Host and port, as configured."""


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError if the address cannot be bound."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, proto, _, address = addresses[0]
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def handing_over(listeners: Mapping[Address, socket.socket]) -> dict[str, str]:
    """Return the variables by which a child process, given the descriptors, finds these sockets."""
    named = {f"{host}:{port}": listening.fileno() for (host, port), listening in listeners.items()}
    return {_HANDED: json.dumps(named)} if named else {}


def listen(*addresses: Address) -> list[socket.socket]:
    """Return a listening socket for each address: the one handed over, or else a new one; for one call per process.

    Raises CannotServe if an address cannot be bound.
    """
    handed = json.loads(os.environ.pop(_HANDED, "{}"))
    listening = []
    for host, port in addresses:
        descriptor = handed.get(f"{host}:{port}")
        try:
            listening.append(bound(host, port) if descriptor is None else socket.socket(fileno=descriptor))
        except OSError as error:
            raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listening


class Listener:
    """Accept connections, until closed. As uvicorn's server of a socket it has `close` and `wait_closed`."""

    def __init__(self, listening: socket.socket, protocol_of: Callable[[socket.socket], asyncio.Protocol]) -> None:
        """Accept from `listening`, which stays the caller's to close; `protocol_of` makes a connection's protocol."""
        self._listening = listening
        self._protocol_of = protocol_of
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._say_at = 0.0
        listening.setblocking(False)
        self._resume()

    def waiting(self) -> int:
        """Return how many connections wait to be accepted, by this process or another; 0 where that is not known."""
        if not hasattr(socket, "TCP_INFO") or self._listening.fileno() < 0:
            return 0
        info = self._listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED.size)
        return int(_UNACKED.unpack(info)[0])

    def close(self) -> None:
        """Accept no more connections."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """Wait until the protocols of all accepted connections have their transports."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _FULL:
                    self._wait(error)
                    return
                continue  # the connection ended while it waited
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        protocol = self._protocol_of(connection)
        await self._loop.connect_accepted_socket(lambda: protocol, connection)

    def _wait(self, error: OSError) -> None:
        """Accept nothing for a moment: descriptors of connections that are closed now are free in the next turn."""
        now = self._loop.time()
        if now >= self._say_at:
            log.warning("cannot accept connections: %s; they wait, and are tried again", error.strerror)
            self._say_at = now + _SAY_EVERY_S
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(_PAUSE_S, self._resume)
