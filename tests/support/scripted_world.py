"""A scripted world for replay: requests, and what each tier's model would make of every one of them.

Every request has a latent difficulty. The classifier sees it through noise; so does each tier's confidence. What a
tier would do with a request (confidence, tokens, times, failure) is drawn once, so the same request gets the same from
it under every policy: `live` runs a policy over all of them, with the gateway's own `decide` and `Cascade` and a cache
of exact and reworded questions (every wording but a question's usual one occurs once), and returns the rows that the
ledger's files would hold. That is the truth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.parts.ledger.columns import LEDGER, Row
from gateway.parts.recorder.decision_record import DecisionBasis, basis_of, named, outcome_of, record_of
from policies.expression import KINDS
from policies.loader import made_policy
from policies.model import Policy
from routing.cascade import Attempt, AttemptOutcome, Cascade, Fail, Left, Serve
from routing.decide import Decision, DecisionInput, NoTierError, TierHealth, decide
from routing.difficulty.model import Difficulty
from routing.features import Features
from routing.load.latency import Forecast

CLASSIFIER: Final = "0123456789ab"
TIERS: Final = ("local", "hosted")
PRICES: Final = {"local": (0.02, 0.06), "hosted": (0.15, 0.60)}
"""US dollars for a million tokens in and out."""
_CAPABILITIES: Final = {"local": frozenset({"json"}), "hosted": frozenset({"tools", "json", "vision"})}
_DRAFT: Final = 24
"""Tokens of a stream's draft that are held back and judged."""
_SEMANTIC_SCORE: Final = 0.9
_STORED: Final = ("tier", "confidence", "answer_tokens_in", "answer_tokens_out")
"""What the row of a hit says of the stored answer."""

Floats = NDArray[np.float64]


def policy(**changes: Any) -> Policy:
    """Return the policy of the surface `chat` with other thresholds."""
    easiest = changes.get("easiest", 40)
    content: dict[str, Any] = {
        "surface": "chat",
        "slo": {"ttft": {"p99": "1500ms"}, "total": {"p99": "20s"}, "deadline": "60s"},
        "tiers": list(TIERS),
        "route": {
            "start": {
                "local": f"easiest {easiest}% of its kind and tokens_in < {changes.get('tokens', 3000)}",
                "hosted": "otherwise",
            }
        },
        "escalate": {
            "when": {"confidence_below": changes.get("confidence", 0.62)},
            "max_attempts": changes.get("max_attempts", 3),
        },
        "cache": {"exact": {"ttl": changes.get("ttl", "24h")}},
        "holdout": changes.get("holdout", 0.02),
    }
    if changes.get("semantic", True):
        content["cache"]["semantic"] = {"ttl": "6h"}
    return made_policy(content, Path("chat.yaml"), {"ladder": TIERS})


@dataclass(frozen=True, slots=True)
class Potential:
    """What one tier would make of each request: arrays of n."""

    confidence: Floats
    tokens_out: NDArray[np.int64]
    ttft_ms: Floats
    per_token_ms: Floats
    fails: NDArray[np.bool_]


class Stored(NamedTuple):
    """A stored answer: since when in Unix seconds, the number of the request, and what a hit's row says of it."""

    at_s: float
    request: int
    answer: Row


