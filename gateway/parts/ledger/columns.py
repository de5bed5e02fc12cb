"""Name the columns of the archive's tables, as columns.toml has them, and make the row of one stream entry.

`requests` has the columns of the `Ledger`, then the time and ids of the trace, its hops as JSON, and the routing
decision: what it was made of (`given`), and what came of it (`decision`, NULL where no tier could answer). `feedback`
has what clients said of replies, `labels` what a judge said of two answers. All begin with the place of the
entry in the store's stream: its id, and its `ordinal`, which counts all entries ever added, so that a gap in it is a
number of lost entries.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.parts.measures import feedback, label
from gateway.parts.measures.endings import HELD, ending_of
from gateway.parts.recorder.decision_record import named
from gateway.telemetry.ledger import TRACES, is_record
from routing.features import FURTHER

Row = dict[str, Any]

_DATA: Final = tomllib.loads(Path(__file__).with_name("columns.toml").read_text("utf-8"))


def _columns(of: str) -> dict[str, str]:
    """Return the DuckDB type of each column of a part of the tables."""
    needs = "".join(f"needs_{name} BOOLEAN, " for name in FURTHER)
    structs = {name: type_.format(needs=needs) for name, type_ in _DATA["structs"].items()}
    return {name: type_.format(**structs) for name, type_ in _DATA[of].items()}


_ENTRY: Final = _columns("entry")
LEDGER: Final[Mapping[str, str]] = _columns("ledger")
"""The DuckDB type of each field of a `Ledger`."""
JUDGED: Final[Mapping[str, str]] = _columns("judged")
"""How a request ended, whether it was good (`gateway.telemetry.ledger`; NULL where it is in no goodput), and whether
it missed any objective; NULL without any."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the archive: the stream of the store that it is made of, and how."""

    name: str
    stream: str
    columns: Mapping[str, str]
    """The DuckDB type of each column, in order."""
    read: Callable[[bytes], Row | None]
    """Make a row, but for the entry's place; None for an entry of another version, which is counted as unread."""


def _request(blob: bytes) -> Row | None:
    if not is_record(blob):
        return None
    record, hops = _without_hops(blob)
    decided = record.get("decide") or {}
    given, out = named(decided.get("in"), decided.get("out"))
    met = record["ledger"].get("slo") or {}
    ending = ending_of(record["ledger"])
    return {
        **record["ledger"],
        "ended": ending or None,
        "good": ending == "good" if ending in HELD else None,
        "slow": None if not met else not all(met.values()),
        "started": record["started"],
        "trace_id": record["trace_id"],
        "parent_id": record["parent_id"],
        "hops": orjson.Fragment(hops),
        "basis": decided.get("basis"),
        "given": given,
        "decision": out,
    }


def _feedback(blob: bytes) -> Row | None:
    entry = feedback.decode_feedback(blob)
    if entry is None:
        return None
    return {
        "request_id": entry.request_id,
        "tenant": entry.tenant,
        "surface": entry.surface,
        "score": entry.score,
        "comment": entry.comment,
        "given_at": entry.at,
    }


REQUESTS: Final = Table(
    "requests", TRACES, {**_ENTRY, **_columns("trace"), **LEDGER, **JUDGED, **_columns("decided")}, _request
)
FEEDBACK: Final = Table("feedback", feedback.STREAM, {**_ENTRY, **_columns("feedback")}, _feedback)
LABEL: Final[Mapping[str, str]] = _columns("label")
"""The DuckDB type of each field of a `PairLabel`."""
LABELS: Final = Table("labels", label.LABELS, {**_ENTRY, **LABEL}, label.decode_label)
TABLES: Final = (REQUESTS, FEEDBACK, LABELS)


_HOPS: Final = b',"hops":'
_DECIDE: Final = b',"decide":'


def _without_hops(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a record without its hops, decoded, and its hops as they stand: most of its bytes, which few look into.

    Raises ValueError for what is no record.
    """
    first, last = blob.find(_HOPS), blob.rfind(_DECIDE)
    if not 0 < first < last:
        raise ValueError("it has no hops, or nothing behind them")
    record: dict[str, Any] = orjson.loads(blob[:first] + blob[last:])
    return record, blob[first + len(_HOPS) : last]
