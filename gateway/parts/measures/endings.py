"""Say how a request ended, from its status, its error and the limits that it was held against."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from gateway.telemetry.ledger import CLIENT_LEFT, UNCOUNTED
from policies.quantities import OF_STAGES

Ending = Literal["good", "late", "poor", "failed", "refused", "left", ""]
"""How a request ended; empty for an answer that no limits apply to."""
HELD: Final[Collection[Ending]] = frozenset({"good", "late", "poor", "failed"})
"""Endings of the requests of which goodput is a share."""
_OF_MANY: Final = ("_p50", "_p95")
"""How the names of objectives end that must hold for many requests, not for each."""
_DEGRADED: Final = "degraded"
_OK: Final = 200
_ERROR: Final = 400
_TOO_MANY: Final = 429
_GONE: Final = 499
_SERVER_ERROR: Final = 500


def is_beside(surface: str) -> bool:
    """Return whether a request is no chat, by the surface of its record, such as `chat/embeddings`."""
    return "/" in surface


def no_answer(status: int, error: str | None, *, refused: bool) -> Ending:
    """Return how a request ended that got no whole answer; empty if it got one.

    `refused` is that of the ledger: of a status 429 or 504, whether its owners' limits or its own wish were the reason.
    """
    if status == _GONE or error in CLIENT_LEFT:
        return "left"
    if refused or (_ERROR <= status < _SERVER_ERROR and status != _TOO_MANY):
        return "refused"
    return "" if status == _OK and error is None else "failed"


def answered(missed: Collection[str], path: str, fault: str) -> Ending:
    """Return how a request ended that got a whole answer and was held against limits.

    `missed` are the objectives it missed; those that count are the p99 objectives and the deadline, but none of a
    stage, which is no wait of its own. `fault` is the one that the judge found in the structure of what was served,
    such as JSON that does not fit the schema, or empty.
    """
    if missed and [name for name in missed if not name.endswith(_OF_MANY) and not name.startswith(OF_STAGES)]:
        return "late"
    return "poor" if fault or path == _DEGRADED else "good"


def ending_of(ledger: Mapping[str, Any]) -> Ending:
    """Return how a recorded request ended; empty for shadows, the playground and what no limits apply to.

    No limits apply to what is no chat, so its failures are in no goodput, as its answers are in none.
    """
    if ledger.get("arm") in UNCOUNTED or is_beside(ledger.get("surface", "")):
        return ""
    status = ledger["status"]
    # Older records do not say who refused: where nothing was called, the owners' limits.
    refused = ledger.get("refused", status == _TOO_MANY and not ledger.get("attempts"))
    if ending := no_answer(status, ledger["error"], refused=refused):
        return ending
    met = ledger.get("slo")
    if not met:
        return ""
    return answered([name for name, kept in met.items() if not kept], ledger["path"], _served_fault(ledger))


def was_good(ledger: Mapping[str, Any]) -> bool | None:
    """Return whether a recorded request was good; None where it is in no goodput."""
    ending = ending_of(ledger)
    return ending == "good" if ending in HELD else None


def _served_fault(ledger: Mapping[str, Any]) -> str:
    """Return the structural fault of the answer that a recorded request got; empty if it had none."""
    return next((call["fault"] for call in ledger.get("calls", ()) if call.get("fault") and not call["wasted"]), "")
