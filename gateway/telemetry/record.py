"""Write a finished request as the record that the store keeps, one JSON object, and read parts of one.

    {"v": 1, "trace_id": "4bf9...", "parent_id": null, "started": 1767225600.123456, "ledger": {...},
     "hops": [{"name": "request", "number": 0, "span_id": "00f0...", "start_us": 0, "duration_us": 41230,
               "error": null, "attributes": {...}}, ...],
     "decide": {"basis": "5b9c...", "in": [...], "out": [...]}}

`started` is in Unix seconds; hop times are microseconds from the start of hop 0; ids are in hex, as in `traceparent`.
`decide` is what a part records of the decision, null where no tier was to be chosen. Of a request that
sampling leaves out (`kept` in its ledger is empty) `hops` has the lookup of a cache hit alone, by which feedback finds
the stored answer, and one that a rule of `cache.never` kept out. `telemetry.names` says what each attribute is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gateway.telemetry import names
from gateway.telemetry.ledger import ADJUSTMENT, NEVER
from gateway.telemetry.trace import SPAN_ID_MASK

if TYPE_CHECKING:
    from cache.store.base import Command
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Hop, RecordedDecision, Trace

_LOOKUPS: Final = frozenset({names.CACHE_EXACT, names.CACHE_SEMANTIC})
_VERSION: Final = 1
_BEGINNING: Final = b'{"v":%d,' % _VERSION
# Before the hops, and behind them. Neither occurs within a text: there quotes are escaped.
_ADJUSTS: Final = b'"arm":"%s"' % ADJUSTMENT.encode()
_HOPS: Final = b',"hops":'
_DECIDE: Final = b',"decide":'


class DecisionEncoder(Protocol):
    """Encode decisions for records, off the request's path."""

    def encode(self, made: RecordedDecision) -> dict[str, Any]:
        """Return the part of a request's record that holds its decision, as JSON values."""

    def commands(self) -> list[Command]:
        """Return what writes to the store, before the records, what encoded decisions refer to."""

    def written(self) -> None:
        """Note that the store has carried out the commands."""


def ledger_blob(trace: Trace, ledger: Ledger, decisions: DecisionEncoder | None = None) -> bytes:
    """Return the record of a finished request. Raises orjson.JSONEncodeError (a TypeError) for a non-JSON value."""
    root = trace.root
    origin, end = root.start_ns, root.end_ns
    first = trace.span_id(root)
    record = {
        "v": _VERSION,
        "trace_id": f"{trace.trace_id:032x}",
        "parent_id": f"{trace.parent_id:016x}" if trace.parent_id else None,
        "started": trace.started_unix_ns / 1e9,
        "ledger": ledger,
        "hops": [
            {
                "name": hop.name,
                "number": hop.number,
                "span_id": f"{(first + hop.number) & SPAN_ID_MASK or 1:016x}",
                "start_us": (hop.start_ns - origin) // 1000,
                "duration_us": ((hop.end_ns or end) - hop.start_ns) // 1000,
                "error": hop.error,
                "attributes": hop.attributes,
            }
            for hop in (trace.hops if ledger.kept else lookups_of_record(trace.hops))
        ],
        "decide": None if decisions is None or trace.decision is None else decisions.encode(trace.decision),
    }
    return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)


def lookups_of_record(hops: Sequence[Hop]) -> list[Hop]:
    """Return the hops that every record has: a cache hit's, and one that a rule of `cache.never` ended."""
    return [
        hop
        for hop in hops
        if hop.name in _LOOKUPS
        and (names.CACHE_ENTRY in hop.attributes or str(hop.attributes.get(names.CACHE_REASON)).startswith(NEVER))
    ]


def is_record(blob: bytes) -> bool:
    """Return whether `blob` begins like a record of this version; do not decode one that does not."""
    return blob.startswith(_BEGINNING)


def is_adjustment(blob: bytes) -> bool:
    """Return whether a record is of no request, but of what an operator did to an account."""
    return _ADJUSTS in blob  # in no text: there quotes are escaped


def without_hops(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a record without its hops, decoded, and its hops as they stand: most of its bytes, which few look into.

    Raises ValueError for what is no record.
    """
    first, last = blob.find(_HOPS), blob.rfind(_DECIDE)
    if not 0 < first < last:
        raise ValueError("it has no hops, or nothing behind them")
    record: dict[str, Any] = orjson.loads(blob[:first] + blob[last:])
    return record, blob[first + len(_HOPS) : last]
