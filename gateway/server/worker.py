"""A worker process, as its parent makes it. It is spawned, and so imports this file before it can say that it lives.

uvicorn's parent kills a worker that does not answer within seconds. One that is still importing the application does,
from a thread; one that is still importing its own class does not. Hence next to nothing is imported here.
"""

from __future__ import annotations

from uvicorn import Server
from uvicorn.supervisors.multiprocess import Process


class Worker(Process):
    """One of uvicorn's worker processes, stopping as a server of ours does."""

    @property
    def server(self) -> Server:
        """Made in the worker process, when it is first asked for."""
        from gateway.server.shutdown import Server as OurServer

        if self._server is None:
            self._server = OurServer(self.config)
        return self._server
