"""Say which requests count as good: within their limits, and with an answer that was meant to be served."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

OF_MANY: Final = ("_p50", "_p95")
"""How the names of objectives end that must hold for many requests, not for each."""
_DEGRADED: Final = "degraded"


def is_good(slo: Mapping[str, bool], path: str, faults: Collection[str]) -> bool:
    """Return whether a request met every limit of its surface, was not degraded, and its answer had no fault.

    The limits are the p99 objectives and the deadline. `faults` are those that the judge found in the structure of the
    calls whose text was served, such as JSON that does not fit the schema.
    """
    missed = [name for name, met in slo.items() if not met and not name.endswith(OF_MANY)]
    return not missed and not faults and path != _DEGRADED
