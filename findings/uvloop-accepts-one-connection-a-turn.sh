#!/usr/bin/env bash
# A server on uvloop takes one waiting connection in each turn of its event loop, where asyncio's own loop takes all that
# wait, up to the backlog. Where a turn takes milliseconds, as in a busy server, the last of many clients that connect at
# once waits for as many turns before anything is read from it: a tail that no profile of requests shows.
# Seen with: uvloop 0.23.0, CPython 3.11, x86-64 Linux.
# Output seen: 64 connections that wait, turns of 2 ms: taken in 1 turns by asyncio, in 64 by uvloop.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check uvloop==0.23.0
"$folder/venv/bin/python" - <<'PY'
import asyncio, socket, time
import uvloop

CLIENTS, TURN_S = 64, 0.002


async def taken_within() -> int:
    """Return the number of turns of the event loop until the last of the waiting connections is there."""
    loop, turn, made = asyncio.get_running_loop(), 0, []

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(turn)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        time.sleep(TURN_S)  # what a busy server does in a turn
        loop.call_soon(next_turn)

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        clients = [socket.create_connection(listening.getsockname()) for _ in range(CLIENTS)]
        server = await loop.create_server(Taken, sock=listening.dup(), backlog=128)
        next_turn()
        while len(made) < CLIENTS:
            await asyncio.sleep(TURN_S)
        server.close()
        for client in clients:
            client.close()
    return made[-1] - made[0] + 1


standard, fast = asyncio.run(taken_within()), uvloop.run(taken_within())
print(f"{CLIENTS} connections that wait, turns of {TURN_S * 1000:.0f} ms: taken in {standard} turns by asyncio, in {fast} by uvloop")
assert standard <= 4 and fast >= CLIENTS - 4, "the behaviour has changed"
print("as described")
PY
