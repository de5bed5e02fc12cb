"""Hold a policy's thresholds, budgets and rules against what was recorded of its surface: confidences, times, starts.

`archive_evidence` reads what it needs from the archive of the ledger; `lint_against` finds what does not fit it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.lint.rules import without_rule
from gateway.parts.recorder.decision_record import input_of
from policies.errors import Edit, Finding, KeyPath
from policies.expression import OTHERWISE
from policies.model import Policy, Rules
from policies.quantities import write_duration
from routing.confidence.judge import CALIBRATED
from routing.decide import DecisionInput, start_by_rules

if TYPE_CHECKING:
    import duckdb

BINS: Final = 100
_OTHER_SCORES: Final = frozenset({"logprob", "judge", "agreement"})
_ENOUGH_SCORES: Final = 50
_ENOUGH_REQUESTS: Final = 100
_ENOUGH_FOR_NEVER: Final = 1000
"""Fewest requests after which a rule of `cache.never` that held for none is reported: most guard against the rare."""
_NEARLY_ALL: Final = 0.95
_FROM_GIVEN: Final[Mapping[str, str]] = {
    "tools": "has_tools",
    "images": "has_images",
    "json": "wants_json",
    "stream": "stream",
    "turns": "turns",
    "tokens_in": "tokens_in",
}
"""The values of `cache.never` that the record of a decision has, by their names there. Of others it only says which
rule kept a request out."""
_NEVER: Final = "never: "
"""Beginning of the reason that the cache gives where a rule of `never` holds (cache.planning.eligibility)."""
_MOST_DECISIONS: Final = 20_000
"""Most recorded decisions, the latest, whose start rules are evaluated again: about half a second."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many scores from 0 to 1 fell into each of BINS equal parts."""

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """The number of scores."""
        return sum(self.counts)

    def share_below(self, threshold: float) -> float:
        """Return the share of scores below a threshold, to the width of a bin."""
        return sum(self.counts[: round(threshold * BINS)]) / self.total

    def quantile(self, share: float) -> float:
        """Return the upper end of the bin within which this share of the scores is reached."""
        seen = 0
        for i, count in enumerate(self.counts):
            seen += count
            if seen >= share * self.total and count:
                return (i + 1) / BINS
        return 1.0

    def __str__(self) -> str:
        """Return twenty bars from 0 to 1, such as `0 ▁▁▂▅█▂ 1`."""
        width = BINS // 20
        bars = [sum(self.counts[i : i + width]) for i in range(0, BINS, width)]
        most = max(bars)
        return f"0 {''.join('▁▂▃▄▅▆▇█'[round(7 * bar / most)] if bar else '·' for bar in bars)} 1"


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The times to the first token of one tier's calls: how many, and two quantiles in seconds."""

    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class KeptOut:
    """How many requests a rule of `cache.never` was asked about, and how many of them it kept out of the cache."""

    requests: int
    held: int


@dataclass(frozen=True, slots=True)
class LintEvidence:
    """What was recorded of one surface."""

    requests: int = 0
    """The requests whose decision was recorded."""
    with_tools: int = 0
    """Those of them that offered tools."""
    started: Mapping[str, int] = field(default_factory=dict)
    """How many of them start at each tier by the rules of the policy at hand, whatever policy was in force then."""
    calibrated: Mapping[str, Histogram] = field(default_factory=dict)
    """The confidences of each tier's answers that come from a confidence head."""
    uncalibrated: Mapping[str, Histogram] = field(default_factory=dict)
    """Those that come from the mean token probability or the agreement of samples."""
    first_tokens: Mapping[str, FirstTokens] = field(default_factory=dict)
    kept_out: Mapping[str, KeptOut] = field(default_factory=dict)
    """By rule of `cache.never`, as it is written."""


