"""The functions by which the core asks this part; see `gateway.seams`. Each imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cache.store.redis_nodes import Dialler
    from gateway.parts.fleet.auth import CloudAuth
    from gateway.parts.fleet.cluster import ClusterNodes
    from gateway.parts.fleet.exchange import FlightExchange
    from gateway.parts.fleet.gossip import Gossip
    from gateway.parts.fleet.http_client import HttpClient
    from gateway.parts.fleet.sentinel import SentinelDialler
    from gateway.steps import Core


def auth_config() -> type[CloudAuth]:
    """Return the class of the keys of `auth`."""
    from gateway.parts.fleet.auth import CloudAuth

    return CloudAuth


def http_config() -> type[HttpClient]:
    """Return the class of the keys of a backend's `http`."""
    from gateway.parts.fleet.http_client import HttpClient

    return HttpClient


def cluster_nodes(dialler: Dialler) -> ClusterNodes:
    """Return the nodes of a store that may be a cluster."""
    from gateway.parts.fleet.cluster import ClusterNodes

    return ClusterNodes(dialler)


def sentinel_dialler(url: str, clock: Callable[[], float], slack: float) -> SentinelDialler:
    """Return what creates the node that Sentinels name as the master. Raises ValueError, without the URL."""
    from gateway.parts.fleet.sentinel import SentinelDialler

    return SentinelDialler(url, clock, slack)


def build_flights(core: Core) -> FlightExchange:
    """Return a worker's side of sharing flights."""
    from gateway.parts.fleet.exchange import FlightExchange

    return FlightExchange(core.store, core.cache.delayed)


def build_tasks(core: Core) -> Mapping[str, Gossip]:
    """Return what tells other workers of the backends, and hears of theirs."""
    from gateway.parts.fleet.gossip import Gossip

    return {"gossip": Gossip(core.store, list(core.endpoints.values()))}
