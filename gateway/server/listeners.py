"""Open the sockets that the gateway listens on, or take over those that its supervisor holds open for it.

`tierline up` opens them once and hands them to each gateway that it starts, so that connections wait while a gateway
that was killed starts again, and are not refused.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Final

from gateway.config.launch import CannotServe

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
