"""The store on a Redis-protocol server: Redis or Valkey, by URL. The one file that imports redis.

redis-py dials, authenticates, speaks TLS and parses; its connections are driven directly, because its client spends
32 us of CPU on a GET of 1 KB, and a command written to a connection and read back from it 15. Every failure of any
kind leaves this file as StoreUnavailable with one of these reasons:

    timeout     no answer in time            refused      cannot be reached
    lost        the connection broke         open         not asked: the breaker is open
    busy        all our connections in use   full         out of memory; writes rest for 30 s, reads go on
    readonly    a replica, after a failover  loading, masterdown, moved, clusterdown    it is not ready
    auth        our credentials are refused  max_clients  it takes no more connections
    wrong_type  another kind of value lies under the key                 error         anything else it said
    index       it will not do what a semantic index asks for; everything else goes on
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from redis import exceptions as errors
from redis.asyncio.connection import AbstractConnection, ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache import resp
from cache.breaker import Breaker
from cache.connections import AllInUse, Connections
from cache.deadline import Deadline
from cache.index import commands as searching
from cache.store import (
    Claim,
    Command,
    Document,
    DocumentIndex,
    DocumentQuery,
    Operation,
    StoreState,
    StoreUnavailable,
    VectorAdd,
    VectorDrop,
    VectorQuery,
)

T = TypeVar("T")

_SOCKET_S = 0.05
_READ_S = 0.02
"""What a request may wait for a read, and so what a probe may take: a store that always needs longer is of no use."""
_WRITE_S = 0.25
"""What a write may take: nobody waits for one, and a busy event loop is no reason to lose a record."""
_REST_S = 30.0
_BLOCKING_MARGIN_S = 1.0
_MAX_CONNECTIONS = 256
_MAX_BLOCKING = 16

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (AllInUse, "busy"),
    (errors.OutOfMemoryError, "full"),
    (errors.ReadOnlyError, "readonly"),
    (errors.MasterDownError, "masterdown"),
    (errors.BusyLoadingError, "loading"),
    (errors.AuthenticationError, "auth"),
    (errors.AuthorizationError, "auth"),
    (errors.NoPermissionError, "auth"),
    (errors.AuthenticationWrongNumberOfArgsError, "auth"),
    (errors.ClusterDownError, "clusterdown"),
    (errors.AskError, "moved"),
    (errors.TimeoutError, "timeout"),
    (TimeoutError, "timeout"),
)
# What says nothing of the server's health: our own limit, a full memory (reads go on), one odd key.
_NOT_ITS_FAULT = frozenset({"busy", "full", "wrong_type", "index"})
# What a server says to commands that it does not have, or does not let us use: that of an index is done without.
_OF_AN_INDEX = frozenset({"error", "wrong_type", "auth"})
# Who answers at the old address is no longer the one to ask.
_RESOLVE_AGAIN = frozenset({"readonly", "moved"})


class RedisStore:
    """A Store on one server. Made by `from_url`; use it on one event loop, and close it."""

    def __init__(self, dial: Callable[[], AbstractConnection], where: str, clock: Callable[[], float]) -> None:
        self._where = where
        self._clock = clock
        self._breaker = Breaker(clock=clock)
        self._connections = Connections(dial, _MAX_CONNECTIONS)
        self._blocking = Connections(dial, _MAX_BLOCKING)
        self._probe: asyncio.Task[None] | None = None
        self._reason = ""
        self._resting_until = float("-inf")

    @classmethod
    def from_url(cls, url: str, *, clock: Callable[[], float] = time.monotonic) -> RedisStore:
        """The store at a redis://, rediss:// or unix:// URL, not connected yet. ValueError, without the URL, if bad."""
        try:
            options: dict[str, Any] = {**parse_url(url), **_limits()}
            dial = ConnectionPool(**options).make_connection
            dial()  # type: ignore[no-untyped-call]  # not connected yet, but an option that no connection knows is found out here
        except (ValueError, TypeError, errors.RedisError):
            raise ValueError(
                "the store's URL must be redis://, rediss:// or unix://, with a valid port and known options"
            ) from None
        where = str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")
        return cls(dial, where, clock)

    def __repr__(self) -> str:
        return f"RedisStore({self._where})"

    async def get(self, key: str) -> bytes | None:
        name = key.encode()
        (value,) = await self._request(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name), 1, _READ_S)
        if value is None or isinstance(value, bytes):
            return value
        raise self._unavailable("error")

    async def delete(self, key: str) -> None:
        await self._request(resp.command(b"DEL", key.encode()), 1, _SOCKET_S)

    async def apply(self, operations: Sequence[Operation]) -> None:
        if self._clock() < self._resting_until:
            raise self._unavailable("full")
        commands: list[bytes] = []
        optional: set[int] = set()
        for operation in operations:
            if isinstance(operation, VectorAdd | VectorDrop | Document):
                packed = searching.operation(operation)
                optional.update(range(len(commands), len(commands) + len(packed)))
                commands += packed
            else:
                commands.append(resp.operation(operation))
        answers = await self._request(b"".join(commands), len(commands), _WRITE_S, optional)
        if optional:
            self._unrefused(answers)

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        packed = b"".join(map(resp.operation, commands))
        return await self._request(packed, len(commands), _READ_S if limit_s is None else limit_s)

    async def commands(self, names: Sequence[str]) -> frozenset[str]:
        """Asked by nobody's request: in its own time, whatever the breaker says, and not counted by it."""
        command = resp.command(b"COMMAND", b"INFO", *map(str.encode, names))
        (reply,) = self._unrefused(await self._exchange(self._connections, command, 1, _WRITE_S, {0}))
        return self._read(partial(searching.known, names), reply)

    async def similar(self, query: VectorQuery) -> list[tuple[bytes, float]]:
        return self._read(searching.similar, await self._asked(searching.vector_query(query), _READ_S))

    async def define(self, index: DocumentIndex) -> None:
        try:
            await self._asked(searching.document_index(index), _WRITE_S)
        except StoreUnavailable as error:
            if "already exists" not in str(error):
                raise

    async def matching(self, query: DocumentQuery) -> list[tuple[Mapping[bytes, bytes], float]]:
        return self._read(searching.documents, await self._asked(searching.document_query(query), _READ_S))

    async def _asked(self, command: bytes, limit_s: float) -> Any:
        """The reply to one command of an index."""
        return self._unrefused(await self._request(command, 1, limit_s, {0}))[0]

    def _unrefused(self, answers: list[Any]) -> list[Any]:
        refused = next((answer for answer in answers if isinstance(answer, errors.RedisError)), None)
        if refused is not None:
            raise StoreUnavailable("index", f"{self._where}: {refused}")
        return answers

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        end = b"+" if before is None else b"(" + before.encode()
        command = resp.command(b"XREVRANGE", stream.encode(), end, b"-", b"COUNT", b"%d" % count)
        (reply,) = await self._request(command, 1, _SOCKET_S)
        return self._entries(reply)

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        """A read for followers: on its own connections, under its own deadline, whatever the breaker says."""
        block = (b"BLOCK", b"%d" % block_ms) if block_ms > 0 else ()
        command = resp.command(b"XREAD", b"COUNT", b"%d" % count, *block, b"STREAMS", stream.encode(), last_id.encode())
        (reply,) = await self._exchange(self._blocking, command, 1, block_ms / 1000 + _BLOCKING_MARGIN_S)
        return self._entries(reply, of_stream=stream.encode())

    async def claim(self, lease: str, holder: bytes, ttl_s: float, beside: str) -> Claim:
        (mine, found, written) = await self._request(
            resp.claim(lease.encode(), holder, ttl_s, beside.encode()), 3, _SOCKET_S
        )
        if mine is not None or not isinstance(found, bytes):
            found = holder
        return Claim(found, written == 1)

    async def renew(self, lease: str, holder: bytes, ttl_s: float) -> None:
        await self._request(resp.prolong(lease.encode(), holder, ttl_s), 1, _WRITE_S)

    async def release(self, leases: Sequence[tuple[str, bytes]]) -> None:
        commands = b"".join(resp.let_go(lease.encode(), holder) for lease, holder in leases)
        await self._request(commands, len(leases), _WRITE_S)

    async def publish(self, stream: str, values: Sequence[bytes], ttl_s: float) -> None:
        await self._request(resp.publication(stream.encode(), values, ttl_s), len(values) + 1, _WRITE_S)

    async def ping(self) -> None:
        """A health check. It alone decides: a failure opens the breaker at once, an answer closes it."""
        try:
            await self._exchange(self._connections, resp.command(b"PING"), 1, _READ_S)
        except StoreUnavailable as error:
            self._reason = error.reason
            self._breaker.trip()
            self._watch()
            raise
        self._breaker.reset()

    def state(self) -> StoreState:
        if not self._breaker.closed:
            return StoreState("degraded", self._reason)
        if self._clock() < self._resting_until:
            return StoreState("degraded", "full")
        return StoreState("ok")

    async def aclose(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        await self._connections.aclose()
        await self._blocking.aclose()

    async def _request(self, commands: bytes, replies: int, limit_s: float, optional: Container[int] = ()) -> list[Any]:
        """An exchange on behalf of a request: refused while the breaker is open, and counted by it."""
        if not self._breaker.closed:
            raise self._unavailable("open")
        try:
            answer = await self._exchange(self._connections, commands, replies, limit_s, optional)
        except StoreUnavailable as error:
            self._count(error.reason)
            raise
        self._breaker.succeeded()
        return answer

    def _count(self, reason: str) -> None:
        if reason == "full":
            self._resting_until = self._clock() + _REST_S
        if reason in _NOT_ITS_FAULT:
            return
        self._reason = reason
        self._breaker.failed()
        if not self._breaker.closed:
            self._watch()

    async def _exchange(
        self,
        pool: Connections[AbstractConnection],
        commands: bytes,
        replies: int,
        limit_s: float,
        optional: Container[int] = (),
    ) -> list[Any]:
        """Writes packed commands to one connection and reads their replies, all within `limit_s` seconds.

        An error is raised, but where a refusal is `optional` it is an answer like any other.
        """
        connection: AbstractConnection | None = None
        answers: list[Any] = []
        keep = True
        try:
            with Deadline(limit_s):
                connection = await pool.take()
                await connection.send_packed_command(commands, check_health=False)
                while len(answers) < replies:
                    answers.append(await _reply(connection))
            for place, answer in enumerate(answers):
                if isinstance(answer, errors.RedisError) and not (place in optional and _is_of_an_index(answer)):
                    raise answer
            return answers
        except (AllInUse, errors.RedisError, OSError, TimeoutError) as error:
            reason = _reason_of(error, dialled=connection is not None)
            if reason in _RESOLVE_AGAIN:
                keep = False
                await pool.drop_idle()
            raise self._unavailable(reason) from None
        finally:
            if connection is not None:
                await pool.give_back(connection, clean=keep and len(answers) == replies)

    def _entries(self, reply: Any, of_stream: bytes = b"") -> list[tuple[str, bytes]]:
        return self._read(lambda reply: resp.entries(resp.part_of(reply, of_stream) if of_stream else reply), reply)

    def _read(self, unpack: Callable[[Any], T], reply: Any) -> T:
        try:
            return unpack(reply)
        except (TypeError, ValueError, LookupError, AttributeError):
            raise self._unavailable("error") from None

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(reason, self._where)

    def _watch(self) -> None:
        """Sees to it that one task, and no more, probes until the store answers again."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.get_running_loop().create_task(self._probe_until_closed(), name="store-probe")

    async def _probe_until_closed(self) -> None:
        while not self._breaker.closed:
            # Workers that lost the same store do not all come back to it in the same instant.
            await asyncio.sleep(self._breaker.wait_s() + random.uniform(0, 0.1))  # noqa: S311
            if self._breaker.begin_probe():
                try:
                    await self.ping()
                except StoreUnavailable:
                    continue


def _limits() -> dict[str, Any]:
    return {
        "socket_timeout": _SOCKET_S,
        "socket_connect_timeout": _SOCKET_S,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # no HELLO: a fresh connection costs no round trip
        "driver_info": None,  # nor a CLIENT SETINFO
    }


async def _reply(connection: AbstractConnection) -> Any:
    """One reply; an error the server gave is returned, so that the replies behind it are read too."""
    try:
        return await connection.read_response(disable_decoding=True)
    except errors.ResponseError as error:
        return error


def _is_of_an_index(error: errors.RedisError) -> bool:
    return _reason_of(error, dialled=True) in _OF_AN_INDEX


def _reason_of(error: Exception, *, dialled: bool) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    if isinstance(error, errors.ConnectionError | OSError):
        if "max number of clients" in str(error):
            return "max_clients"
        return "lost" if dialled else "refused"
    return "wrong_type" if str(error).startswith("WRONGTYPE") else "error"
