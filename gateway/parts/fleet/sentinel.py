"""Reach the master of a store that Sentinels know, by a URL. redis-py asks them.

    redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]]/MASTER[/DB]
                                                   the master that these Sentinels (port 26379) know under the name
                                                   MASTER; rediss+sentinel:// with TLS to the master and the Sentinels

USER and PASSWORD are those of the server; Sentinels have `sentinel_username` and `sentinel_password`. A new connection
asks the Sentinels, so after a failover it is to the new master; those to the old one have been closed by its end, or by
the first write that it refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import Sentinel

from cache.store.redis_node import Node, StoreConnection
from cache.store.redis_nodes import SENTINEL, Dialler, dial

_SENTINEL_PORT: Final = 26379
_OF_THE_MASTER: Final = frozenset({"host", "port", "db", "username", "password", "connection_class"})
"""Options that the Sentinels do not share with the master."""


class Masters:
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


class SentinelDialler(Dialler):
    """Create the store's node for the master that Redis Sentinels name. Close it after the node."""

    _masters: Masters

    def read(self, url: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Return redis-py's options of connections to the master. Raises ValueError and TypeError."""
        scheme, _, rest = url.partition(SENTINEL)
        parts = urlsplit(f"{scheme}://{rest}")
        if scheme not in ("redis", "rediss"):
            raise ValueError(scheme)
        credentials, at, hosts = parts.netloc.rpartition("@")
        addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]
        name, _, db = parts.path.strip("/").partition("/")
        if not name or (db and not db.isdecimal()) or not all(address.hostname for address in addresses):
            raise ValueError("a Sentinel's address, or the master's name, is missing")
        # redis-py reads the rest: credentials, database and options.
        options = super().read(f"{scheme}://{credentials}{at}localhost/{db}?{parts.query}", limits)
        theirs = {
            name.removeprefix("sentinel_"): options.pop(name)
            for name in ("sentinel_username", "sentinel_password")
            if name in options
        }
        shared = {name: value for name, value in options.items() if name not in _OF_THE_MASTER}
        shared["ssl"] = options.get("connection_class") is SSLConnection
        sentinels = [(address.hostname or "", address.port or _SENTINEL_PORT) for address in addresses]
        self._masters = Masters(name, sentinels, shared | theirs)
        return options

    def first(self, on_trouble: Callable[[], None]) -> Node:
        """Return the master's node, not connected yet."""
        return self.node(self._dial_master, self._masters.where, on_trouble)

    async def aclose(self) -> None:
        """Close the connections to Sentinels."""
        await self._masters.aclose()

    async def _dial_master(self) -> StoreConnection:
        host, port = await self._masters.address()
        return await dial({**self.options, "host": host, "port": port})
