"""Check the addresses in a config: backends are http(s) only, and never link-local or cloud metadata addresses.

Those addresses give a machine's credentials to any caller; a config that names one is a mistake or an attack. Names are
compared as written, not resolved: what a private DNS answers is the deployment's responsibility.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from gateway.parts.standard import missing_for, provider

if TYPE_CHECKING:
    from cache.store.redis_nodes import SeveralServers
    from cache.store.redis_store import RedisStore

_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
_METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(address)
    for address in ("100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254")
)


def check_http_url(url: str) -> None:
    """Check a backend's base URL. Raises ValueError, with the reason, if no backend may have it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("not an http:// or https:// URL")
    if not parts.hostname or port == 0 or any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError("not a URL with a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL may not hold a user or password; use key_env or key_file")
    if parts.query or parts.fragment:
        raise ValueError("a base URL has no query and no fragment")
    if is_metadata(parts.hostname):
        raise ValueError(f"{parts.hostname} is a link-local or cloud metadata address, which no backend may have")


def check_store_url(url: str) -> None:
    """Check the store's URL. Raises ValueError with the reason, without the URL, which may hold a password."""
    open_store(url)  # The store's client parses the URL, so its rules are not repeated here.


def open_store(url: str, *, slack: float = 1.0) -> RedisStore:
    """Return the store at a URL, not connected yet; each time limit is `slack` times as long.

    Raises ValueError with the reason, without the URL.
    """
    from cache.store.redis_store import RedisStore  # slow to import

    several = cast("SeveralServers | None", provider("several_servers"))
    lacking = missing_for("several_servers", "a store of several servers (a Redis Cluster, or one under Sentinel)")
    return RedisStore.from_url(url, slack=slack, several=several, lacking=lacking)


def is_metadata(host: str) -> bool:
    """Return whether `host` is a link-local or cloud metadata address.

    `host` is a name, or an address in any notation that the resolver accepts.
    """
    name = host.lower().rstrip(".")
    address = _address(name.split("%", 1)[0])
    if address is None:
        return name in _METADATA_NAMES
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_link_local or mapped in _METADATA_ADDRESSES


def is_loopback(host: str) -> bool:
    """Return whether `host`, a name or an address without a port, can only mean this machine."""
    name = host.lower().removeprefix("[").removesuffix("]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))  # accepts 0xa9fea9fe, 2852039166 and 169.254.43518 too
    except OSError:
        return None
