"""Reach the server of a store by its URL. redis-py connects, authenticates and speaks TLS.

    redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]     one server; rediss:// with TLS
    unix://[[USER]:PASSWORD@]PATH                  one server, over its socket

Options follow as a query, by redis-py's names, such as `ssl_ca_certs`. A store of several servers, which is a Redis
Cluster or a master under Sentinel (`redis+sentinel://`), is reached by what is handed in: see `SeveralServers`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from redis import exceptions as errors
from redis.asyncio.connection import ConnectionPool, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache.store import resp
from cache.store.base import StoreState, StoreUnavailable
from cache.store.redis_node import Moved, Node, StoreConnection
from policies.value_type import from_fields

_DIAL_S: Final = 0.5
"""Time limit in seconds of each step of opening a connection: connecting, signing in, choosing the database. Opening
continues after the request that needed it has given up, for the next request. It takes several turns of the event loop,
which on a busy loop is longer than a request may wait.
"""
SENTINEL: Final = "+sentinel://"
"""What the URL of a store under Sentinel has."""
_SLOTS_S: Final = 0.25
SLOT_MAP: Final = resp.command(b"CLUSTER", b"SLOTS")
"""The command whose reply tells a cluster from a single server, which has none."""


class Dialler:
    """Create the nodes of a store from its URL: the first, and others with the same credentials and options.

    `slack` multiplies the time limits. Close it after its nodes.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic, slack: float = 1.0) -> None:
        """Parse the URL. Raises ValueError, without the URL, which may contain a password, if it is invalid."""
        self._clock = clock
        self._slack = slack
        try:
            self.options: Mapping[str, Any] = self.read(url, _limits(slack))
            ConnectionPool(**self.options).make_connection()  # type: ignore[no-untyped-call]  # finds unknown options
        except (ValueError, TypeError, errors.RedisError):
            raise ValueError(
                "the store's URL must be redis://, rediss:// or unix://, with a valid port and known options; or "
                "redis+sentinel://HOST:PORT,HOST:PORT/MASTER"
            ) from None

    def read(self, url: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with which redis-py connects to a URL, with `limits` in place of its own.

        Raises ValueError and TypeError.
        """
        return {**parse_url(url), **limits}

    def first(self, on_trouble: Callable[[], None]) -> Node:
        """Return the node that the URL names, not connected yet."""
        options = self.options
        where = str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")
        return self.node(partial(dial, options), where, on_trouble)

    def at(self, host: str, port: int, on_trouble: Callable[[], None]) -> Node:
        """Return another node of the same cluster, not connected yet."""
        options = {**self.options, "host": host, "port": port}
        if options.get("connection_class") is UnixDomainSocketConnection:
            del options["connection_class"], options["path"]
        return self.node(partial(dial, options), f"{host}:{port}", on_trouble)

    def node(self, dial: Callable[[], Awaitable[StoreConnection]], where: str, on_trouble: Callable[[], None]) -> Node:
        """Return a node that `dial` connects to, with this dialler's clock and slack."""
        return Node(dial, where, self._clock, on_trouble, self._slack)

    async def aclose(self) -> None:
        """Close what finds the servers, where there is such a thing; their connections are closed with their nodes."""


def _limits(slack: float) -> dict[str, Any]:
    return {
        "socket_timeout": _DIAL_S * slack,  # of the replies to AUTH and SELECT: it reads no others
        "socket_connect_timeout": _DIAL_S * slack,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # no HELLO: a new connection needs no round trip
        "driver_info": None,  # nor CLIENT SETINFO
    }


async def dial(options: Mapping[str, Any]) -> StoreConnection:
    """Open a connection with redis-py's options."""
    opened = ConnectionPool(**options).make_connection()  # type: ignore[no-untyped-call]
    try:
        await opened.connect()
    except BaseException:
        await opened.disconnect(nowait=True)
        raise
    return StoreConnection(opened)


class NodeCommand(NamedTuple):
    """A packed command with one reply, and the key that determines its node.

    `optional`: an error reply is returned instead of raised, because only an index operation fails.
    """

    key: bytes
    command: bytes
    optional: bool = False


node_command: Final = from_fields(NodeCommand)


class Nodes:
    """The only server of a store. Each method raises StoreUnavailable. For one event loop; close it after use.

    A class below it is for stores of several servers, and sends each command to the node that has its key.
    """

    def __init__(self, dialler: Dialler, lacking: str = "") -> None:
        """Take `lacking`: what to tell where the server is one of a cluster."""
        self._dialler = dialler
        self.first = dialler.first(self._doubt)
        """The node at the address in the URL."""
        self._lacking = lacking
        self._asked = False
        self._refused = ""
        self.slots: Sequence[Node] | None = None
        """The node of each slot of a cluster, which a class below this one sets; None for a single server."""

    @property
    def where(self) -> str:
        """Address in the URL."""
        return self.first.where

    def of(self, _key: bytes) -> Node:
        """Return the node that owns a key."""
        return self.first

    def any(self) -> Node:
        """Return a healthy node, for commands that every node answers alike."""
        return self.first

    def owners(self, parts: Sequence[NodeCommand]) -> set[Node]:
        """Return the nodes that own the keys of these commands."""
        return {self.first} if parts and self.slots is None else {self.of(part.key) for part in parts}

    async def one(self, part: NodeCommand, limit_s: float) -> Any:
        """Return the reply to one command."""
        places = (0,) if part.optional else ()
        (answer,) = await self.of(part.key).request(part.command, 1, limit_s, places)
        return await self.followed(part, answer, limit_s) if type(answer) is Moved else answer

    async def all(self, parts: Sequence[NodeCommand], limit_s: float) -> list[Any]:
        """Return the replies to several commands, in order; those for one node go in one round trip, in order."""
        answers = await sent(self.first, parts, limit_s)
        for part, answer in zip(parts, answers, strict=True):
            if type(answer) is Moved:
                await self.followed(part, answer, limit_s)
        return answers

    async def blocking(self, part: NodeCommand, limit_s: float) -> Any:
        """Return the reply to a blocking command: on separate connections, and not counted by the breaker."""
        answer = await self.of(part.key).blocking(part.command, limit_s)
        return await self.followed(part, answer, limit_s) if isinstance(answer, Moved) else answer

    async def followed(self, part: NodeCommand, moved: Moved, limit_s: float) -> Any:
        """Send a command to the node that it was redirected to; here there is none, so StoreUnavailable is raised."""
        self._refused = self._lacking
        raise StoreUnavailable("moved", f"{self.where}: {self._lacking}")

    async def each(self, commands: bytes, replies: int, limit_s: float) -> list[list[Any]]:
        """Return the replies of every node to packed commands without a key, asked despite the nodes' breakers."""
        return [await self.first.uncounted(commands, replies, limit_s)]

    async def ping(self) -> None:
        """Check every node's health, and the first time whether it is a cluster."""
        await self.first.ping()
        if not self._asked:
            (reply,) = await self.first.uncounted(SLOT_MAP, 1, _SLOTS_S, (0,))
            self._asked = True
            self._refused = self._lacking if isinstance(reply, list) else ""
        if self._refused:
            raise StoreUnavailable("moved", f"{self.where}: {self._refused}")

    def state(self) -> StoreState:
        """Return the worst node's state, with the number of nodes."""
        if self.slots is not None:
            return self.worst_state()
        return StoreState("degraded", self._refused, 1) if self._refused else self.first.state()

    def worst_state(self) -> StoreState:
        """Return the state of a cluster."""
        return self.first.state()

    async def aclose(self) -> None:
        """Close all nodes."""
        await self.first.aclose()
        await self._dialler.aclose()

    def _doubt(self) -> None:
        """Note that a node has failed."""


class SeveralServers(Protocol):
    """Reach a store of several servers."""

    def cluster_nodes(self, dialler: Dialler) -> Nodes:
        """Return the nodes of a store that may be a cluster."""

    def sentinel_dialler(self, url: str, clock: Callable[[], float], slack: float) -> Dialler:
        """Return what creates the node that Sentinels name as the master. Raises ValueError, without the URL."""


def nodes_at(url: str, clock: Callable[[], float], slack: float, several: SeveralServers | None, lacking: str) -> Nodes:
    """Return the nodes of the store at a URL. Raises ValueError, without the URL, if it is invalid.

    Without `several` a store of several servers is refused, with `lacking`.
    """
    if SENTINEL not in url:
        dialler = Dialler(url, clock, slack)
    elif several is None:
        raise ValueError(lacking)
    else:
        dialler = several.sentinel_dialler(url, clock, slack)
    return Nodes(dialler, lacking) if several is None else several.cluster_nodes(dialler)


def sent(node: Node, parts: Sequence[NodeCommand], limit_s: float) -> Coroutine[Any, Any, list[Any]]:
    """Return the coroutine that returns a node's replies to these commands, which it gets in one round trip."""
    commands: list[bytes] = []
    optional: set[int] = set()
    for part in parts:
        if part.optional:
            optional.add(len(commands))
        commands.append(part.command)
    return node.request(b"".join(commands), len(commands), limit_s, optional)
