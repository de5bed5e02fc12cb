"""Define the class of a worker process, with as few imports as possible.

uvicorn's parent kills a worker that does not answer its health check within seconds. A spawned worker imports this file
before it starts the thread that answers, and the application after it; so only this file's imports must be fast.
"""

from __future__ import annotations

from uvicorn import Server
from uvicorn.supervisors.multiprocess import Process


class Worker(Process):
    """A uvicorn worker process that serves with `server.Server`."""

    def start(self) -> None:
        """Start the process. Its end then ends the pipe of the health check, so that nobody waits for an answer."""
        super().start()
        self.child_conn.close()

    @property
    def server(self) -> Server:
        """The worker process's server, created on first use."""
        from gateway.server.server import Server as OurServer

        if self._server is None:
            self._server = OurServer(self.config)
        return self._server
