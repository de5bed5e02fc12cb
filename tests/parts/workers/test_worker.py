"""The worker process as its supervisor sees it."""

from __future__ import annotations

import os
import time
from socket import socket

import uvicorn

from gateway.parts.workers.worker import Worker


class _EndsAsked(Worker):
    """A worker that ends while its supervisor waits for the answer to a health check."""

    def target(self, sockets: list[socket] | None = None) -> None:
        self.child_conn.recv()
        os._exit(3)


def test_the_end_of_a_worker_is_noticed_at_once() -> None:
    """And not when the time for its answer is over: until then nobody would take its place, or stop the gateway."""
    worker = _EndsAsked(uvicorn.Config("gateway.parts.workers.supervisor:worker", log_config=None), [])
    worker.start()
    began = time.monotonic()
    assert not worker.is_alive(timeout=60)
    assert time.monotonic() - began < 50
    worker.join()
    assert worker.exitcode == 3
