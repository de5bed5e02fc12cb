"""Open connections to Redis-protocol servers by URL. redis-py connects, authenticates, speaks TLS and asks Sentinels.

    redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]     one server, or any node of a Redis Cluster; rediss:// with TLS
    unix://[[USER]:PASSWORD@]PATH                  one server, over its socket
    redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]]/MASTER[/DB]
                                                   the master that these Sentinels (port 26379) know under the name
                                                   MASTER; rediss+sentinel:// with TLS to the master and the Sentinels

Options follow as a query, by redis-py's names, such as `ssl_ca_certs`. USER and PASSWORD are those of the server;
Sentinels have `sentinel_username` and `sentinel_password`. A new connection asks the Sentinels, so after a failover it
is to the new master; those to the old one have been closed by its end, or by the first write that it refuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from redis import exceptions as errors
from redis.asyncio.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from cache.store.redis_node import Node, StoreConnection

_DIAL_S: Final = 0.5
"""Time limit in seconds of each step of opening a connection: connecting, signing in, choosing the database. Opening
continues after the request that needed it has given up, for the next request. It takes several turns of the event loop,
which on a busy loop is longer than a request may wait.
"""
_SENTINEL: Final = "+sentinel://"
_SENTINEL_PORT: Final = 26379
_OF_THE_MASTER: Final = frozenset({"host", "port", "db", "username", "password", "connection_class"})
"""Options that the Sentinels do not share with the master."""


class Dialler:
    """Create nodes: that of a URL, and others with the same credentials and options. Close it after them."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic, slack: float = 1.0) -> None:
        """Parse the URL. Raises ValueError, without the URL, which may contain a password, if it is invalid."""
        self._clock = clock
        self._slack = slack
        self._masters: _Masters | None = None
        try:
            if _SENTINEL in url:
                self._options, self._masters = _sentinel_url(url, slack)
            else:
                self._options = {**parse_url(url), **_limits(slack)}
            ConnectionPool(**self._options).make_connection()  # type: ignore[no-untyped-call]  # finds unknown options
        except (ValueError, TypeError, errors.RedisError):
            raise ValueError(
                "the store's URL must be redis://, rediss:// or unix://, with a valid port and known options; or "
                "redis+sentinel://HOST:PORT,HOST:PORT/MASTER"
            ) from None

    def first(self, on_trouble: Callable[[], None]) -> Node:
        """Return the node that the URL names, not connected yet."""
        options, masters = self._options, self._masters
        where = str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")
        dial = partial(_dial, options)
        if masters is not None:
            where, dial = masters.where, partial(_dial_master, options, masters)
        return Node(dial, where, self._clock, on_trouble, self._slack)

    def at(self, host: str, port: int, on_trouble: Callable[[], None]) -> Node:
        """Return another node of the same cluster, not connected yet."""
        options = {**self._options, "host": host, "port": port}
        if options.get("connection_class") is UnixDomainSocketConnection:
            del options["connection_class"], options["path"]
        return Node(partial(_dial, options), f"{host}:{port}", self._clock, on_trouble, self._slack)

    async def aclose(self) -> None:
        """Close the connections to Sentinels."""
        if self._masters is not None:
            await self._masters.aclose()


class _Masters:
    """Ask Sentinels, the one that answered last first, for the address of a master. Equal questions share an answer."""

    def __init__(self, name: str, sentinels: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> None:
        self._name = name
        self._sentinel = Sentinel(sentinels, sentinel_kwargs=dict(options))  # type: ignore[no-untyped-call]
        self._asking: asyncio.Task[tuple[str, int]] | None = None
        self.where = f"{name} of {','.join(f'{host}:{port}' for host, port in sentinels)}"

    async def address(self) -> tuple[str, int]:
        """Return the master's host and port. Raises RedisError."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._sentinel.discover_master(self._name), name="store-master")
        return await asyncio.shield(self._asking)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._sentinel.aclose()


def _sentinel_url(url: str, slack: float) -> tuple[dict[str, Any], _Masters]:
    """Return the options of connections to the master, and who knows it. Raises ValueError and TypeError."""
    scheme, _, rest = url.partition(_SENTINEL)
    parts = urlsplit(f"{scheme}://{rest}")
    if scheme not in ("redis", "rediss"):
        raise ValueError(scheme)
    credentials, at, hosts = parts.netloc.rpartition("@")
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]
    name, _, db = parts.path.strip("/").partition("/")
    if not name or (db and not db.isdecimal()) or not all(address.hostname for address in addresses):
        raise ValueError("a Sentinel's address, or the master's name, is missing")
    # redis-py reads the rest: credentials, database and options.
    options = {**parse_url(f"{scheme}://{credentials}{at}localhost/{db}?{parts.query}"), **_limits(slack)}
    theirs = {
        name.removeprefix("sentinel_"): options.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in options
    }
    shared = {name: value for name, value in options.items() if name not in _OF_THE_MASTER}
    shared["ssl"] = options.get("connection_class") is SSLConnection
    sentinels = [(address.hostname or "", address.port or _SENTINEL_PORT) for address in addresses]
    return options, _Masters(name, sentinels, shared | theirs)


def _limits(slack: float) -> dict[str, Any]:
    return {
        "socket_timeout": _DIAL_S * slack,  # of the replies to AUTH and SELECT: it reads no others
        "socket_connect_timeout": _DIAL_S * slack,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # no HELLO: a new connection needs no round trip
        "driver_info": None,  # nor CLIENT SETINFO
    }


async def _dial(options: Mapping[str, Any]) -> StoreConnection:
    opened = ConnectionPool(**options).make_connection()  # type: ignore[no-untyped-call]
    try:
        await opened.connect()
    except BaseException:
        await opened.disconnect(nowait=True)
        raise
    return StoreConnection(opened)


async def _dial_master(options: Mapping[str, Any], masters: _Masters) -> StoreConnection:
    host, port = await masters.address()
    return await _dial({**options, "host": host, "port": port})
