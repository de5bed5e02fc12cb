"""What is not hot is imported on its first request, while others go on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from gateway.server.app import LazyApp

SERVES = """
import sys
import gateway.server.server
assert "fastapi" not in sys.modules
from gateway.parts.routes import part
assert "fastapi" in sys.modules
"""


def test_a_gateway_starts_without_fastapi() -> None:
    """It takes 5 MB and a tenth of a second, and chats and probes need none of it."""
    subprocess.run([sys.executable, "-c", SERVES], check=True, timeout=60)


async def test_it_is_built_once_and_off_the_event_loop() -> None:
    """Requests that come meanwhile wait for the same one."""
    threads = []

    def build() -> object:
        threads.append(threading.current_thread())
        return app

    async def app(scope: object, receive: object, send: list[object]) -> None:
        send.append(scope)

    lazy, seen = LazyApp(build), []
    await asyncio.gather(*(lazy(number, None, seen) for number in range(3)))
    assert sorted(seen) == [0, 1, 2]
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


async def test_a_client_that_leaves_does_not_stop_the_building() -> None:
    """And after a failure the next request tries again."""
    may_end, tries = threading.Event(), []

    def build() -> object:
        tries.append(1)
        assert may_end.wait(10)
        if len(tries) == 1:
            raise OSError("no such file")
        return app

    async def app(scope: object, receive: object, send: object) -> None:
        return None

    lazy = LazyApp(build)
    first = asyncio.create_task(lazy({}, None, None))
    await asyncio.sleep(0)
    second = asyncio.create_task(lazy({}, None, None))
    await asyncio.sleep(0)
    first.cancel()
    may_end.set()
    with pytest.raises(OSError, match="no such file"):
        await second
    await lazy({}, None, None)
    assert len(tries) == 2