def archive_evidence(database: duckdb.DuckDBPyConnection, policy: Policy, oldest: float | None = None) -> LintEvidence:
    """Return what the archive (gateway.parts.ledger.query) has of the surface, from the Unix time `oldest` on."""
    values = {"surface": policy.surface, "oldest": oldest or 0.0}
    where = "surface = $surface AND started_s >= $oldest"
    calls = f"(SELECT unnest(calls, recursive := true) FROM requests WHERE {where})"

    def rows(sql: str) -> list[tuple[Any, ...]]:
        return database.execute(sql, values).fetchall()

    scores: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
    for tier, calibrated, part, count in rows(
        f"SELECT tier, basis IN {CALIBRATED}, least({BINS - 1}, floor(confidence * {BINS}))::INTEGER AS part, count(*) "
        f"FROM {calls} WHERE confidence IS NOT NULL AND basis NOT IN ('', 'none') GROUP BY ALL"
    ):
        scores[calibrated].setdefault(tier, [0] * BINS)[part] = count
    first = rows(
        "SELECT tier, count(*), quantile_cont(ttft_ms, 0.5) / 1000, quantile_cont(ttft_ms, 0.95) / 1000 "
        f"FROM {calls} WHERE ttft_ms IS NOT NULL GROUP BY tier"
    )
    decided = rows(
        f"SELECT given, classifier FROM requests WHERE {where} AND given IS NOT NULL "
        f"ORDER BY started_s DESC LIMIT {_MOST_DECISIONS}"
    )
    started = dict.fromkeys(policy.route.start, 0)
    for given, classifier in decided:
        made = input_of({**given, "health": []}, (), classifier or "")
        tier, _ = start_by_rules(policy, made.difficulty, made.features, made.budget_s)
        started[tier] += 1
    return LintEvidence(
        len(decided),
        sum(given["has_tools"] for given, _ in decided),
        started,
        {tier: Histogram(tuple(counts)) for tier, counts in scores[True].items()},
        {tier: Histogram(tuple(counts)) for tier, counts in scores[False].items()},
        {tier: FirstTokens(count, p50, p95) for tier, count, p50, p95 in first},
        _kept_out(database, policy, where, values) if policy.cache.never else {},
    )


def _kept_out(
    database: duckdb.DuckDBPyConnection, policy: Policy, where: str, values: Mapping[str, Any]
) -> dict[str, KeptOut]:
    """Return what each rule of `cache.never` kept out of the cache.

    A rule on values that were recorded is evaluated again, wherever they were. Another counts under the policies that
    had it, and where it was the first to hold: the record has its reason. A request that was answered from the store
    has no values; under a policy that had the rule, it did not hold.
    """
    by_version = database.execute(
        "SELECT DISTINCT basis->>'version', basis->'content'->'cache'->'never' FROM bases "
        "WHERE basis->'content'->>'surface' = $surface",
        {"surface": policy.surface},
    ).fetchall()
    had: dict[str, set[str]] = {}
    for version, never in by_version:
        for source in json.loads(never or "[]"):
            had.setdefault(" ".join(str(source).split()), set()).add(f"{policy.surface}@{version[:7]}")
    looked_up = '$[*].attributes."tierline.cache.reason"'
    rows = database.execute(
        f"SELECT policy, given, list_filter(json_extract_string(hops, '{looked_up}'), lambda x: x LIKE '{_NEVER}%')[1] "
        f"FROM requests WHERE {where} AND (given IS NOT NULL OR path LIKE 'cache%') "
        f"ORDER BY started_s DESC LIMIT {_MOST_DECISIONS}",
        values,
    ).fetchall()
    counts: dict[str, KeptOut] = {}
    for rule in policy.cache.never:
        held, seen, labels = 0, 0, had.get(rule.source, set())
        known = rule.names <= _FROM_GIVEN.keys()
        for label, given, reason in rows:
            if known and given is not None:
                seen += 1
                held += rule.holds({name: given[column] for name, column in _FROM_GIVEN.items()})
            elif label in labels:
                seen += 1
                held += reason == f"{_NEVER}{rule.source}"
        counts[rule.source] = KeptOut(seen, held)
    return counts


def lint_against(policy: Rules, evidence: LintEvidence) -> list[Finding]:
    """Return what in a policy does not fit what was recorded; nothing where too little was."""
    return [
        *_thresholds(policy, evidence),
        *_budgets(policy, evidence),
        *_starts(policy, evidence),
        *_never(policy, evidence),
    ]


def _thresholds(policy: Rules, evidence: LintEvidence) -> Iterator[Finding]:
    when = policy.escalate.when
    for name, threshold, seen in (
        ("confidence_below", when.confidence_below, evidence.calibrated),
        ("uncalibrated_below", when.threshold(calibrated=False), evidence.uncalibrated),
    ):
        at: KeyPath = ("escalate", "when", name)
        for tier in policy.tiers[:-1]:
            scores = seen.get(tier)
            if not threshold or scores is None or scores.total < _ENOUGH_SCORES:
                continue
            below = scores.share_below(threshold)
            if 0.001 <= below <= 0.995:
                continue
            outcome = "so nothing is escalated for it" if below < 0.5 else "so nearly all of its answers are"
            new = f"{scores.quantile(0.2):g}"
            yield Finding(
                at,
                f"{below:.1%} of {scores.total} scores of {tier!r} are below {threshold:g}, {outcome}: {scores}",
                "T801",
                f"write {new}, below which a fifth of them are, or let `tierline fit calibrate` choose",
                (Edit(at, new),),
            )


