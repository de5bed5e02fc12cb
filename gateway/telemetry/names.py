"""Define every span and attribute name that Tierline emits, in one place because the GenAI conventions still change.

`gen_ai.*` (OpenTelemetry GenAI semantic conventions) appears only where a model is called, for text or for vectors;
`error.type`, `http.*` and `server.*` are OpenTelemetry's general names; our own steps are under `tierline.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

# Hops, in the order of one request.
REQUEST: Final = "request"
SESSION: Final = "session"  # where the policy caps sessions: counts the request
INPUT: Final = "input"  # where the policy has `input`: sends older tool results shorter
CACHE_EXACT: Final = "cache.exact"
EMBED: Final = "embed"
CACHE_SEMANTIC: Final = "cache.semantic"
CACHE_FOLLOW: Final = "cache.follow"  # shares the answer of an identical request in flight
ROUTE: Final = "route"
ATTEMPT: Final = "attempt"
SAMPLE: Final = "sample"  # within an attempt: another answer of the backend, to compare for agreement
JUDGE: Final = "judge"  # within an attempt: a model that is asked how likely the draft is good enough
CACHE_WRITE: Final = "cache.write"
HOP_SHED: Final = "shed"  # rejected because too many requests wait; the last hop of its request

# The request.
REQUEST_ID: Final = "tierline.request_id"
TENANT: Final = "tierline.tenant"
SURFACE: Final = "tierline.surface"
POLICY: Final = "tierline.policy"
ARM: Final = "tierline.arm"  # candidate or control while a canary runs on the surface; shadow; playground
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

LIMITED_BY: Final = "tierline.limit.account"  # of a request that was not let in: the account of its owner
LIMIT_REASON: Final = "tierline.limit.reason"  # exhausted, limit, held (others hold what is left), store
LIMIT_SAID: Final = "tierline.limit.said"  # whose budget or limit it is, and of how much, as the client is told
KEPT: Final = "tierline.kept"  # why the hops were recorded: head, or what tail sampling keeps them for
DEADLINE: Final = "tierline.deadline_ms"  # from the start of the request
TTFT_TARGET: Final = "tierline.ttft_target_ms"  # from the start of the request until a stream's first token is due
ANSWER: Final = "tierline.answer"
HOP: Final = "tierline.hop"  # the hop's name on spans that are called by their model, as the conventions want

# What decided a hop: any hop.
CLAUSE: Final = "tierline.clause"  # dotted key of the policy, such as route.start.local
CLAUSE_LINE: Final = "tierline.clause.line"  # FILE:LINE of it, where the policy came from a file
CHECKS: Final = "tierline.clause.checks"  # the start rules that were read: each comparison with its value and outcome

# Sessions: what one has used on the surface, this request included.
SESSION_CALLS: Final = "tierline.session.calls"
SESSION_USD: Final = "tierline.session.usd"
SESSION_TIME: Final = "tierline.session.time_s"  # since its first request
SESSION_OUTCOME: Final = "tierline.session.outcome"  # open, last (told to conclude), over (refused)

# Budgets, of a request that is steered because its tightest is nearly spent.
BUDGET: Final = "tierline.budget"  # as the header has it: `93% of team web, capped at local`; on the root too
BUDGET_SHARE: Final = "tierline.budget.share"  # what is spent of it, what is under way included: 1 is all
BUDGET_CAP: Final = "tierline.budget.cap"  # the strongest tier that it may start at; missing where there is none
BUDGET_EASE: Final = "tierline.budget.ease"  # factor of the thresholds of confidence below the cap
STEERED_FROM: Final = "tierline.steered_from"  # the tier at which it would have started
STEERED_USD: Final = "tierline.steered_usd"  # what its answer would have cost there
QUOTA_WAIT: Final = "quota.wait"  # hop: the request waited for its owners' limits and budgets, or was refused by them
BUDGET_WAIT: Final = "budget.wait"  # hop: the request was held back so that others of the same owner go first

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
CHECK_PAIRS: Final = "tierline.cache.check_pairs"  # pairs that were read in that turn, other requests' included
FOLLOWED: Final = "tierline.cache.followed"  # the id of the request whose answer was shared
SIMILARITY: Final = "tierline.similarity"
MIN_SIMILARITY: Final = "tierline.similarity.min"
THRESHOLD: Final = "tierline.cache.threshold"
LABELS: Final = "tierline.cache.labels"
BREACHED: Final = "tierline.cache.breached"
NEIGHBOUR: Final = "tierline.cache.neighbour"
GUARD: Final = "tierline.cache.guard"  # the guard that refused the neighbour
VETOED: Final = "tierline.cache.vetoed"  # guards that refused other neighbours: the guard and the neighbour's cosine

# Routing.
DIFFICULTY: Final = "tierline.difficulty"
P_ADEQUATE: Final = "tierline.p_adequate"
IN_DOMAIN: Final = "tierline.in_domain"
KIND: Final = "tierline.kind"  # kind of task, such as `chat`
P_KIND: Final = "tierline.kind.p"  # probability that the request is of that kind
QUANTILE: Final = "tierline.quantile"  # share of its kind's reference prompts that are easier
QUANTILE_OWN: Final = "tierline.quantile.own"  # the same of the surface's own requests, where the policy knows them
CONVERSATION: Final = "tierline.conversation.difficulty"  # of the turn in its conversation, where a rule asks for it
BEFORE: Final = "tierline.conversation.before"  # how hard the turns before make it
LAST_TIER: Final = "tierline.last_tier"  # tier of the answer before, where a rule asks for it and it is known
# What each tier would cost the conversation until a harder turn, where it is warm at one: lists of the same length, -1
# where it is not known. The last is the strongest that holds a part of its prompt.
COST_TIERS: Final = "tierline.costs.tiers"
COST_USD: Final = "tierline.costs.usd"
COST_COLD: Final = "tierline.costs.tokens_cold"  # of this turn's prompt, those that it would read cold
CLASSIFIER: Final = "tierline.classifier"
DECISION: Final = "tierline.decision"
REASON: Final = "tierline.reason"
BUDGET_LEFT: Final = "tierline.budget_left_ms"
FORECAST_TTFT: Final = "tierline.forecast.ttft_ms"  # TTFT that the latency model predicts for the tier or backend
STAND_IN_CLAUSE: Final = "tierline.stand_in.clause"  # of the limit that the wanted tier would miss
PRIOR: Final = (
    "tierline.forecast.prior"  # tiers whose forecast is that of their models' facts: too few calls were measured
)
SLOW_PACE: Final = "tierline.slow_pace"  # tiers whose streams were slower of late than `slo.tpot` allows: `TIER: 62 ms`
# Tiers that the request did not start at, in the policy's order: lists of the same length. Times are expected ones, -1
# where nothing was measured.
OTHER_TIERS: Final = "tierline.other.tiers"
OTHER_TTFT: Final = "tierline.other.ttft_ms"  # median, queue included
OTHER_TTFT_P95: Final = "tierline.other.ttft_p95_ms"
OTHER_WHOLE: Final = "tierline.other.whole_ms"  # median, queue included
OTHER_QUEUE: Final = "tierline.other.queue_ms"
OTHER_LATE: Final = "tierline.other.late"  # whether it would have been late
OTHER_STATE: Final = "tierline.other.state"  # why it could not answer; empty if it could

# An attempt.
ATTEMPT_NUMBER: Final = "tierline.attempt"
TIER: Final = "tierline.tier"
BACKEND: Final = "tierline.backend"
OUTCOME: Final = "tierline.outcome"
LOST: Final = "lost"  # the outcome of an attempt when a parallel one was faster
OUTPUT_LIMIT: Final = "tierline.output_limit"  # tokens: of the request's root, where the limit is not the client's own
FAULT: Final = "tierline.fault"  # what cannot be in the calls of an answer that was served all the same
CALLS: Final = "tierline.calls"  # names of the tools that a rejected answer calls
CALL_ARGUMENTS: Final = "tierline.calls.arguments"  # the calls with their arguments, where texts are captured
HEDGE: Final = "tierline.hedge"  # true on the second of two parallel attempts
SPECULATIVE: Final = "tierline.speculative"  # true if it started before it was known to be needed
CONTINUES: Final = "tierline.continues"  # the number of the attempt whose text this one continues
CONFIDENCE: Final = "tierline.confidence"
MIN_CONFIDENCE: Final = "tierline.confidence.min"
CONFIDENCE_BASIS: Final = "tierline.confidence.basis"  # calibrated, logprob, judge, agreement, scorer, none
CONFIDENCE_HEAD: Final = "tierline.confidence.head"  # the version of the head that calibrated it
VERIFY_MS: Final = "tierline.verify_ms"  # how long the draft waited for the verifier that judged it
VERIFIER: Final = "tierline.verify.by"  # who said how sure the draft is, where its log-probabilities do not
VERIFIED: Final = "tierline.verify.said"  # what that verifier said, 0..1, before a head calibrated it
VERIFY_SKIPPED: Final = "tierline.verify.skipped"  # verifiers that had no answer or were not asked, and why
TOKENS_JUDGED: Final = "tierline.tokens_judged"
VERDICT_AT: Final = "tierline.verdict_ms"  # from the start of the attempt until it was judged
PREFIX: Final = "tierline.prefix.logprobs"  # of the first tokens that were judged, in order
PREFIX_TOKENS: Final = "tierline.prefix.tokens"  # their texts, where texts are captured
PREFIX_TEXT: Final = "tierline.prefix.text"  # what was judged, where texts are captured and tokens have no texts
LOWEST: Final = "tierline.prefix.lowest"  # places of the least probable tokens, from 0, the least probable first
LOWEST_LOGPROBS: Final = "tierline.prefix.lowest.logprobs"
LOWEST_TOKENS: Final = "tierline.prefix.lowest.tokens"
NEXT_TIER: Final = "tierline.next.tier"  # the tier that would take over
NEXT_TTFT: Final = "tierline.next.ttft_ms"  # expected of it when the request was decided upon
NEXT_WHOLE: Final = "tierline.next.whole_ms"
NEXT_LATE: Final = "tierline.next.late"  # whether it would have been late, at the verdict or at the attempt's end
RACE_CLAUSE: Final = "tierline.race.clause"  # of an attempt beside another, or one that continues another's text
IN_FLIGHT: Final = "tierline.backend.in_flight"  # calls of this worker to the backend, this one included
CAPACITY: Final = "tierline.backend.capacity"  # how many there may be
QUEUED: Final = "tierline.backend.queued"  # requests that waited for it just then
BREAKER: Final = "tierline.backend.breaker"  # closed, or half-open and why it was ejected
SIBLINGS: Final = "tierline.tier.others"  # the tier's other backends and their state when this one was chosen
SCHEMA_UNCHECKED: Final = "tierline.schema.unchecked"  # why the answer was not checked against the request's schema
TIMEOUT: Final = "tierline.timeout_ms"
COST_UNKNOWN: Final = "tierline.cost.unknown"  # nobody states the price of the backend
FIELDS: Final = "tierline.fields"  # request fields that the config or the policy set, as NAME=VALUE
INSTRUCTION: Final = "tierline.instruction"  # what the policy added to the system's text
INPUT_SAVED: Final = "tierline.input.saved"  # tokens that each step left out, as STEP TOKENS
PROMPT_CACHE: Final = "tierline.prompt_cache"  # what was added to the request for the provider's prompt cache
PROMPT_CACHE_USD: Final = "tierline.prompt_cache.saved_usd"  # less than without it; below 0 where writing cost more
DROPPED: Final = "tierline.dropped"  # paths of the client's fields that the backend was not sent
BLAME: Final = "tierline.upstream.blame"  # whose fault an error reply is, see `gateway.backends.blame`
UPSTREAM_WORDS: Final = "tierline.upstream.words"  # of an error reply, without what they may quote of the request
UPSTREAM_STATUS: Final = "tierline.upstream.status_code"
USAGE_ESTIMATED: Final = "tierline.usage.estimated"
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_FINISH: Final = "gen_ai.response.finish_reasons"
GEN_AI_TOKENS_IN: Final = "gen_ai.usage.input_tokens"
GEN_AI_TOKENS_OUT: Final = "gen_ai.usage.output_tokens"
GEN_AI_TOKENS_CACHED: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_TOKENS_CACHE_WRITE: Final = "gen_ai.usage.cache_write.input_tokens"
TOKENS_HOUR_WRITE: Final = "tierline.usage.cache_write_1h.input_tokens"  # a part of the above, kept for an hour
GEN_AI_TOKENS_REASONING: Final = "gen_ai.usage.reasoning.output_tokens"  # a part of the output tokens
GEN_AI_CACHE_CREATION: Final = "gen_ai.usage.cache_creation.input_tokens"  # what the collector is sent for the above
GEN_AI_INPUT: Final = "gen_ai.input.messages"  # JSON, made of PROMPT for the collector, where texts are captured
GEN_AI_OUTPUT: Final = "gen_ai.output.messages"  # likewise of ANSWER
GEN_AI_STREAM: Final = "gen_ai.request.stream"  # made of the ledger for the collector
GEN_AI_STOP: Final = "gen_ai.request.stop_sequences"
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
GEN_AI_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # seconds; of streams, made of TTFT for the collector
GEN_AI_CONVERSATION: Final = "gen_ai.conversation.id"  # made of the ledger for the collector
ERROR_TYPE: Final = "error.type"

EMBEDDER: Final = "tierline.embedder"

SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

TEXTS: Final = frozenset({PROMPT, ANSWER, NEIGHBOUR, PREFIX_TEXT, PREFIX_TOKENS, LOWEST_TOKENS, CALL_ARGUMENTS})
"""Attributes that hold words of clients or models where texts are captured; NEIGHBOUR is a hash elsewhere."""

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
    STEERED_FROM: "steered_from",
    STEERED_USD: "steered_usd",
    PROMPT_CACHE_USD: "prompt_cache_usd",
    TTFT: "ttft_ms",
    TPOT: "tpot_ms",
    QUEUE: "queue_ms",
    OVERHEAD: "overhead_ms",
    HOLDOUT: "holdout",
    KEPT: "kept",
}

_ASKED: Final = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
"""Numbers of a request of chat completions, by key, which spans of models have by the conventions' names."""

