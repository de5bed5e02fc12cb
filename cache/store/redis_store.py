"""Implement the store on a Redis-protocol server given by URL: Redis or Valkey.

redis_store   the operations of `cache.store.base`, as commands, and the meaning of their replies
redis_nodes   what URLs there are, opening connections, and the only server; clusters and Sentinels are handed in
redis_node    one server: connections, deadlines, the breaker, and the reasons of StoreUnavailable
resp          the commands, packed by hand, and their replies
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from cache.store import resp
from cache.store.base import (
    Append,
    Claim,
    Command,
    Look,
    Operation,
    Release,
    StoreMemory,
    StoreState,
    StoreUnavailable,
)
from cache.store.redis_node import READ_S, Moved, is_refusal
from cache.store.redis_nodes import NodeCommand, Nodes, SeveralServers, node_command, nodes_at
from policies.value_type import from_fields

T = TypeVar("T")

_SHORT_S = 0.05
"""Time limit of a deletion, a claim, and a look at a stream's newest entries."""
_WRITE_S = 0.25
"""Time limit of a write: no request waits for it, and a busy event loop must not lose a record."""
_BLOCKING_MARGIN_S = 1.0


class RedisStore:
    """A Store on one server or a cluster. Create it with `from_url`; use it on one event loop, and close it."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        slack: float = 1.0,
        several: SeveralServers | None = None,
        lacking: str = "nothing here reaches a store of several servers",
    ) -> RedisStore:
        """Create the store at a URL of those in `redis_nodes`, not connected yet.

        Any node of a cluster will do. Each time limit is `slack` times as long. Without `several` a store of several
        servers is refused, with `lacking`. Raises ValueError, without the URL, if it is invalid.
        """
        return cls(nodes_at(url, clock, slack, several, lacking))

    def __repr__(self) -> str:
        return f"RedisStore({self.where})"

    @property
    def where(self) -> str:
        """Address in the URL, without credentials: HOST:PORT, a path, or MASTER of the Sentinels' addresses."""
        return self._nodes.where

    async def get(self, key: str) -> bytes | None:
        nodes, name = self._nodes, key.encode()
        command = b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name)
        (value,) = await (nodes.first if nodes.slots is None else nodes.of(name)).request(command, 1, READ_S)
        if type(value) is Moved:
            value = await nodes.followed(NodeCommand(name, command), value, READ_S)
        if value is None or isinstance(value, bytes):
            return value
        raise self._unavailable("error")

    async def look(self, key: str, lease: str, holder: bytes, ttl_s: float) -> Look:
        nodes, name = self._nodes, key.encode()
        command = resp.look(name, lease.encode(), holder, ttl_s)
        (reply,) = await (nodes.first if nodes.slots is None else nodes.of(name)).request(command, 1, READ_S)
        if type(reply) is Moved:
            reply = await nodes.followed(NodeCommand(name, command), reply, READ_S)
        if type(reply) is list and len(reply) == 2 and _BYTES_OR_NIL.issuperset(map(type, reply)):
            return _look(tuple(reply))
        raise self._unavailable("error")

    async def delete(self, key: str) -> None:
        name = key.encode()
        await self._nodes.one(NodeCommand(name, resp.command(b"DEL", name)), _SHORT_S)

    async def apply(self, operations: Sequence[Operation]) -> None:
        single = self._nodes.slots is None
        writes: list[NodeCommand] = []
        releases: list[NodeCommand] = []
        appends: list[NodeCommand] = []
        for operation in operations:
            kind = appends if isinstance(operation, Append) else releases if isinstance(operation, Release) else writes
            packed = resp.command(*operation.words) if isinstance(operation, Command) else resp.operation(operation)
            optional = isinstance(operation, Command) and operation.optional
            kind.append(node_command((b"" if single else resp.key_of(operation), packed, optional)))
        nodes = self._nodes.owners((*writes, *appends))
        if rest := next((node.rest for node in nodes if node.rest), ""):
            raise self._unavailable(rest)
        if self._nodes.slots is not None and writes and appends:
            # Nodes differ in speed: an entry must be readable before a stream announces it.
            answers = await self._nodes.all([*writes, *releases], _WRITE_S) + await self._nodes.all(appends, _WRITE_S)
        else:
            answers = await self._nodes.all([*writes, *releases, *appends], _WRITE_S)
        for node in nodes:
            node.wrote()
        self._unrefused(answers)

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        single = self._nodes.slots is None
        parts: list[NodeCommand] = []
        for command in commands:
            key = b"" if single else resp.key_of(command)
            parts.append(node_command((key, resp.command(*command.words), command.optional)))
        return await self._nodes.all(parts, READ_S if limit_s is None else limit_s)

    async def commands(self, names: Sequence[str]) -> frozenset[str]:
        """Return those of the named commands that the server supports; independent of the breaker."""
        command = resp.command(b"COMMAND", b"INFO", *map(str.encode, names))
        (reply,) = self._unrefused(await self._nodes.any().uncounted(command, 1, _WRITE_S, {0}))
        return self._read(partial(resp.known, names), reply)

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        end = b"+" if before is None else b"(" + before.encode()
        name = stream.encode()
        command = resp.command(b"XREVRANGE", name, end, b"-", b"COUNT", b"%d" % count)
        return self._read(resp.entries, await self._nodes.one(NodeCommand(name, command), _SHORT_S))

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        """Return stream entries for followers: on separate connections with their own deadline, despite the breaker."""
        block = (b"BLOCK", b"%d" % block_ms) if block_ms > 0 else ()
        name = stream.encode()
        command = resp.command(b"XREAD", b"COUNT", b"%d" % count, *block, b"STREAMS", name, last_id.encode())
        reply = await self._nodes.blocking(NodeCommand(name, command), block_ms / 1000 + _BLOCKING_MARGIN_S)
        return self._read(lambda reply: resp.entries(resp.part_of(reply, name)), reply)

    async def claim(self, lease: str, holder: bytes, ttl_s: float, beside: str) -> Claim:
        name = lease.encode()
        commands = resp.claim(name, holder, ttl_s, beside.encode())
        taken, current, written = await self._nodes.all([NodeCommand(name, command) for command in commands], _SHORT_S)
        if taken is not None or not isinstance(current, bytes):
            current = holder
        return Claim(current, written == 1)

    async def ping(self) -> None:
        """Check the server's health: a failure opens the breaker at once, a success closes it."""
        await self._nodes.ping()

    async def memory(self) -> StoreMemory:
        replies = await self._nodes.each(resp.MEMORY, 2, _WRITE_S)
        return self._read(resp.memory, replies)

    def state(self) -> StoreState:
        return self._nodes.state()

    async def aclose(self) -> None:
        await self._nodes.aclose()

    def _unrefused(self, answers: list[Any]) -> list[Any]:
        for answer in answers:
            if isinstance(answer, Exception) and is_refusal(answer):
                raise StoreUnavailable("index", f"{self._nodes.where}: {answer}")
        return answers

    def _read(self, unpack: Callable[[Any], T], reply: Any) -> T:
        try:
            return unpack(reply)
        except (TypeError, ValueError, LookupError, AttributeError):
            raise self._unavailable("error") from None

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(reason, self._nodes.where)


_BYTES_OR_NIL = frozenset({bytes, type(None)})
_look = from_fields(Look)