class World:
    """`n` requests from a seed, about five a second."""

    def __init__(self, n: int, seed: int = 0) -> None:
        """Draw the requests and every tier's outcomes."""
        self.n = n
        self.random = random.Random(seed)
        draw = np.random.default_rng(seed)
        repeats = draw.random(n) < 0.3
        popular = (draw.pareto(0.9, n) * 3).astype(np.int64) % max(20, n // 50)
        self.question = np.where(repeats, popular, np.arange(n) + n)
        # Equal questions are equal in everything that belongs to the question.
        self.source = np.where(repeats, popular, np.arange(n)) % n
        of = self.source
        self.reworded = repeats & (draw.random(n) < 0.3)
        self.started_s = 1_767_225_600 + np.cumsum(draw.exponential(0.2, n))
        self.tenant = np.array(["acme", "beta", "gamma"])[draw.choice(3, n, p=(0.6, 0.3, 0.1))]
        hardness = draw.random(n)[of]
        self.kind = draw.choice(5, n, p=(0.1, 0.1, 0.6, 0.15, 0.05))[of]
        self.in_domain = (draw.random(n) < 0.92)[of]
        seen = hardness + draw.normal(0, 0.15, n)[of]
        self.quantile = np.searchsorted(np.sort(seen), seen) / max(n - 1, 1)
        self.p_right = np.stack([1 / (1 + np.exp(4 * seen - 2.2)), 0.97 - 0.25 * seen.clip(0, 1)], axis=1)
        self.tokens_in = np.exp(draw.normal(5.5, 1.2, n)).astype(np.int64)[of] + 5
        self.turns = draw.geometric(0.4, n)
        self.tools = (draw.random(n) < 0.05)[of]
        self.stream = (draw.random(n) < 0.7)[of]
        length = np.exp(draw.normal(4.6, 0.7, n))[of] * (0.8 + 0.4 * hardness)
        self.load = 1 + 0.4 * np.sin(np.arange(n) / max(n, 1) * 40) + draw.normal(0, 0.05, n)
        self.potential = {
            "local": Potential(
                (1 / (1 + np.exp(5 * hardness - 3 + draw.normal(0, 0.8, n)[of]))).clip(0.001, 0.999),
                (length * np.exp(draw.normal(0, 0.2, n)[of])).astype(np.int64) + 2,
                (90 + 0.05 * self.tokens_in) * self.load * np.exp(draw.normal(0, 0.3, n)),
                np.full(n, 7.0),
                draw.random(n) < 0.005,
            ),
            "hosted": Potential(
                (1 / (1 + np.exp(2 * hardness - 3 + draw.normal(0, 0.5, n)[of]))).clip(0.001, 0.999),
                (length * 1.2 * np.exp(draw.normal(0, 0.2, n)[of])).astype(np.int64) + 2,
                (310 + 0.02 * self.tokens_in) * np.exp(draw.normal(0, 0.4, n)),
                np.full(n, 12.0),
                draw.random(n) < 0.003,
            ),
        }
        self.down = draw.random(n) < 0.01
        self.held_out = draw.random(n)

    def inputs(self, policy: Policy, at: int) -> DecisionInput:
        """Return the input of the decision on one request."""
        kind, in_domain = KINDS[self.kind[at]], bool(self.in_domain[at])
        p_right = tuple(self.p_right[at].tolist())
        difficulty = (
            Difficulty(p_right, True, CLASSIFIER, kind, float(self.quantile[at]), 0.9)
            if in_domain
            else Difficulty(p_right, False, CLASSIFIER)
        )
        stream, tokens = bool(self.stream[at]), int(self.tokens_in[at])
        health = {name: self._health(name, at) for name in policy.ladder}
        held_out = bool(self.held_out[at] < policy.holdout)
        features = Features("", int(self.turns[at]), tokens, bool(self.tools[at]), False, False, stream)
        ttft_s = 1.499 if stream else None
        return DecisionInput(difficulty, features, health, 59.998, ttft_s, None, held_out, tokens * 2 + 256)

    def _health(self, name: str, at: int) -> TierHealth:
        capabilities, context = _CAPABILITIES[name], 8192 if name == "local" else 128_000
        if name == "local" and self.down[at]:
            return TierHealth(name, capabilities, 1, "resting after failures", True, None, context)
        base = (90 + 0.05 * self.tokens_in[at]) * self.load[at] if name == "local" else 310.0
        ttft = float(base) / 1000
        forecast = Forecast(ttft, ttft * 1.7, ttft * 6, 0.0, known=True, least_s=ttft / 3)
        return TierHealth(name, capabilities, 1, forecast=forecast, context=context)

    def live(self, policy: Policy) -> Iterator[Row]:
        """Yield the ledger's row of each request, as this policy would have served it."""
        stored: dict[tuple[str, int], Stored] = {}
        stored_words: dict[tuple[str, int], Stored] = {}
        basis_id, _ = self.basis(policy).encode()
        exact, semantic = policy.cache.exact, policy.cache.semantic
        for at in range(self.n):
            now, tenant, question = float(self.started_s[at]), str(self.tenant[at]), int(self.question[at])
            own = (tenant, -at - 1 if self.reworded[at] else question)
            row = self._row(policy, at)
            hit = stored.get(own) if exact else None
            if hit is not None and exact is not None and now - hit.at_s < exact.ttl:
                yield self._hit(row, at, "cache-exact", hit, now)
                continue
            hit = stored_words.get((tenant, question)) if semantic else None
            if hit is not None and semantic is not None and now - hit.at_s < semantic.ttl:
                yield self._hit(row, at, "cache-semantic", hit, now)
                continue
            self._served(policy, at, row)
            row["basis"] = basis_id
            if row["path"] in ("direct", "escalated") and question < self.n and not self.reworded[at]:
                answer = {name: row[name] for name in _STORED}
                stored[own] = stored_words[tenant, question] = Stored(now, at, answer)
            yield row

    def ratings(self, rows: Sequence[Row], share: float = 0.1) -> list[Row]:
        """Return the feedback that clients give on so many of the answers of tiers: 1 for a right one, else 0."""
        draw = np.random.default_rng(self.n)
        asked, right = draw.random(self.n) < share, draw.random(self.n)
        return [
            {
                **{name: row[name] for name in ("entry_ms", "entry_seq", "request_id", "tenant", "surface")},
                "ordinal": number,
                "score": float(right[at] < self.p_right_of(row, at)),
                "comment": None,
                "given_at": row["started"],
            }
            for number, (at, row) in enumerate(enumerate(rows), start=1)
            if asked[at] and row["tier"] and row["basis"]
        ]

    def p_right_of(self, row: Row, at: int) -> float:
        """Return the probability that the answer in a request's row is right, a hit's by who asked first; NaN of none.

        Confidences are calibrated.
        """
        if not row["tier"]:
            return math.nan
        for hop in row["hops"]:
            at = int(hop["attributes"]["tierline.cache.entry"][1:])
        return float(self.potential[row["tier"]].confidence[at])

    def basis(self, policy: Policy) -> DecisionBasis:
        """Return the basis of all decisions by this policy."""
        return basis_of(policy, self.inputs(policy, 0), {"classifier": CLASSIFIER})

    def _row(self, policy: Policy, at: int) -> Row:
        row: Row = dict.fromkeys(LEDGER)
        started = float(self.started_s[at])
        row |= {
            "entry_ms": int(started * 1000),
            "entry_seq": at,
            "ordinal": at + 1,
            "started": started,
            "trace_id": f"{at:032x}",
            "request_id": f"req_{at:08x}",
            "tenant": str(self.tenant[at]),
            "surface": "chat",
            "policy": policy.label,
            "stream": bool(self.stream[at]),
            "status": 200,
            "attempts": 0,
            "cost_usd": 0.0,
            "wasted_usd": 0.0,
            "tokens_in": 0,
            "tokens_out": 0,
            "calls": [],
            "hops": [],
            "basis": None,
            "given": None,
            "decision": None,
        }
        return row

    def _hit(self, row: Row, at: int, path: str, stored: Stored, now: float) -> Row:
        name, age = ("cache.exact" if path == "cache-exact" else "cache.semantic"), now - stored.at_s
        entry = {"tierline.cache.outcome": "hit", "tierline.cache.entry": f"e{stored.request}"}
        entry |= {"tierline.cache.age_s": age, "tierline.cache.created_at": stored.at_s}
        row |= {"path": path, "ttft_ms": 1.0, "total_ms": 1.5, **stored.answer}
        row["hops"] = [{"name": name, "attributes": {**entry, "tierline.cache.score": _SEMANTIC_SCORE}}]
        return row

    def _served(self, policy: Policy, at: int, row: Row) -> None:
        given = self.inputs(policy, at)
        decision: Decision | None = None
        try:
            decision = decide(policy, given)
        except NoTierError:
            row |= {"status": 503, "error": "no_tier", "path": "", "total_ms": 1.0}
        row["given"], row["decision"] = named(record_of(given), None if decision is None else outcome_of(decision))
        row["holdout"] = given.holdout
        if decision is not None:
            self._cascade(policy, at, row, given, decision)

    def _cascade(self, policy: Policy, at: int, row: Row, given: DecisionInput, decision: Decision) -> None:
        stream, tokens = given.features.stream, int(self.tokens_in[at])
        cascade = Cascade(decision, policy, given.health, stream=stream)
        elapsed, calls = 0.5, row["calls"]
        served: dict[str, Any] | None = None
        while served is None:
            left = Left(given.budget_s - elapsed / 1000, given.ttft_s - elapsed / 1000 if given.ttft_s else None)
            step = cascade.next(left)
            if isinstance(step, Fail):
                row |= {"status": 502, "error": "upstream_failed", "path": "", "total_ms": elapsed}
                return
            if isinstance(step, Serve):
                served = calls[step.number - 1]
                break
            if not isinstance(step, Attempt):
                raise AssertionError(f"nothing runs beside another attempt here: {step}")
            call = self._call(step, at, tokens, elapsed)
            calls.append(call)
            outcome, spent = self._outcome(policy, step, cascade, call, at, left, stream=stream)
            elapsed += spent
            call["outcome"] = outcome.kind
            cascade.observe(outcome)
        for call in calls:
            call["wasted"] = call is not served
        row |= {
            "path": cascade.path,
            "tier": served["tier"],
            "attempts": len(calls),
            "cost_usd": sum(call["cost_usd"] for call in calls),
            "wasted_usd": sum(call["cost_usd"] for call in calls if call["wasted"]),
            "confidence": served["confidence"],
            "answer_tokens_in": served["tokens_in"],
            "answer_tokens_out": served["tokens_out"],
            "total_ms": served["start_ms"] + served["total_ms"],
        }
        held = _DRAFT * float(self.potential[served["tier"]].per_token_ms[at]) if served["basis"] else 0.0
        row["ttft_ms"] = served["start_ms"] + served["ttft_ms"] + held if stream else row["total_ms"]

    def _call(self, step: Attempt, at: int, tokens: int, elapsed: float) -> dict[str, Any]:
        would = self.potential[step.tier]
        out = int(would.tokens_out[at])
        ttft = float(would.ttft_ms[at])
        return {
            "attempt": step.number,
            "tier": step.tier,
            "backend": step.tier,
            "model": f"{step.tier}-1",
            "outcome": "",
            "tokens_in": tokens,
            "tokens_out": out,
            "estimated": False,
            "cost_usd": _cost(step.tier, tokens, out),
            "wasted": False,
            "queue_ms": 0.0,
            "ttft_ms": ttft if self.stream[at] else None,
            "total_ms": ttft + float(would.per_token_ms[at]) * out,
            "start_ms": elapsed,
            "confidence": None,
            "basis": "",
            "fault": "",
            "finish": "stop",
        }

    def _outcome(
        self,
        policy: Policy,
        step: Attempt,
        cascade: Cascade,
        call: dict[str, Any],
        at: int,
        left: Left,
        *,
        stream: bool,
    ) -> tuple[AttemptOutcome, float]:
        """Return how the attempt ends, and the milliseconds until then."""
        would = self.potential[step.tier]
        if would.fails[at]:
            call |= {"tokens_out": 0, "cost_usd": 0.0, "total_ms": 20.0, "ttft_ms": None, "finish": ""}
            return AttemptOutcome("retryable", "timeout"), 20.0
        if not step.judged:
            return AttemptOutcome("accepted", kept=True), call["total_ms"]
        confidence = float(would.confidence[at])
        call |= {"confidence": confidence, "basis": "calibrated"}
        if confidence >= policy.escalate.when.threshold(calibrated=True):
            return AttemptOutcome("accepted", "", confidence, kept=True), call["total_ms"]
        if not stream:
            return AttemptOutcome("low_confidence", "", confidence, kept=True), call["total_ms"]
        spent = call["ttft_ms"] + _DRAFT * float(would.per_token_ms[at])
        after = Left(left.total_s - spent / 1000, left.ttft_s - spent / 1000 if left.ttft_s is not None else None)
        if step.final or not cascade.takes_over(after):
            return AttemptOutcome("low_confidence", "", confidence, kept=True), call["total_ms"]
        call |= {"tokens_out": _DRAFT, "total_ms": spent, "cost_usd": _cost(step.tier, call["tokens_in"], _DRAFT)}
        return AttemptOutcome("low_confidence", "", confidence), spent


def _cost(tier: str, tokens_in: int, tokens_out: int) -> float:
    price_in, price_out = PRICES[tier]
    return (tokens_in * price_in + tokens_out * price_out) / 1e6
