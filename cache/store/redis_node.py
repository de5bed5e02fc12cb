"""One server of the Redis protocol: its connections, its breaker, and what its errors are called. Only here is redis.

redis-py dials, authenticates, speaks TLS and parses; its connections are driven directly, because its client spends
32 us of CPU on a GET of 1 KB, and a command written to a connection and read back from it 15. Every failure of any
kind leaves this file as StoreUnavailable with one of these reasons:

    timeout     no answer in time            refused      cannot be reached
    lost        the connection broke         open         not asked: the breaker is open
    busy        all our connections in use   full         out of memory; writes rest for 30 s, reads go on
    readonly    a replica, after a failover  loading, masterdown, clusterdown    it is not ready
    disk        it cannot save to its disk; likewise
    auth        our credentials are refused  max_clients  it takes no more connections
    wrong_type  another kind of value lies under the key                 error         anything else it said
    index       it will not do what a semantic index asks for; everything else goes on

What a node of a cluster says of keys that are another's is no failure but an answer, `Moved`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from redis import exceptions as errors
from redis.asyncio.connection import AbstractConnection, ConnectionPool, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache.store import resp
from cache.store.base import StoreState, StoreUnavailable
from cache.store.breaker import StoreBreaker
from cache.store.connections import MAX_BLOCKING, MAX_CONNECTIONS, AllInUse, WirePool
from cache.store.deadline import Deadline

SOCKET_S = 0.05
READ_S = 0.02
"""What a request may wait for a read, and so what a probe may take: a store that always needs longer is of no use."""
_REST_S = 30.0

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
    (errors.TryAgainError, "moved"),
    (errors.TimeoutError, "timeout"),
    (TimeoutError, "timeout"),
)
# It takes no writes, and reads go on.
_REFUSES_WRITES = frozenset({"full", "disk"})
# What says nothing of the server's health: our own limit, writes alone refused, one odd key, a slot on its way.
_NOT_ITS_FAULT = _REFUSES_WRITES | {"busy", "wrong_type", "index", "moved"}
# What a server says to commands that it does not have, or does not let us use: that of an index is done without.
_OF_AN_INDEX = frozenset({"error", "wrong_type", "auth"})
_NONE: Container[int] = ()


@dataclass(frozen=True, slots=True)
class Moved:
    """The answer to a command whose key is another node's: for good, or, `asking`, for this once."""

    slot: int
    host: str
    """'' is the host of the node that said so."""
    port: int
    asking: bool


