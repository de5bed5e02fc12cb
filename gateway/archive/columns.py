"""Name the columns of the archive's tables, and make the row of one stream entry.

`requests` has the columns of the `Ledger`, then the time and ids of the trace, its hops as JSON, and the routing
decision: what it was made of (`given`), and what came of it (`decision`, NULL where no tier could answer). `feedback`
has what clients said of replies, `labels` what a judge said of two answers. All begin with the place of the
entry in the store's stream: its id, and its `ordinal`, which counts all entries ever added, so that a gap in it is a
number of lost entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.telemetry import feedback, label
from gateway.telemetry.ledger import TRACES, is_record, was_good, without_hops
from routing.decision_record import named
from routing.features import FURTHER

Row = dict[str, Any]

_ENTRY: Final = {"entry_ms": "BIGINT", "entry_seq": "BIGINT", "ordinal": "BIGINT"}
_CALL: Final = (
    "STRUCT(attempt INTEGER, tier VARCHAR, backend VARCHAR, model VARCHAR, outcome VARCHAR, tokens_in BIGINT, "
    "tokens_out BIGINT, estimated BOOLEAN, cost_usd DOUBLE, wasted BOOLEAN, queue_ms DOUBLE, ttft_ms DOUBLE, "
    "total_ms DOUBLE, start_ms DOUBLE, confidence DOUBLE, basis VARCHAR, fault VARCHAR, finish VARCHAR, "
    "tokens_cached BIGINT, tokens_cache_write BIGINT, verifier VARCHAR, verified DOUBLE)"
)
LEDGER: Final[Mapping[str, str]] = {
    "request_id": "VARCHAR",
    "tenant": "VARCHAR",
    "surface": "VARCHAR",
    "policy": "VARCHAR",
    "requested_model": "VARCHAR",
    "stream": "BOOLEAN",
    "status": "INTEGER",
    "path": "VARCHAR",
    "tier": "VARCHAR",
    "backend": "VARCHAR",
    "model": "VARCHAR",
    "attempts": "INTEGER",
    "tokens_in": "BIGINT",
    "tokens_out": "BIGINT",
    "usage_estimated": "BOOLEAN",
    "cost_usd": "DOUBLE",
    "cost_unknown": "BOOLEAN",
    "wasted_usd": "DOUBLE",
    "difficulty": "DOUBLE",
    "kind": "VARCHAR",
    "quantile": "DOUBLE",
    "confidence": "DOUBLE",
    "similarity": "DOUBLE",
    "ttft_ms": "DOUBLE",
    "total_ms": "DOUBLE",
    "overhead_ms": "DOUBLE",
    "error": "VARCHAR",
    "served": "INTEGER[]",
    "answer_tokens_in": "BIGINT",
    "answer_tokens_out": "BIGINT",
    "answer_estimated": "BOOLEAN",
    "counterfactual_usd": "DOUBLE",
    "prompt_cache_usd": "DOUBLE",
    "tokens_left_out": "BIGINT",
    "wasted_tokens": "BIGINT",
    "tpot_ms": "DOUBLE",
    "gap_ms": "DOUBLE",
    "queue_ms": "DOUBLE",
    "holdout": "BOOLEAN",
    "hedged": "BOOLEAN",
    "speculated": "BOOLEAN",
    "classifier": "VARCHAR",
    "embedder": "VARCHAR",
    "head": "VARCHAR",
    "slo": "MAP(VARCHAR, BOOLEAN)",
    "calls": f"{_CALL}[]",
    "stages": "MAP(VARCHAR, DOUBLE)",
    "arm": "VARCHAR",
    "unit": "VARCHAR",
    "dropped": "VARCHAR[]",
    "conversation": "VARCHAR",
    "session": "VARCHAR",
    "kept": "VARCHAR",
}
"""The DuckDB type of each field of a `Ledger`."""
JUDGED: Final[Mapping[str, str]] = {"good": "BOOLEAN", "slow": "BOOLEAN"}
"""Whether a request was good (`gateway.telemetry.ledger`), and whether it missed any objective; NULL without any."""
_DECISION: Final = (
    "STRUCT(tiers VARCHAR[], fallbacks VARCHAR[], missing VARCHAR[], weaker BOOLEAN, reason VARCHAR, stand_in VARCHAR)"
)
_GIVEN: Final = (
    "STRUCT(tokens_in BIGINT, turns INTEGER, has_tools BOOLEAN, wants_json BOOLEAN, has_images BOOLEAN, "
    f"stream BOOLEAN, {''.join(f'needs_{name} BOOLEAN, ' for name in FURTHER)}"
    "reasoning_above BOOLEAN, budget_s DOUBLE, ttft_s DOUBLE, room BIGINT, holdout BOOLEAN, min_tier VARCHAR, "
    "max_tier VARCHAR, "
    "difficulty STRUCT(in_domain BOOLEAN, kind VARCHAR, p_kind DOUBLE, quantile DOUBLE, p_right DOUBLE[]), "
    "health STRUCT(unavailable VARCHAR, failing BOOLEAN, ttft_s DOUBLE, ttft_p95_s DOUBLE, whole_s DOUBLE, "
    "queue_s DOUBLE, least_s DOUBLE, cold BOOLEAN)[], before DOUBLE, last_tier INTEGER, "
    "costs STRUCT(cold BIGINT, usd DOUBLE, cold_s DOUBLE)[])"
)


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
    record, hops = without_hops(blob)
    decided = record.get("decide") or {}
    given, out = named(decided.get("in"), decided.get("out"))
    met = record["ledger"].get("slo") or {}
    return {
        **record["ledger"],
        "good": was_good(record["ledger"]),
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
    entry = feedback.decode(blob)
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
    "requests",
    TRACES,
    {
        **_ENTRY,
        "started": "DOUBLE",
        "trace_id": "VARCHAR",
        "parent_id": "VARCHAR",
        **LEDGER,
        **JUDGED,
        "basis": "VARCHAR",
        "given": _GIVEN,
        "decision": _DECISION,
        "hops": "JSON",
    },
    _request,
)
FEEDBACK: Final = Table(
    "feedback",
    feedback.STREAM,
    {
        **_ENTRY,
        "request_id": "VARCHAR",
        "tenant": "VARCHAR",
        "surface": "VARCHAR",
        "score": "DOUBLE",
        "comment": "VARCHAR",
        "given_at": "DOUBLE",
    },
    _feedback,
)
_ANSWER: Final = (
    "STRUCT(tier VARCHAR, backend VARCHAR, model VARCHAR, served BOOLEAN, adequate DOUBLE, cost_usd DOUBLE, "
    "tokens_out BIGINT, confidence DOUBLE, evidence STRUCT(finish_reason VARCHAR, logprobs VARCHAR, "
    "alternatives INTEGER, top_logprobs VARCHAR), verified MAP(VARCHAR, DOUBLE), text VARCHAR)"
)
LABEL: Final[Mapping[str, str]] = {
    "request_id": "VARCHAR",
    "tenant": "VARCHAR",
    "surface": "VARCHAR",
    "policy": "VARCHAR",
    "judged_at": "DOUBLE",
    "conversation": "BIGINT",
    "better": "VARCHAR",
    "agreed": "BOOLEAN",
    "judge": "VARCHAR",
    "judge_usd": "DOUBLE",
    "small": _ANSWER,
    "strong": _ANSWER,
    "classifier": "VARCHAR",
    "embedder": "VARCHAR",
    "in_domain": "BOOLEAN",
    "kind": "VARCHAR",
    "quantile": "DOUBLE",
    "p_right": "DOUBLE[]",
    "tokens_in": "BIGINT",
    "has_tools": "BOOLEAN",
    "vector": "VARCHAR",
    "counts": "DOUBLE[]",
    "messages": "JSON",
    "candidate": "VARCHAR",
}
"""The DuckDB type of each field of a `PairLabel`."""
LABELS: Final = Table("labels", label.LABELS, {**_ENTRY, **LABEL}, label.decode)
TABLES: Final = (REQUESTS, FEEDBACK, LABELS)
