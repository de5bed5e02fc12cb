"""Ask the archive for what a judge and people say of answers, and for the inputs that routing reads.

`tierline learn quality` and the console's page on quality ask the same: with `$surface` NULL of all surfaces, from the
entry `$from_ms` on (milliseconds since 1970; 0 for all that is kept).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.archive.columns import Row
from gateway.archive.summaries import Summary

_SURFACE: Final = "($surface IS NULL OR {0}surface = $surface) AND {0}entry_ms >= $from_ms"
_LABELS: Final = f"SELECT * FROM labels WHERE {_SURFACE.format('')} ORDER BY judged_at"
_SCORES: Final = f"SELECT surface, tenant, request_id, score FROM feedback WHERE {_SURFACE.format('')}"
_RATED: Final = """
SELECT r.surface, r.tenant, r.request_id, r.tier, r.model, r.confidence, r.given.difficulty.in_domain AS in_domain,
    r.given.difficulty.p_right AS p_right, json_extract_string(b.basis, '$.ladder[*]') AS ladder, f.score{words}
FROM requests r JOIN feedback f USING (tenant, request_id) LEFT JOIN bases b ON b.id = r.basis
WHERE {asked} AND r.status = 200 AND r.tier <> '' AND r.path NOT LIKE 'cache-%'
"""
_WORDS: Final = """, r.started, r.session, r.kind,
    list_filter(r.calls, lambda one: NOT one.wasted AND one.verifier <> '')[1].verifier AS verifier,
    list_filter(r.calls, lambda one: NOT one.wasted AND one.verifier <> '')[1].verified AS verified"""
_SHADOWS: Final = f"""
SELECT surface, candidate, conversation, shadow.adequate AS new, served.adequate AS present,
    CASE better WHEN 'shadow' THEN 'new' WHEN 'served' THEN 'present' ELSE '' END AS better
FROM shadow_labels WHERE {_SURFACE.format("")} ORDER BY judged_at
"""
_ANSWER: Final = ", ".join(f"{name} := {{0}}.{name}" for name in ("tier", "model", "served", "adequate", "confidence"))
OPINIONS: Final = f"""
SELECT surface, tenant, request_id, in_domain, p_right, struct_pack({_ANSWER.format("small")}) AS small,
    struct_pack({_ANSWER.format("strong")}) AS strong
FROM labels WHERE {_SURFACE.format("")} ORDER BY judged_at
"""
"""The labels without what a fit takes of them, such as vectors: in place of `labels` where only figures are made."""
_LADDERS: Final = f"""
SELECT surface, json_extract_string(b.basis, '$.ladder[*]') AS ladder
FROM (SELECT surface, arg_max(basis, entry_ms) AS basis FROM requests
    WHERE {_SURFACE.format("")} AND basis IS NOT NULL GROUP BY surface) r JOIN bases b ON b.id = r.basis
"""
QUERIES: Final[Mapping[str, str]] = {
    "labels": _LABELS, "scores": _SCORES, "rated": _RATED.format(asked=_SURFACE.format("r."), words=""),
    "shadows": _SHADOWS, "ladders": _LADDERS,
}  # fmt: skip
"""What `surface_labels` takes the rows of, by name."""
TO_FIT: Final = {**QUERIES, "rated": _RATED.format(asked=_SURFACE.format("r."), words=_WORDS)}
"""The same, with what the verifiers said of the rated answers, which confidence heads are fitted to."""
DRAWN: Final = Summary(
    "drawn",
    "SELECT hash(tenant, request_id) AS key, surface, holdout, entry_ms AS slot_ms FROM rows "
    "WHERE holdout IS NOT NULL AND NOT contains(surface, '/') AND surface <> ''",
    1,
    86400.0 + 3600,
)
"""The requests that took part in the draw of the holdout, which feedback and labels are of."""
HOLDOUT: Final = """
SELECT tenant, request_id, d.surface, d.holdout, score FROM (
    SELECT tenant, request_id, max(score) AS score FROM (
        SELECT tenant, request_id, score FROM feedback_all WHERE entry_ms >= $from_ms
            QUALIFY row_number() OVER (PARTITION BY tenant, request_id ORDER BY entry_ms DESC, entry_seq DESC) = 1
        UNION ALL SELECT tenant, request_id, NULL FROM labels WHERE entry_ms >= $from_ms
    ) GROUP BY tenant, request_id
) JOIN drawn d ON hash(tenant, request_id) = d.key
"""
"""SQL of the drawn requests that were rated or judged since `$from_ms`."""
SLOT_MS: Final = 3 * 3600 * 1000
"""Milliseconds of the request times that one row of the summaries covers."""
INPUTS: Final = Summary(
    "inputs",
    f"""SELECT surface, entry_ms - entry_ms % {SLOT_MS} AS slot_ms, kind,
    least(floor(10 * quantile), 9)::TINYINT AS quantile,
    CASE WHEN classifier <> '' THEN quantile IS NOT NULL END AS in_domain,
    floor(4 * log2(greatest(answer_tokens_in, 1)))::TINYINT AS length, count(*) AS requests
