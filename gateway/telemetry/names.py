"""Define every span and attribute name that Tierline emits, in one place because the GenAI conventions still change.

`gen_ai.*` (OpenTelemetry GenAI semantic conventions) appears only on real model and embedding calls; `error.type`
and `http.*` are OpenTelemetry's general names; our own steps are under `tierline.*`.
"""

from __future__ import annotations

from typing import Final

# Hops, in the order of one request.
REQUEST: Final = "request"
CACHE_EXACT: Final = "cache.exact"
EMBED: Final = "embed"
CACHE_SEMANTIC: Final = "cache.semantic"
CACHE_FOLLOW: Final = "cache.follow"  # shares the answer of an identical request in flight
ROUTE: Final = "route"
ATTEMPT: Final = "attempt"
SAMPLE: Final = "sample"  # within an attempt: another answer of the backend, to compare for agreement
CACHE_WRITE: Final = "cache.write"
HOP_SHED: Final = "shed"  # rejected because too many requests wait; the last hop of its request

# The request.
REQUEST_ID: Final = "tierline.request_id"
TENANT: Final = "tierline.tenant"
SURFACE: Final = "tierline.surface"
POLICY: Final = "tierline.policy"
ARM: Final = "tierline.arm"  # candidate or control, while a canary runs on the surface
PATH: Final = "tierline.path"
STATUS: Final = "http.response.status_code"
STREAM: Final = "tierline.stream"
STREAM_END: Final = "tierline.stream.end"
DONE_SYNTHESISED: Final = "tierline.stream.done_synthesised"  # finished, but the upstream's [DONE] was missing
COST: Final = "tierline.cost_usd"
WASTED: Final = "tierline.wasted_usd"
TTFT: Final = "tierline.ttft_ms"
OVERHEAD: Final = "tierline.overhead_ms"
PROMPT: Final = "tierline.prompt"
CLIENT_RETRY: Final = "tierline.client_retry"
ATTEMPTS: Final = "tierline.attempts"
WASTED_TOKENS: Final = "tierline.wasted_tokens"
COUNTERFACTUAL: Final = "tierline.counterfactual_usd"  # what the strongest tier would have cost
TPOT: Final = "tierline.tpot_ms"
QUEUE: Final = "tierline.queue_ms"  # of an attempt or a request: the time it waited in a backend's queue
HOLDOUT: Final = "tierline.holdout"  # sent to the strongest tier at random, as the baseline for the other tiers

# Caches.
CACHE_OUTCOME: Final = "tierline.cache.outcome"  # hit, miss, bypass, error, timeout, open
CACHE_REASON: Final = "tierline.cache.reason"
CACHE_ENTRY: Final = "tierline.cache.entry"
CACHE_AGE: Final = "tierline.cache.age_s"
CACHE_CREATED: Final = "tierline.cache.created_at"  # Unix seconds; differs from that of a later replacement
CACHE_SCORE: Final = "tierline.cache.score"  # estimated probability that another question's answer is right here
STAGE: Final = "tierline.cache.stage"  # what decided on the best neighbour: rule, guards, verifier, cross_encoder
READ_SCORE: Final = "tierline.cache.cross_encoder_score"  # its own score, without the cosine of the vectors
CHECK_MS: Final = "tierline.cache.check_ms"  # time until the cross-encoder had scored, where it was asked
CHECK_PAIRS: Final = "tierline.cache.check_pairs"  # pairs in that call of the model, other requests' included
FOLLOWED: Final = "tierline.cache.followed"  # the id of the request whose answer was shared
SIMILARITY: Final = "tierline.similarity"
MIN_SIMILARITY: Final = "tierline.similarity.min"
THRESHOLD: Final = "tierline.cache.threshold"
LABELS: Final = "tierline.cache.labels"
BREACHED: Final = "tierline.cache.breached"
NEIGHBOUR: Final = "tierline.cache.neighbour"

# Routing.
DIFFICULTY: Final = "tierline.difficulty"
P_ADEQUATE: Final = "tierline.p_adequate"
IN_DOMAIN: Final = "tierline.in_domain"
KIND: Final = "tierline.kind"  # kind of task, such as `chat`
P_KIND: Final = "tierline.kind.p"  # probability that the request is of that kind
QUANTILE: Final = "tierline.quantile"  # share of its kind's reference prompts that are easier
QUANTILE_OWN: Final = "tierline.quantile.own"  # the same of the surface's own requests, where the policy knows them
CLASSIFIER: Final = "tierline.classifier"
DECISION: Final = "tierline.decision"
REASON: Final = "tierline.reason"
BUDGET_LEFT: Final = "tierline.budget_left_ms"
FORECAST_TTFT: Final = "tierline.forecast.ttft_ms"  # TTFT that the latency model predicts for the tier or backend

# An attempt.
ATTEMPT_NUMBER: Final = "tierline.attempt"
TIER: Final = "tierline.tier"
BACKEND: Final = "tierline.backend"
OUTCOME: Final = "tierline.outcome"
LOST: Final = "lost"  # the outcome of an attempt when a parallel one was faster
HEDGE: Final = "tierline.hedge"  # true on the second of two parallel attempts
SPECULATIVE: Final = "tierline.speculative"  # true if it started before it was known to be needed
CONTINUES: Final = "tierline.continues"  # the number of the attempt whose text this one continues
CONFIDENCE: Final = "tierline.confidence"
MIN_CONFIDENCE: Final = "tierline.confidence.min"
CONFIDENCE_BASIS: Final = "tierline.confidence.basis"  # calibrated, logprob, agreement, none
CONFIDENCE_HEAD: Final = "tierline.confidence.head"  # the version of the head that calibrated it
TOKENS_JUDGED: Final = "tierline.tokens_judged"
SCHEMA_UNCHECKED: Final = "tierline.schema.unchecked"  # why the answer was not checked against the request's schema
TIMEOUT: Final = "tierline.timeout_ms"
COST_UNKNOWN: Final = "tierline.cost.unknown"  # nobody states the price of the backend
DROPPED: Final = "tierline.dropped"  # paths of the client's fields that the backend was not sent
UPSTREAM_STATUS: Final = "tierline.upstream.status_code"
USAGE_ESTIMATED: Final = "tierline.usage.estimated"
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_FINISH: Final = "gen_ai.response.finish_reasons"
GEN_AI_TOKENS_IN: Final = "gen_ai.usage.input_tokens"
GEN_AI_TOKENS_OUT: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"

# Attributes of the root span that are read from the ledger when spans are made, with the ledger's field.
OF_LEDGER: Final = {
    REQUEST_ID: "request_id",
    TENANT: "tenant",
    SURFACE: "surface",
    POLICY: "policy",
    ARM: "arm",
    STATUS: "status",
    PATH: "path",
    STREAM: "stream",
    TIER: "tier",
    BACKEND: "backend",
    ATTEMPTS: "attempts",
    COST: "cost_usd",
    WASTED: "wasted_usd",
    WASTED_TOKENS: "wasted_tokens",
    COUNTERFACTUAL: "counterfactual_usd",
    TTFT: "ttft_ms",
    TPOT: "tpot_ms",
    QUEUE: "queue_ms",
    OVERHEAD: "overhead_ms",
    HOLDOUT: "holdout",
}


def of_call(backend: str, provider: str, model: str) -> dict[str, str]:
    """Return the attributes that a call of this backend starts with."""
    return {BACKEND: backend, GEN_AI_OPERATION: "chat", GEN_AI_PROVIDER: provider, GEN_AI_REQUEST_MODEL: model}
