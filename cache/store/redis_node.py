"""Talk to one Redis-protocol server: connections, breaker, and error reasons.

redis-py (see `redis_nodes`) connects, authenticates, speaks TLS and parses. Its connections are used directly, because
its client takes 32 us of CPU for a GET of 1 KB, and writing to a connection and reading from it takes 15. Every failure
is raised as StoreUnavailable with one of these reasons:

    timeout     no answer in time            refused      cannot be reached
    lost        the connection broke         open         not sent: the breaker is open
    busy        all connections in use       full         out of memory; no writes for 30 s, reads continue
    readonly    a replica, after a failover  loading, masterdown, clusterdown    it is not ready
    disk        it cannot save to its disk; otherwise like `full`
    auth        credentials refused          max_clients  it accepts no more connections
    wrong_type  the key has a value of another kind          error         any other error reply
    index       it refuses an operation of a semantic index; everything else continues
    no_master   no Sentinel that answers names a master that is up

A cluster node's redirection for another node's keys is no failure but a reply, `Moved`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Container, Coroutine
from dataclasses import dataclass
from typing import Any

import hiredis

from cache.store import resp
from cache.store.base import StoreState, StoreUnavailable
from cache.store.connections import (
    MAX_BLOCKING,
    MAX_CONNECTIONS,
    AllInUse,
    Deadline,
    PatientLimit,
    StoreBreaker,
    WirePool,
)

_UNUSED = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")
"""redis-py imports these, if they are installed, for metrics that nothing here turns on: 65 modules, 28 ms, 2 MB."""
_hidden = [name for name in _UNUSED if sys.modules.setdefault(name, None) is None]  # type: ignore[arg-type]
try:
    from redis import exceptions as errors
    from redis._parsers.base import BaseParser
    from redis.asyncio.connection import AbstractConnection
    from redis.asyncio.sentinel import MasterNotFoundError
finally:
    for _name in _hidden:
        del sys.modules[_name]

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


_WELL = StoreState("ok", nodes=1)


class StoreConnection(PatientLimit, asyncio.Protocol):
    """One connection to a server, for one exchange at a time.

    redis-py opens it: address, TLS, credentials, database. From then on this reads and writes, since redis-py's way to
    one reply takes some twenty Python calls.
    """

    def __init__(self, opened: AbstractConnection) -> None:
        writer = opened._writer
        if writer is None:
            raise ConnectionResetError("the connection was lost when it had just been made")
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._opened = opened
        self._transport = writer.transport
        self._parser = hiredis.Reader(protocolError=errors.InvalidResponse, replyError=BaseParser.parse_error)
        self._waiting: asyncio.Future[list[Any]] | None = None
        self._replies: list[Any] = []
        self._wanted = 0
        self.usable = True
        """False once the connection is lost, or has received bytes that belong to no exchange."""
        self._transport.set_protocol(self)

    def exchange(self, commands: bytes, replies: int, limit_s: float | None = None) -> asyncio.Future[list[Any]]:
        """Write packed commands and return a future of their replies, in order; a refusal is an exception among them.

        It fails with OSError or RedisError as the connection or the server does, and with TimeoutError after `limit_s`
        seconds. Raises ConnectionResetError. A connection whose exchange was given up is not to be used again.
        """
        if not self.usable:
            raise ConnectionResetError("the connection is lost")
        self._replies, self._wanted = [], replies
        self._waiting = waiting = self._loop.create_future()
        self._transport.write(commands)
        if limit_s is not None:
            self.begin(limit_s)
        return waiting

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that came; with the last reply that the exchange waits for, it ends."""
        self._parser.feed(data)
        try:
            while (reply := self._parser.gets()) is not False:
                self._replies.append(_redirected(reply) if isinstance(reply, errors.RedisError) else reply)
        except errors.RedisError as error:
            self._fail(error)
            return
        if self._waiting is None:
            self.usable = False
        elif len(self._replies) >= self._wanted and not self._waiting.done():
            self._waiting.set_result(self._replies)
            self._waiting = None
            if self.timer is not None:
                self.timer.cancel()

    def eof_received(self) -> None:
        """Close; the server has ended the connection."""
        self._fail(ConnectionResetError("the server has closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        """Record the loss, and end the current exchange, if any, with an error."""
        self._fail(error or ConnectionResetError("the connection is lost"))

    async def disconnect(self) -> None:
        """Close the connection without waiting."""
        self.usable, self._waiting = False, None
        if self.timer is not None:
            self.timer.cancel()
        await self._opened.disconnect(nowait=True)

    def _give_up(self) -> None:
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self.usable = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


def _redirected(error: errors.RedisError) -> Any:
    """Return an error reply as a value; a redirection as a `Moved`."""
    if isinstance(error, errors.AskError):
        return Moved(error.slot_id, error.host, error.port, asking=not isinstance(error, errors.MovedError))
    return error


class Node:
    """One server. `on_trouble` is called for every failure that may be the server's. For one event loop."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[StoreConnection]],
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
        """The reason with which the server refused a write less than 30 s ago; '' if it may get writes."""
        return self._refuses_writes if self._clock() < self._resting_until else ""

    def wrote(self) -> None:
        """Note that a write succeeded, so that writes are sent to this server again."""
        self._refuses_writes = ""

    # What only passes its arguments on returns the coroutine itself: another would be resumed with each exchange.

    def request(
        self, commands: bytes, replies: int, limit_s: float, optional: Container[int] = _NONE
    ) -> Coroutine[Any, Any, list[Any]]:
        """Execute a request's commands: refused while the breaker is open, and counted by it."""
        return self._exchange(self._connections, commands, replies, limit_s, optional, counted=True)

    def uncounted(
        self, commands: bytes, replies: int, limit_s: float, optional: Container[int] = _NONE
    ) -> Coroutine[Any, Any, list[Any]]:
        """Execute commands that belong to no request: allowed by an open breaker, and not counted by it."""
        return self._exchange(self._connections, commands, replies, limit_s, optional)

    async def blocking(self, command: bytes, limit_s: float) -> Any:
        """Return the reply to a blocking command: on separate connections, and not counted by the breaker."""
        return (await self._exchange(self._blocking, command, 1, limit_s))[0]

    async def ping(self) -> None:
        """Check the server's health: a failure opens the breaker at once, a success closes it."""
        try:
            await self.uncounted(resp.command(b"PING"), 1, READ_S)
        except StoreUnavailable as error:
            if error.reason in _REFUSES_WRITES:  # the server runs: one that cannot save refuses PING like a write
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
        if self._breaker.state != "closed":
            return StoreState("degraded", self._reason, 1)
        return StoreState("degraded", self._refuses_writes, 1) if self._refuses_writes else _WELL

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
        pool: WirePool[StoreConnection],
        commands: bytes,
        replies: int,
        limit_s: float,
        optional: Container[int] = _NONE,
        *,
        counted: bool = False,
    ) -> list[Any]:
        """Write packed commands to one connection and read their replies, all within `limit_s` seconds and the slack.

        An error reply is raised; for commands listed in `optional` a refusal is returned instead. The breaker must be
        closed for those that it counts.
        """
        if counted and self._breaker.state != "closed":
            raise self.unavailable("open")
        connection = pool.idle()
        answers: list[Any] = []
        keep = True
        try:
            if connection is not None:
                answers = await connection.exchange(commands, replies, limit_s * self._slack)
            else:
                with Deadline(limit_s * self._slack):
                    connection = await pool.take()
                    answers = await connection.exchange(commands, replies)
            for place, answer in enumerate(answers):
                if isinstance(answer, errors.RedisError) and not (place in optional and _is_of_an_index(answer)):
                    raise answer
            if counted and self._breaker.failures:
                self._breaker.succeeded()
            return answers
        except (AllInUse, errors.RedisError, OSError, TimeoutError, ValueError) as error:
            reason = _reason_of(error, dialled=connection is not None)
            if reason == "readonly":
                # The server at this address is a replica now; new connections resolve the address again.
                keep = False
                await pool.drop_idle()
            if counted:
                self._count(reason)
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


def is_refusal(answer: Any) -> bool:
    """Return whether the reply to an optional command is an error."""
    return isinstance(answer, errors.RedisError)


def _is_of_an_index(error: errors.RedisError) -> bool:
    return _reason_of(error, dialled=True) in _OF_AN_INDEX


def _reason_of(error: Exception, *, dialled: bool) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    if isinstance(error, MasterNotFoundError):
        # redis-py keeps only the texts of what each Sentinel has said.
        return "auth" if "AuthenticationError" in str(error) else "no_master"
    if isinstance(error, errors.ConnectionError | OSError):
        if "max number of clients" in str(error):
            return "max_clients"
        return "lost" if dialled else "refused"
    message = str(error)
    return "disk" if message.startswith("MISCONF") else "wrong_type" if message.startswith("WRONGTYPE") else "error"
