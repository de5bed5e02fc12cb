"""Present cache scopes and entries as JSON values, for the admin API and `tierline cache`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import orjson
from prometheus_client.parser import text_string_to_metric_families

from cache.text.conversation import readable
from gateway.parts.cache_admin.administration import Found, ScopeStats

_BEGINNING: Final = 300
_LOOKUPS: Final = "tierline_cache_lookups_total"


def scope_shown(stats: ScopeStats) -> dict[str, Any]:
    """Return one scope as JSON values: its owner (`tenant` or `team`), its entries, and their bytes as stored."""
    scope = stats.scope
    kind, _, name = scope.owner.partition(":")
    return {
        "surface": scope.surface,
        kind: name,
        "policy": scope.policy,
        "models": scope.models,
        "generation": scope.generation,
        "current": stats.current,
        "entries": stats.entries,
        "bytes": stats.bytes,
    }


def entry_shown(found: Found, now: float | None = None) -> dict[str, Any]:
    """Return one entry as JSON values, with the first 300 characters of its answer.

    `now` is in Unix seconds. The question is '' where the deployment does not keep prompts.
    """
    entry, now = found.entry, time.time() if now is None else now
    kind, _, name = found.scope.owner.partition(":")
    return {
        "id": found.id,
        "surface": entry.surface,
        kind: name,
        "policy": entry.policy,
        "generation": found.scope.generation,
        "question": readable(entry.question),
        "answer": _answer(entry.body),
        "tier": entry.tier,
        "backend": entry.backend,
        "model": entry.model,
        "confidence": entry.confidence,
        "age_s": round(max(0.0, now - entry.created_at), 1),
        "ttl_left_s": round(max(0.0, entry.expires_at - now), 1),
        "in_doubt": entry.in_doubt,
        "bytes": found.bytes,
        "tags": [tag for tag, _ in entry.tags],
        "copy_of": entry.origin[:12] or None,
        "similarity": entry.similarity,
        "copies": len(found.copies),
    }


def lookups_of(exposition: str) -> dict[str, dict[str, int]]:
    """Count cache lookups by cache (exact, semantic) and outcome, from the text of `/metrics`."""
    counts: dict[str, dict[str, int]] = {}
    lines = [line for line in exposition.splitlines(keepends=True) if _LOOKUPS in line]
    for family in text_string_to_metric_families("".join(lines)):
        for sample in family.samples:
            if sample.name == _LOOKUPS:
                outcomes = counts.setdefault(sample.labels["hop"].removeprefix("cache."), {})
                outcome = sample.labels["outcome"]
                outcomes[outcome] = outcomes.get(outcome, 0) + int(sample.value)
    return counts


def _answer(body: bytes) -> str:
    """Return the beginning of the first choice's text, or of its tool calls as JSON."""
    try:
        message = orjson.loads(body)["choices"][0]["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ""
    parts: Iterable[object] = (message.get("content"), message.get("tool_calls"))
    shown = next((part for part in parts if part), "")
    return (shown if isinstance(shown, str) else orjson.dumps(shown).decode())[:_BEGINNING]
