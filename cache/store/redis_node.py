"""Talk to one Redis-protocol server: connections, breaker, and error reasons. Only this module imports redis-py.

redis-py connects, authenticates, speaks TLS and parses. Its connections are used directly, because its client takes
32 us of CPU for a GET of 1 KB, and writing to a connection and reading from it takes 15. Every failure is raised as
StoreUnavailable with one of these reasons:

    timeout     no answer in time            refused      cannot be reached
    lost        the connection broke         open         not sent: the breaker is open
    busy        all connections in use       full         out of memory; no writes for 30 s, reads continue
    readonly    a replica, after a failover  loading, masterdown, clusterdown    it is not ready
    disk        it cannot save to its disk; otherwise like `full`
    auth        credentials refused          max_clients  it accepts no more connections
    wrong_type  the key has a value of another kind          error         any other error reply
    index       it refuses an operation of a semantic index; everything else continues

A cluster node's redirection for another node's keys is no failure but a reply, `Moved`.
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
"""Time limit of a request's read, and so of a probe: a store that is always slower is of no use."""
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
# It refuses writes, while reads continue.
_REFUSES_WRITES = frozenset({"full", "disk"})
# Reasons that do not indicate a fault of the server: our own limit, writes alone refused, one odd key, a moving slot.
_NOT_ITS_FAULT = _REFUSES_WRITES | {"busy", "wrong_type", "index", "moved"}
# Replies to commands that are unsupported or not permitted: an optional index operation may fail with these.
_OF_AN_INDEX = frozenset({"error", "wrong_type", "auth"})
_NONE: Container[int] = ()


@dataclass(frozen=True, slots=True)
class Moved:
    """The redirection of a command to another node: permanent, or with `asking` for this command only."""

    slot: int
    host: str
    """'' means the host of the node that replied."""
    port: int
    asking: bool


class Node:
    """One server. `on_trouble` is called for every failure that may be the server's. For one event loop."""

    def __init__(
        self,
        dial: Callable[[], AbstractConnection],
        where: str,
        clock: Callable[[], float],
        on_trouble: Callable[[], None],
        slack: float = 1.0,
    ) -> None:
        self.where = where
        self._clock = clock
        self._on_trouble = on_trouble
        self._slack = slack
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
        """Why it gets no writes now: the reason it refused one less than 30 s ago; '' if it does get them."""
        return self._refuses_writes if self._clock() < self._resting_until else ""

    def wrote(self) -> None:
        """Record a successful write: it accepts writes again."""
        self._refuses_writes = ""

    async def request(
        self, commands: bytes, replies: int, limit_s: float, optional: Container[int] = _NONE
    ) -> list[Any]:
        """Execute a request's commands: refused while the breaker is open, and counted by it."""
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
        """Execute commands that belong to no request: allowed by an open breaker, and not counted by it."""
        return await self._exchange(self._connections, commands, replies, limit_s, optional)

    async def blocking(self, command: bytes, limit_s: float) -> Any:
        """Return the reply to a blocking command: on separate connections, and not counted by the breaker."""
        return (await self._exchange(self._blocking, command, 1, limit_s))[0]

    async def ping(self) -> None:
        """Check the server's health: a failure opens the breaker at once, a success closes it."""
        try:
            await self.uncounted(resp.command(b"PING"), 1, READ_S)
        except StoreUnavailable as error:
            if error.reason in _REFUSES_WRITES:  # it is alive: a server that cannot save refuses PING like a write
                self._refuse_writes(error.reason)
            else:
                self._reason = error.reason
                self._breaker.trip()
                self._watch()
                self._on_trouble()
                raise
        self._breaker.reset()

    def state(self) -> StoreState:
        """Return the server's state."""
        if not self._breaker.closed:
            return StoreState("degraded", self._reason)
        return StoreState("degraded", self._refuses_writes) if self._refuses_writes else StoreState("ok")

    async def aclose(self) -> None:
        """Close idle connections now, and others when they are given back."""
        self._closed = True
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        await self._connections.aclose()
        await self._blocking.aclose()

    def unavailable(self, reason: str) -> StoreUnavailable:
        """Return the exception for a failure of this server."""
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
        """Write packed commands to one connection and read their replies, all within `limit_s` seconds and the slack.

        An error reply is raised; for commands listed in `optional` a refusal is returned instead.
        """
        connection: AbstractConnection | None = None
        answers: list[Any] = []
        keep = True
        try:
            with Deadline(limit_s * self._slack):
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
                # The server at this address is a replica now; new connections resolve the address again.
                keep = False
                await pool.drop_idle()
            raise self.unavailable(reason) from None
        finally:
            if connection is not None:
                await pool.give_back(connection, clean=keep and len(answers) == replies)

    def _watch(self) -> None:
        """Start the task that probes until the server answers again, unless it is running."""
        if not self._closed and (self._probe is None or self._probe.done()):
            self._probe = asyncio.get_running_loop().create_task(self._probe_until_closed(), name="store-probe")

    async def _probe_until_closed(self) -> None:
        while not self._breaker.closed:
            # The random part keeps workers from returning to the store at the same instant.
            await asyncio.sleep(self._breaker.wait_s() + random.uniform(0, 0.1))  # noqa: S311
            if self._breaker.begin_probe():
                try:
                    await self.ping()
                except StoreUnavailable:
                    continue


class Dialler:
    """Creates nodes: that of a redis://, rediss:// or unix:// URL, and others with the same credentials and options."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic, slack: float = 1.0) -> None:
        """Parse the URL. Raises ValueError, without the URL, which may contain a password, if it is invalid."""
        self._clock = clock
        self._slack = slack
        try:
            self._options: dict[str, Any] = {**parse_url(url), **_limits(slack)}
            ConnectionPool(**self._options).make_connection()  # type: ignore[no-untyped-call]  # finds unknown options
        except (ValueError, TypeError, errors.RedisError):
            raise ValueError(
                "the store's URL must be redis://, rediss:// or unix://, with a valid port and known options"
            ) from None

    def first(self, on_trouble: Callable[[], None]) -> Node:
        """Return the node that the URL names, not connected yet."""
        options = self._options
        where = str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")
        return Node(ConnectionPool(**options).make_connection, where, self._clock, on_trouble, self._slack)

    def at(self, host: str, port: int, on_trouble: Callable[[], None]) -> Node:
        """Return another node of the same cluster, not connected yet."""
        options = {**self._options, "host": host, "port": port}
        if options.get("connection_class") is UnixDomainSocketConnection:
            del options["connection_class"], options["path"]
        return Node(ConnectionPool(**options).make_connection, f"{host}:{port}", self._clock, on_trouble, self._slack)


def is_refusal(answer: Any) -> bool:
    """Return whether the reply to an optional command is an error."""
    return isinstance(answer, errors.RedisError)


def _limits(slack: float) -> dict[str, Any]:
    return {
        "socket_timeout": SOCKET_S * slack,
        "socket_connect_timeout": SOCKET_S * slack,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # no HELLO: a new connection needs no round trip
        "driver_info": None,  # nor CLIENT SETINFO
    }


async def _reply(connection: AbstractConnection) -> Any:
    """Return one reply; a server's error is returned, not raised, so that the replies after it are read too."""
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
    message = str(error)
    return "disk" if message.startswith("MISCONF") else "wrong_type" if message.startswith("WRONGTYPE") else "error"
