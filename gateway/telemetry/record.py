"""Encode the record of one request as the store keeps it: one JSON object, for people and for tools.

    {"v": 1, "trace_id": "4bf9...", "parent_id": null, "started": 1767225600.123456, "ledger": {...},
     "hops": [{"name": "request", "number": 0, "span_id": "00f0...", "start_us": 0, "duration_us": 41230,
               "error": null, "attributes": {...}}, ...]}

`started` is in Unix seconds; hop times are microseconds from the start of hop 0; ids are in hex, as in `traceparent`.
"""

from __future__ import annotations

from typing import Final

import orjson

from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace

STREAM: Final = "tierline:traces"
"""Key of the store's stream of records, oldest first."""

_VERSION: Final = 1
_BEGINNING: Final = b'{"v":%d,' % _VERSION


def encode(trace: Trace, ledger: Ledger) -> bytes:
    """Return the record of a finished request. Raises orjson.JSONEncodeError (a TypeError) for a non-JSON value."""
    root = trace.root
    origin, end = root.start_ns, root.end_ns
    span_id = trace.span_id
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
                "span_id": f"{span_id(hop):016x}",
                "start_us": (hop.start_ns - origin) // 1000,
                "duration_us": ((hop.end_ns or end) - hop.start_ns) // 1000,
                "error": hop.error,
                "attributes": hop.attributes,
            }
            for hop in trace.hops
        ],
    }
    return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)


def is_record(blob: bytes) -> bool:
    """Return whether `blob` begins like a record of this version; do not decode one that does not."""
    return blob.startswith(_BEGINNING)
