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
STREAM_END: Final = "tierline.stream.end"
DONE_SYNTHESISED: Final = "tierline.stream.done_synthesised"  # finished, but the upstream's [DONE] was missing
COST: Final = "tierline.cost_usd"
TTFT: Final = "tierline.ttft_ms"
PROMPT: Final = "tierline.prompt"
CLIENT_RETRY: Final = "tierline.client_retry"
QUEUE: Final = "tierline.queue_ms"  # of an attempt or a request: the time it waited in a backend's queue
HOLDOUT: Final = "tierline.holdout"  # sent to the strongest tier at random, as the baseline for the other tiers

LIMITED_BY: Final = "tierline.limit.account"  # of a request that was not let in: the account of its owner
LIMIT_REASON: Final = "tierline.limit.reason"  # exhausted, limit, held (others hold what is left), store
LIMIT_SAID: Final = "tierline.limit.said"  # whose budget or limit it is, and of how much, as the client is told
ANSWER: Final = "tierline.answer"

# What decided a hop: any hop.
CLAUSE: Final = "tierline.clause"  # dotted key of the policy, such as route.start.local
CLAUSE_LINE: Final = "tierline.clause.line"  # FILE:LINE of it, where the policy came from a file

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
QUOTA_WAIT: Final = "quota.wait"  # hop: the request waited for its owners' limits and budgets, or was refused by them
BUDGET_WAIT: Final = "budget.wait"  # hop: the request was held back so that others of the same owner go first

# Caches.
CACHE_OUTCOME: Final = "tierline.cache.outcome"  # hit, miss, bypass, error, timeout, open
CACHE_REASON: Final = "tierline.cache.reason"
CACHE_ENTRY: Final = "tierline.cache.entry"
CACHE_AGE: Final = "tierline.cache.age_s"
CACHE_CREATED: Final = "tierline.cache.created_at"  # Unix seconds; differs from that of a later replacement
CACHE_DOUBT_TTL: Final = "tierline.cache.doubt_ttl_s"  # for how long it is kept, where it may change with time
CACHE_SCORE: Final = "tierline.cache.score"  # estimated probability that another question's answer is right here
STAGE: Final = "tierline.cache.stage"  # what decided on the best neighbour: rule, guards, verifier, cross_encoder
READ_SCORE: Final = "tierline.cache.cross_encoder_score"  # its own score, without the cosine of the vectors
CHECK_MS: Final = "tierline.cache.check_ms"  # time until the cross-encoder had scored, where it was asked
CHECK_PAIRS: Final = "tierline.cache.check_pairs"  # pairs that were read in that turn, other requests' included
FOLLOWED: Final = "tierline.cache.followed"  # the id of the request whose answer was shared
SIMILARITY: Final = "tierline.similarity"
THRESHOLD: Final = "tierline.cache.threshold"
LABELS: Final = "tierline.cache.labels"
BREACHED: Final = "tierline.cache.breached"
NEIGHBOUR: Final = "tierline.cache.neighbour"
VETOED: Final = "tierline.cache.vetoed"  # guards that refused other neighbours: the guard and the neighbour's cosine

# Routing.
LAST_TIER: Final = "tierline.last_tier"  # tier of the answer before, where a rule asks for it and it is known
DECISION: Final = "tierline.decision"
REASON: Final = "tierline.reason"

# An attempt.
ATTEMPT_NUMBER: Final = "tierline.attempt"
TIER: Final = "tierline.tier"
BACKEND: Final = "tierline.backend"
OUTCOME: Final = "tierline.outcome"
LOST: Final = "lost"  # the outcome of an attempt when a parallel one was faster
OUTPUT_LIMIT: Final = "tierline.output_limit"  # tokens: of the request's root, where the limit is not the client's own
FAULT: Final = "tierline.fault"  # what cannot be in the calls of an answer that was served all the same
CALL_ARGUMENTS: Final = "tierline.calls.arguments"  # the calls with their arguments, where texts are captured
HEDGE: Final = "tierline.hedge"  # true on the second of two parallel attempts
SPECULATIVE: Final = "tierline.speculative"  # true if it started before it was known to be needed
CONTINUES: Final = "tierline.continues"  # the number of the attempt whose text this one continues
CONFIDENCE: Final = "tierline.confidence"
CONFIDENCE_BASIS: Final = "tierline.confidence.basis"  # calibrated, logprob, judge, agreement, scorer, none
CONFIDENCE_HEAD: Final = "tierline.confidence.head"  # the version of the head that calibrated it
VERIFY_MS: Final = "tierline.verify_ms"  # how long the draft waited for the verifier that judged it
AGREEMENT_BY: Final = "tierline.agreement.by"  # what compared an answer with its sample: pair_model, words, calls
VERIFY_SKIPPED: Final = "tierline.verify.skipped"  # verifiers that had no answer or were not asked, and why
TOKENS_JUDGED: Final = "tierline.tokens_judged"
PREFIX_TOKENS: Final = "tierline.prefix.tokens"  # their texts, where texts are captured
PREFIX_TEXT: Final = "tierline.prefix.text"  # what was judged, where texts are captured and tokens have no texts
LOWEST_TOKENS: Final = "tierline.prefix.lowest.tokens"
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
GEN_AI_STOP: Final = "gen_ai.request.stop_sequences"

EMBEDDER: Final = "tierline.embedder"

SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

TEXTS: Final = frozenset({PROMPT, ANSWER, NEIGHBOUR, PREFIX_TEXT, PREFIX_TOKENS, LOWEST_TOKENS, CALL_ARGUMENTS})
"""Attributes that hold words of clients or models where texts are captured; NEIGHBOUR is a hash elsewhere."""


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