def _budgets(policy: Rules, evidence: LintEvidence) -> Iterator[Finding]:
    ttft = policy.slo.ttft
    given = [(name, value) for name, value in (("p99", ttft.p99), ("p95", ttft.p95), ("p50", ttft.p50)) if value]
    for tier in policy.route.start:
        seen = evidence.first_tokens.get(tier)
        if not given or seen is None or seen.count < _ENOUGH_SCORES:
            continue
        name, budget = given[0]
        if seen.p50 > budget:
            at: KeyPath = ("slo", "ttft", name)
            new = write_duration(float(f"{min(seen.p95, policy.slo.deadline):.2g}"))
            yield Finding(
                at,
                f"half of the first tokens of {tier!r} came later than {write_duration(float(f'{seen.p50:.3g}'))}, in "
                f"{seen.count} calls: requests that start there mostly miss this",
                "T802",
                f"write {new}, its 95th percentile, or start elsewhere",
                (Edit(at, new),),
            )


def _starts(policy: Rules, evidence: LintEvidence) -> Iterator[Finding]:
    if evidence.requests < _ENOUGH_REQUESTS:
        return
    for tier, rule in policy.route.start.items():
        if rule.source != OTHERWISE and not evidence.started.get(tier):
            at: KeyPath = ("route", "start", tier)
            mend, edits = without_rule(policy, at)
            yield Finding(at, f"took none of the {evidence.requests} requests recorded", "T803", mend, edits)
    if policy.cache.semantic is not None and evidence.with_tools > evidence.requests / 2:
        at = ("cache", "semantic")
        share = evidence.with_tools / evidence.requests
        message = f"{share:.0%} of {evidence.requests} requests offered tools, and none of these can use it"
        yield Finding(at, message, "T503", "leave it out", (Edit(at),))


def _never(policy: Rules, evidence: LintEvidence) -> Iterator[Finding]:
    """Return the rules of `cache.never` that kept nothing out, or nearly everything. None is mended by a script.

    A rule may guard against what has not come yet, and what it keeps out may have its reason.
    """
    cache = policy.cache
    if cache.exact is None and cache.semantic is None:
        return
    for i, rule in enumerate(cache.never):
        seen, at = evidence.kept_out.get(rule.source), ("cache", "never", i)
        if seen is None or seen.requests < _ENOUGH_REQUESTS:
            continue
        share = seen.held / seen.requests
        if not seen.held and seen.requests >= _ENOUGH_FOR_NEVER:
            message = f"{rule.source!r} kept out none of the {seen.requests} requests recorded (0.0%)"
            yield Finding(at, message, "T804", "leave it out, unless it guards against what may still come")
        elif share >= _NEARLY_ALL:
            message = f"{rule.source!r} kept out {seen.held} of the {seen.requests} requests recorded ({share:.1%})"
            yield Finding(
                at, message, "T805", "narrow it, or leave out `exact` and `semantic`: they serve hardly anybody"
            )


def lint_rows(policy: Policy, rows: Sequence[Mapping[str, Any]], inputs: Sequence[DecisionInput]) -> Iterator[Finding]:
    """Yield what does not fit recorded requests, and what those of them that were routed were decided by.

    What kept them out of the cache is not looked at.
    """
    scores: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
    first: dict[str, list[float]] = {}
    for row in rows:
        for call in row["calls"] or ():
            tier, confidence, basis = call["tier"], call["confidence"], call["basis"]
            if confidence is not None and (basis in CALIBRATED or basis in _OTHER_SCORES):
                counts = scores[basis in CALIBRATED].setdefault(tier, [0] * BINS)
                counts[min(BINS - 1, int(confidence * BINS))] += 1
            if call["ttft_ms"] is not None:
                first.setdefault(tier, []).append(call["ttft_ms"] / 1000)
    started = Counter(start_by_rules(policy, given.difficulty, given.features, given.budget_s)[0] for given in inputs)
    calibrated, uncalibrated = (
        {tier: Histogram(tuple(counts)) for tier, counts in scores[kind].items()} for kind in (True, False)
    )
    tokens = {tier: _first_tokens(sorted(times)) for tier, times in first.items()}
    with_tools = sum(given.features.has_tools for given in inputs)
    evidence = LintEvidence(len(inputs), with_tools, started, calibrated, uncalibrated, tokens)
    yield from lint_against(policy, evidence)


def _first_tokens(ordered: Sequence[float]) -> FirstTokens:
    last = len(ordered) - 1
    return FirstTokens(len(ordered), ordered[last // 2], ordered[last * 95 // 100])
