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
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions as errors
from redis.asyncio.connection import AbstractConnection, ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache import resp
from cache.breaker import Breaker
from cache.deadline import Deadline
from cache.store import Append, StoreState, StoreUnavailable, Write

_SOCKET_S = 0.05
_READ_S = 0.02
"""What a request may wait for a read, and so what a probe may take: a store that always needs longer is of no use."""
_REST_S = 30.0
_BLOCKING_MARGIN_S = 1.0
_MAX_CONNECTIONS = 256
_MAX_BLOCKING = 16
_MAX_DIALLING = 16
"""A cold burst would otherwise spend its 20 ms on hundreds of handshakes at once, and open the breaker by itself."""

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (errors.MaxConnectionsError, "busy"),
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
_NOT_ITS_FAULT = frozenset({"busy", "full", "wrong_type"})
# Who answers at the old address is no longer the one to ask.
_RESOLVE_AGAIN = frozenset({"readonly", "moved"})


class RedisStore:
    """A Store on one server. Made by `from_url`; use it on one event loop, and close it."""

    def __init__(self, dial: Callable[[], AbstractConnection], where: str, clock: Callable[[], float]) -> None:
        self._where = where
        self._clock = clock
        self._breaker = Breaker(clock=clock)
        self._connections = _Connections(dial, _MAX_CONNECTIONS)
        self._blocking = _Connections(dial, _MAX_BLOCKING)
        self._probe: asyncio.Task[None] | None = None
        self._reason = ""
        self._resting_until = float("-inf")
        self.failures: Counter[str] = Counter()
        """How often each reason was given, for metrics; `open` and `full` count what was not even asked."""

    @classmethod
    def from_url(cls, url: str, *, clock: Callable[[], float] = time.monotonic) -> RedisStore:
        """The store at a redis://, rediss:// or unix:// URL, not connected yet. ValueError, without the URL, if bad."""
        try:
            options: dict[str, Any] = dict(parse_url(url))
        except ValueError:
            raise ValueError("the store's URL must be redis://, rediss:// or unix://, with a valid port") from None
        options |= {
            "socket_timeout": _SOCKET_S,
            "socket_connect_timeout": _SOCKET_S,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,  # no HELLO: a fresh connection costs no round trip
            "driver_info": None,  # nor a CLIENT SETINFO
        }
        where = str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")
        return cls(ConnectionPool(**options).make_connection, where, clock)

    def __repr__(self) -> str:
        return f"RedisStore({self._where})"

    async def get(self, key: str) -> bytes | None:
        name = key.encode()
        reply = await self._request(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name), 1, _READ_S)
        return reply[0]  # type: ignore[no-any-return]

    async def delete(self, key: str) -> None:
        await self._request(resp.command(b"DEL", key.encode()), 1, _SOCKET_S)

    async def apply(self, operations: Sequence[Write | Append]) -> None:
        if self._clock() < self._resting_until:
            raise self._unavailable("full")
        await self._request(b"".join(map(resp.operation, operations)), len(operations), _SOCKET_S)

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        end = b"+" if before is None else b"(" + before.encode()
        command = resp.command(b"XREVRANGE", stream.encode(), end, b"-", b"COUNT", b"%d" % count)
        return resp.entries((await self._request(command, 1, _SOCKET_S))[0])

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        """A read for followers: on its own connections, under its own deadline, whatever the breaker says."""
        block = (b"BLOCK", b"%d" % block_ms) if block_ms > 0 else ()
        command = resp.command(b"XREAD", b"COUNT", b"%d" % count, *block, b"STREAMS", stream.encode(), last_id.encode())
        replies = await self._exchange(self._blocking, command, 1, block_ms / 1000 + _BLOCKING_MARGIN_S)
        return resp.entries(replies[0][0][1]) if replies[0] else []

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

    async def _request(self, commands: bytes, replies: int, limit_s: float) -> list[Any]:
        """An exchange on behalf of a request: refused while the breaker is open, and counted by it."""
        if not self._breaker.closed:
            raise self._unavailable("open")
        try:
            answer = await self._exchange(self._connections, commands, replies, limit_s)
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

    async def _exchange(self, pool: _Connections, commands: bytes, replies: int, limit_s: float) -> list[Any]:
        """Writes packed commands to one connection and reads their replies, all within `limit_s` seconds."""
        connection: AbstractConnection | None = None
        answers: list[Any] = []
        keep = True
        try:
            with Deadline(limit_s):
                connection = await pool.take()
                await connection.send_packed_command(commands, check_health=False)
                while len(answers) < replies:
                    answers.append(await _reply(connection))
            for answer in answers:
                if isinstance(answer, errors.RedisError):
                    raise answer
            return answers
        except (errors.RedisError, OSError, TimeoutError) as error:
            reason = _reason_of(error, dialled=connection is not None)
            if reason in _RESOLVE_AGAIN:
                keep = False
                await pool.drop_idle()
            raise self._unavailable(reason) from None
        finally:
            if connection is not None:
                await pool.give_back(connection, clean=keep and len(answers) == replies)

    def _unavailable(self, reason: str) -> StoreUnavailable:
        self.failures[reason] += 1
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


