"""Limit how often one address may send a wrong key to the console or the admin API.

A right one is let in at any time: many people and programs may share an address, and nobody can lock the others out.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.errors import RateLimited, retry_after

_AT_ONCE: Final = 10
_EVERY_S: Final = 6.0
_MOST: Final = 10_000
"""Most addresses that are remembered; the one that has been quiet longest goes first."""


class KeyTries:
    """Allow ten wrong keys at once from an address (of IPv6, from its /64), and then one each six seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due: OrderedDict[str, float] = OrderedDict()
        """Time at which the wrong keys of an address are forgotten, by address."""

    def check(self, address: str) -> None:
        """Raise RateLimited, with Retry-After, if the address has sent too many wrong keys."""
        wait_s = self._due.get(_network(address), 0.0) - self._now() - (_AT_ONCE - 1) * _EVERY_S
        if wait_s > 0:
            raise RateLimited(
                "Too many wrong keys came from your address. Wait a minute, and send the right one.",
                code="too_many_wrong_keys",
                headers=retry_after(wait_s),
            )

    def refused(self, address: str) -> None:
        """Count a wrong key of an address. Raises RateLimited, and counts none, if there were too many already."""
        self.check(address)
        network = _network(address)
        self._due[network] = max(self._due.get(network, 0.0), self._now()) + _EVERY_S
        self._due.move_to_end(network)
        if len(self._due) > _MOST:
            self._due.popitem(last=False)


def _network(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 4:
        return str(ip)
    # A listener on :: sees clients of IPv4 so: all of them are in one /64.
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