class Node:
    """See above. `on_trouble` hears of every failure that says something of the server. For one event loop."""

    def __init__(
        self,
        dial: Callable[[], AbstractConnection],
        where: str,
        clock: Callable[[], float],
        on_trouble: Callable[[], None],
    ) -> None:
        self.where = where
        self._clock = clock
        self._on_trouble = on_trouble
        self._breaker = StoreBreaker(clock=clock)
        self._connections = WirePool(dial, MAX_CONNECTIONS)
        self._blocking = WirePool(dial, MAX_BLOCKING)
        self._probe: asyncio.Task[None] | None = None
        self._reason = ""
        self._refuses_writes = ""
        self._resting_until = float("-inf")
        self._closed = False

    @property
    def rest(self) -> str:
        """Why it is given no writes for now: it refused the last one, less than 30 s ago; '' where it is given them."""
        return self._refuses_writes if self._clock() < self._resting_until else ""

    def wrote(self) -> None:
        """Notes that it has carried out a write: whatever it refused before, it takes them again."""
        self._refuses_writes = ""

    async def request(
        self, commands: bytes, replies: int, limit_s: float, optional: Container[int] = _NONE
    ) -> list[Any]:
        """An exchange on behalf of a request: refused while the breaker is open, and counted by it."""
        if not self._breaker.closed:
            raise self.unavailable("open")
        try:
            answer = await self._exchange(self._connections, commands, replies, limit_s, optional)
        except StoreUnavailable as error:
            self._count(error.reason)
            raise
        self._breaker.succeeded()
        return answer

    async def uncounted(
        self, commands: bytes, replies: int, limit_s: float, optional: Container[int] = _NONE
    ) -> list[Any]:
        """An exchange that is nobody's request: whatever the breaker says, and not counted by it."""
        return await self._exchange(self._connections, commands, replies, limit_s, optional)

    async def blocking(self, command: bytes, limit_s: float) -> Any:
        """The reply to a command that may wait: on connections of its own, and not counted by the breaker."""
        return (await self._exchange(self._blocking, command, 1, limit_s))[0]

    async def ping(self) -> None:
        """A health check. It alone decides: a failure opens the breaker at once, an answer closes it."""
        try:
            await self.uncounted(resp.command(b"PING"), 1, READ_S)
        except StoreUnavailable as error:
            if error.reason in _REFUSES_WRITES:  # it answers: a server that cannot save refuses PING like a write
                self._refuse_writes(error.reason)
            else:
                self._reason = error.reason
                self._breaker.trip()
                self._watch()
                self._on_trouble()
                raise
        self._breaker.reset()

    def state(self) -> StoreState:
        """How it is."""
        if not self._breaker.closed:
            return StoreState("degraded", self._reason)
        return StoreState("degraded", self._refuses_writes) if self._refuses_writes else StoreState("ok")

    async def aclose(self) -> None:
        """Closes what is idle now, and everything else as it comes back."""
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        await self._connections.aclose()
        await self._blocking.aclose()

    def unavailable(self, reason: str) -> StoreUnavailable:
        """A failure of this server."""
        return StoreUnavailable(reason, self.where)

    def _count(self, reason: str) -> None:
        if reason in _REFUSES_WRITES:
            self._refuse_writes(reason)
        if reason in _NOT_ITS_FAULT:
            return
        self._reason = reason
        self._breaker.failed()
        self._on_trouble()
        if not self._breaker.closed:
            self._watch()

    def _refuse_writes(self, reason: str) -> None:
        self._refuses_writes = reason
        self._resting_until = self._clock() + _REST_S

    async def _exchange(
        self,
        pool: WirePool[AbstractConnection],
        commands: bytes,
        replies: int,
        limit_s: float,
        optional: Container[int] = _NONE,
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
        except (AllInUse, errors.RedisError, OSError, TimeoutError, ValueError) as error:
            reason = _reason_of(error, dialled=connection is not None)
            if reason == "readonly":
                # Who answers at the old address is no longer the one to ask.
                keep = False
                await pool.drop_idle()
            raise self.unavailable(reason) from None
        finally:
            if connection is not None:
                await pool.give_back(connection, clean=keep and len(answers) == replies)

    def _watch(self) -> None:
        """Sees to it that one task, and no more, probes until the server answers again."""
        if not self._closed and (self._probe is None or self._probe.done()):
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


class Dialler:
    """Makes nodes: that of a redis://, rediss:// or unix:// URL, and others with the same credentials and options."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """ValueError, without the URL, which may hold a password, if it is bad."""
        self._clock = clock
        try:
            self._options: dict[str, Any] = {**parse_url(url), **_limits()}
            ConnectionPool(**self._options).make_connection()  # type: ignore[no-untyped-call]  # finds unknown options
        except (ValueError, TypeError, errors.RedisError):
            raise ValueError(
                "the store's URL must be redis://, rediss:// or unix://, with a valid port and known options"
            ) from None

    def first(self, on_trouble: Callable[[], None]) -> Node:
        """The node that the URL names, not connected yet."""
        options = self._options
        where = str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")
        return Node(ConnectionPool(**options).make_connection, where, self._clock, on_trouble)

    def at(self, host: str, port: int, on_trouble: Callable[[], None]) -> Node:
        """Another node of the same cluster."""
        options = {**self._options, "host": host, "port": port}
        if options.get("connection_class") is UnixDomainSocketConnection:
            del options["connection_class"], options["path"]
        return Node(ConnectionPool(**options).make_connection, f"{host}:{port}", self._clock, on_trouble)


def is_refusal(answer: Any) -> bool:
    """Whether the answer to an optional command is an error."""
    return isinstance(answer, errors.RedisError)


def _limits() -> dict[str, Any]:
    return {
        "socket_timeout": SOCKET_S,
        "socket_connect_timeout": SOCKET_S,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # no HELLO: a fresh connection costs no round trip
        "driver_info": None,  # nor a CLIENT SETINFO
    }


async def _reply(connection: AbstractConnection) -> Any:
    """One reply; an error the server gave is returned, so that the replies behind it are read too."""
    try:
        return await connection.read_response(disable_decoding=True)
    except errors.AskError as error:
        return Moved(error.slot_id, error.host, error.port, asking=not isinstance(error, errors.MovedError))
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
    said = str(error)
    return "disk" if said.startswith("MISCONF") else "wrong_type" if said.startswith("WRONGTYPE") else "error"
