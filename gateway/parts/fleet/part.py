"""The functions by which the core asks this part; see `gateway.seams`. Each imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gateway.parts.fleet.auth import CloudAuth
from gateway.parts.fleet.http_client import HttpClient

if TYPE_CHECKING:
    from gateway.parts.fleet.exchange import FlightExchange
    from gateway.parts.fleet.gossip import Gossip
    from gateway.seams import Core

AUTH: Final = CloudAuth
HTTP: Final = HttpClient


def build_flights(core: Core) -> FlightExchange:
    """Return a worker's side of sharing flights."""
    from gateway.parts.fleet.exchange import FlightExchange

    return FlightExchange(core.store, core.cache.delayed)


def build_tasks(core: Core) -> Mapping[str, Gossip]:
    """Return what tells other workers of the backends, and hears of theirs."""
    from gateway.parts.fleet.gossip import Gossip

    return {"gossip": Gossip(core.store, list(core.endpoints.values()))}