class _Connections:
    """A bounded set of redis-py connections. One that was left in the middle of an exchange is never used again."""

    def __init__(self, dial: Callable[[], AbstractConnection], most: int) -> None:
        self._make = dial
        self._most = most
        self._count = 0
        self._idle: list[AbstractConnection] = []
        self._dialling: set[asyncio.Task[AbstractConnection]] = set()
        self._closed = False

    async def take(self) -> AbstractConnection:
        """A connected connection, for one exchange. MaxConnectionsError at once when all are in use or being made."""
        while self._idle:
            connection = self._idle.pop()
            # Unread bytes or an end of file: it is out of step, or the server has gone since.
            if connection.is_connected and not await connection.can_read():
                return connection
            await self._drop(connection)
        if self._count >= self._most or len(self._dialling) >= _MAX_DIALLING:
            raise errors.MaxConnectionsError
        self._count += 1
        return await self._wait_for(asyncio.get_running_loop().create_task(self._dial()))

    async def give_back(self, connection: AbstractConnection, *, clean: bool) -> None:
        """Ends an exchange; `clean` when every reply was read."""
        if clean and connection.is_connected and not self._closed:
            self._idle.append(connection)
        else:
            await self._drop(connection)

    async def drop_idle(self) -> None:
        """Forgets the connections at hand, so that the next ones resolve the address anew."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._drop(connection)

    async def aclose(self) -> None:
        """Closes what is idle now, and everything else as it comes back."""
        self._closed = True
        if self._dialling:
            await asyncio.wait(tuple(self._dialling))
        await self.drop_idle()

    async def _drop(self, connection: AbstractConnection) -> None:
        self._count -= 1
        await connection.disconnect(nowait=True)

    async def _dial(self) -> AbstractConnection:
        connection = self._make()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await self._drop(connection)
            raise
        # From here on one deadline spans each whole exchange; redis-py would arm two timers and a task for each.
        connection.socket_timeout = None
        return connection

    async def _wait_for(self, dialling: asyncio.Task[AbstractConnection]) -> AbstractConnection:
        """The dialled connection. Who cannot wait leaves it to the next: else a slow handshake would never end."""
        self._dialling.add(dialling)
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(self._adopt)
            raise
        finally:
            if dialling.done():
                self._dialling.discard(dialling)

    def _adopt(self, dialling: asyncio.Task[AbstractConnection]) -> None:
        self._dialling.discard(dialling)
        if not dialling.cancelled() and dialling.exception() is None:
            self._idle.append(dialling.result())


async def _reply(connection: AbstractConnection) -> Any:
    """One reply; an error the server gave is returned, so that the replies behind it are read too."""
    try:
        return await connection.read_response(disable_decoding=True)
    except errors.ResponseError as error:
        return error


def _reason_of(error: Exception, *, dialled: bool) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    if isinstance(error, errors.ConnectionError | OSError):
        if "max number of clients" in str(error):
            return "max_clients"
        return "lost" if dialled else "refused"
    return "wrong_type" if str(error).startswith("WRONGTYPE") else "error"
