"""Parse the incoming `traceparent` header, strictly by W3C Trace Context level 1.

An invalid header counts as absent: the request gets a new trace id.
"""

from __future__ import annotations

import re

# version "-" trace-id "-" parent-id "-" flags. Later versions may add "-" and more, version 00 may not; ff is invalid.
_FORM = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-[!-~]*)?")
_LONGEST = 128


def parse_traceparent(header: bytes | None) -> tuple[int, int] | None:
    """Return (trace id, parent span id), neither of them 0; None if the header is absent or invalid."""
    if header is None or len(header) > _LONGEST or (match := _FORM.fullmatch(header)) is None:
        return None
    version, trace_id, parent_id, more = match.groups()
    if version == b"00" and more is not None:
        return None
    trace, parent = int(trace_id, 16), int(parent_id, 16)
    return (trace, parent) if trace and parent else None
