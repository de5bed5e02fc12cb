"""Define a worker process: a spawned one imports this file, and what it imports, before it answers its supervisor.

The application, which takes longer, is imported after that.
"""

from __future__ import annotations

from uvicorn.supervisors.multiprocess import Process

from gateway.server.process import Server


class Worker(Process):
    """A uvicorn worker process that serves with `gateway.server.process.Server`."""

    def start(self) -> None:
        """Start the process. Its end then ends the pipe of the health check, so that nobody waits for an answer."""
        super().start()
        self.child_conn.close()

    @property
    def server(self) -> Server:
        """The worker process's server, created on first use."""
        if self._server is None:
            self._server = Server(self.config)
        assert isinstance(self._server, Server)  # noqa: S101  (nobody else makes one)
        return self._server
