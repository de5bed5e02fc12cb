"""The list of requests: the newest that a filter lets through, a row of at most 400 bytes each, never their content."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.archive.live import LiveArchive
from gateway.console.filters import FLAGS, SPANS, Filter

PAGE: Final = 50
_COLUMNS: Final = (
    "entry_ms, entry_seq, started_s, request_id, surface, policy, path, tier, model, status, error, attempts, ttft_ms, "
    "total_ms, cost_usd, cost_unknown, tokens_in, tokens_out, stream, arm, holdout, hedged, wasted_tokens, "
    "slow"
)
_CHOICES: Final = ("surface", "path", "tier", "policy", "error")
"""Columns of which the list offers the values that occur."""
_RECENT: Final = 2000
"""Rows, the newest, among which values are looked for."""


async def requests_page(archive: LiveArchive, wanted: Filter, before: str = "") -> dict[str, Any]:
    """Return a page of the list. `before` is the place of the last row of the page before, as `more` has it."""
    began = time.perf_counter()
    where, values = wanted.where(time.time())
    ms, _, number = before.partition("-")
    if ms.isdecimal() and number.isdecimal():
        where += " AND (entry_ms < $ms OR (entry_ms = $ms AND entry_seq < $number))"
        values |= {"ms": int(ms), "number": int(number)}
    rows = await archive.newest(_COLUMNS, where, values, PAGE + 1)
    shown = rows[:PAGE]
    return {
        "filter": {"query": wanted.query, "words": wanted.words},
        "rows": shown,
        "more": f"{shown[-1]['entry_ms']}-{shown[-1]['entry_seq']}" if len(rows) > PAGE else "",
        "first": not before,
        "choices": await _choices(archive),
        "flags": FLAGS,
        "spans": SPANS,
        "query_ms": (time.perf_counter() - began) * 1000,
    }


async def _choices(archive: LiveArchive) -> Mapping[str, Sequence[str]]:
    """Return the values that occur among the newest requests, the most frequent first."""
    rows = await archive.newest(", ".join(_CHOICES), "true", {}, _RECENT)
    row = {name: Counter(one[name] for one in rows) for name in _CHOICES}
    return {
        name: sorted(filter(None, found), key=found.__getitem__, reverse=True) for name, found in row.items() if found
    }
