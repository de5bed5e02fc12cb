"""Commands of ours that the gateway runs as processes."""

from __future__ import annotations

import asyncio
import sys

import pytest

from gateway.parts.rollout import own_command
from tests.support.garbage import leaving_nothing


def test_a_command_that_nobody_waits_for_any_more_leaves_no_open_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped worker or a client that leaves cancels the wait: the process is killed, waited for and closed."""
    left: list[str] = []
    ended: list[asyncio.subprocess.Process] = []

    async def wait() -> None:
        process = await own_command.start(["policy", "--help"])
        ended.append(process)
        try:
            await process.wait()
        finally:
            await own_command.end(process)

    async def main() -> None:
        waiting = asyncio.create_task(wait())
        while not ended:
            await asyncio.sleep(0.005)
        assert not waiting.done()  # and asyncio.run cancels what is left

    with leaving_nothing():
        monkeypatch.setattr(sys, "unraisablehook", lambda raised: left.append(repr(raised.exc_value)))
        asyncio.run(main())
        assert ended[0].returncode is not None
        ended.clear()
    assert left == []