FROM rows WHERE surface <> '' AND status = 200 AND path <> '' AND NOT starts_with(path, 'cache-') GROUP BY ALL""",
    SLOT_MS,
)
"""What routing reads of requests, in bins.

`length` counts quarters of a doubling of the prompt's tokens, `quantile` tenths of the classifier's reference prompts
of its kind, from the easiest on; it is NULL outside the classifier's domain. These are columns of the ledger: to read
one field of `given` is to read all of it, which takes ten times as long.
"""
INPUTS_NOW: Final = """
SELECT surface, slot_ms >= $recent_ms AS now, kind, quantile, in_domain, length, sum(requests) AS requests
FROM inputs GROUP BY ALL
"""
"""The inputs of requests before a slot that begins at `$recent_ms`, and from it on."""
RULED: Final = Summary(
    "ruled",
    f"""SELECT surface, entry_ms - entry_ms % {SLOT_MS} AS slot_ms, max(entry_ms) AS latest_ms,
    arg_max(basis, entry_ms) FILTER (basis IS NOT NULL) AS basis, count(*) FILTER (NOT holdout) AS routed,
    count(*) FILTER (holdout) AS held_out
FROM rows WHERE surface <> '' GROUP BY ALL""",
    SLOT_MS,
)
"""How many requests took part in the draw of the holdout, and by which basis the latest was decided."""
RULES: Final = """
SELECT r.surface, r.routed, r.held_out, json_extract_string(b.basis, '$.ladder[*]') AS ladder,
    b.basis::VARCHAR AS basis
FROM (SELECT surface, sum(routed) AS routed, sum(held_out) AS held_out,
        arg_max(basis, latest_ms) FILTER (basis IS NOT NULL) AS basis FROM ruled GROUP BY surface) r
LEFT JOIN bases b ON b.id = r.basis
"""
"""SQL of one row per surface: requests routed and held out, the latest basis of decisions, and its ladder."""


@dataclass(slots=True)
class SurfaceLabels:
    """Labels, oldest first; people's scores by (tenant, request id); scores of answers without a label, by tier."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    feedback: dict[tuple[str, str], float] = field(default_factory=dict)
    unjudged: dict[str, list[float]] = field(default_factory=dict)
    shadows: dict[str, list[tuple[int, float, float, str]]] = field(default_factory=dict)
    """By candidate policy in shadow mode, as `gateway.measures.quality.paired_quality` takes them."""
    rated: list[Mapping[str, Any]] = field(default_factory=list)
    """Fresh answers that people rated, with what was predicted of them."""
    ladder: Sequence[str] = ()
    """The tiers, the cheapest first; empty where it is not known."""


def surface_labels(found: Mapping[str, Iterable[Row]]) -> dict[str, SurfaceLabels]:
    """Return what is said of each surface's answers, from the rows of QUERIES."""
    surfaces: dict[str, SurfaceLabels] = {}

    def of(row: Row) -> SurfaceLabels:
        return surfaces.setdefault(row["surface"], SurfaceLabels())

    for row in found["labels"]:
        of(row).rows.append(row)
    for row in found["scores"]:
        of(row).feedback[row["tenant"], row["request_id"]] = float(row["score"])
    labelled = {(row["tenant"], row["request_id"]) for one in surfaces.values() for row in one.rows}
    for row in found["rated"]:
        one = of(row)
        one.rated.append(row)
        if (row["tenant"], row["request_id"]) not in labelled:
            one.unjudged.setdefault(row["tier"], []).append(float(row["score"]))
    for row in found["shadows"]:
        pair = row["conversation"], row["new"], row["present"], row["better"]
        of(row).shadows.setdefault(row["candidate"], []).append(pair)
    for row in found["ladders"]:
        of(row).ladder = row["ladder"] or ()
    return surfaces
