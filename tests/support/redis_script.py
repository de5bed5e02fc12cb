"""A server that answers every Redis command with the same scripted bytes, after a delay: for what Valkey won't do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class ScriptedRedis:
    """`reply` answers each command; `delay_s` comes before it. Both may change while it runs."""

    def __init__(self, reply: bytes, delay_s: float = 0.0) -> None:
        self.reply = reply
        self.delay_s = delay_s
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection until it closes; commands are counted by their `*N` line."""
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                if line.startswith(b"*"):
                    for _ in range(int(line[1:])):
                        size = int((await reader.readline())[1:])
                        await reader.readexactly(size + 2)
                    await asyncio.sleep(self.delay_s)
                    writer.write(self.reply)
        writer.close()


@contextlib.asynccontextmanager
async def scripted_redis(reply: bytes, delay_s: float = 0.0) -> AsyncIterator[ScriptedRedis]:
    """A listening ScriptedRedis."""
    script = ScriptedRedis(reply, delay_s)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    try:
        yield script
    finally:
        server.close()