OUT_OF_QUOTA: Final = "out of quota"
PAUSES: Final = "asking for a pause (status 429)"
"""How it is told why a backend is not called that has reached a rate limit: by its headers, and by its refusal."""


def of_embedder(name: str, *, is_model: bool) -> dict[str, str]:
    """Return the attributes that an embedding in this process starts with. A table of word vectors is no model."""
    if not is_model:
        return {EMBEDDER: name}
    called = {GEN_AI_OPERATION: "embeddings", GEN_AI_PROVIDER: "tierline", GEN_AI_REQUEST_MODEL: name}
    return {EMBEDDER: name, **called}


def of_service(operation: str, model: str) -> dict[str, str]:
    """Return the attributes of a call to a service, all of which speak the OpenAI API."""
    return {GEN_AI_OPERATION: operation, GEN_AI_PROVIDER: "openai", GEN_AI_REQUEST_MODEL: model}


def of_call(backend: str, provider: str, model: str, url: str | None = None) -> dict[str, Any]:
    """Return the attributes that a call of this backend starts with.

    `provider` is as the conventions name it, and `url` the base URL.
    """
    server = urlsplit(url or "")
    port = 80 if server.scheme == "http" else 443
    return {
        **({SERVER_ADDRESS: server.hostname, SERVER_PORT: server.port or port} if server.hostname else {}),
        BACKEND: backend,
        GEN_AI_OPERATION: "chat",
        GEN_AI_PROVIDER: provider,
        GEN_AI_REQUEST_MODEL: model,
    }


def asked_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request of chat completions asks of models, as `gen_ai.request.*`."""
    asked: dict[str, Any] = {}
    for key, name in _ASKED.items():
        if type(value := body.get(key)) in (int, float) and not (key == "n" and value == 1):
            asked[name] = value
    stop = body.get("stop")
    if stop := [stop] if isinstance(stop, str) else stop:
        asked[GEN_AI_STOP] = [text for text in stop if isinstance(text, str)]
    return asked
