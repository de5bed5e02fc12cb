"""Ports for servers that tests start, several pytest processes beside each other."""

from __future__ import annotations

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nobody listens on and that the system gives nobody else for a minute.

    The connection made and closed here keeps it in TIME_WAIT. A server that sets SO_REUSEADDR, as all of ours do, may
    listen on it all the same; without this another pytest process could be given it before the server listens.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, 0))
        listening.listen(1)
        port = int(listening.getsockname()[1])
        with socket.create_connection((host, port)):
            accepted, _ = listening.accept()
            accepted.close()  # first, so that TIME_WAIT is at this end
    return port
