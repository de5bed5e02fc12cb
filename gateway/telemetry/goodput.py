"""Say which requests count as good: within their limits, and with an answer that was meant to be served."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

_OF_MANY: Final = ("_p50", "_p95")
"""How the names of objectives end that must hold for many requests, not for each."""
_DEGRADED: Final = "degraded"


def is_good(missed: Collection[str], path: str, fault: str) -> bool:
    """Return whether a request met every limit of its surface, was not degraded, and its answer had no fault.

    `missed` are the objectives it missed; those that count are the p99 objectives and the deadline. `fault` is the one
    that the judge found in the structure of what was served, such as JSON that does not fit the schema, or empty.
    """
    if fault or path == _DEGRADED:
        return False
    return not missed or not [name for name in missed if not name.endswith(_OF_MANY)]


def was_good(ledger: Mapping[str, Any]) -> bool | None:
    """Return whether a recorded request was good; None where it was held against no limits."""
    met = ledger.get("slo")
    if not met:
        return None
    return is_good([name for name, kept in met.items() if not kept], ledger["path"], _served_fault(ledger))


def _served_fault(ledger: Mapping[str, Any]) -> str:
    """Return the structural fault of the answer that a recorded request got; empty if it had none."""
    return next((call["fault"] for call in ledger.get("calls", ()) if call.get("fault") and not call["wasted"]), "")
