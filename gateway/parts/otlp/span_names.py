"""Name the attributes that spans have beside those of the recorded hops (`gateway.telemetry.names`)."""

from __future__ import annotations

from typing import Final

from gateway.telemetry import names

REQUEST_ID: Final = "tierline.request_id"
TENANT: Final = "tierline.tenant"
SURFACE: Final = "tierline.surface"
POLICY: Final = "tierline.policy"
ARM: Final = "tierline.arm"  # candidate or control while a canary runs on the surface; shadow; playground
STATUS: Final = "http.response.status_code"
PATH: Final = "tierline.path"
STREAM: Final = "tierline.stream"
WASTED: Final = "tierline.wasted_usd"
OVERHEAD: Final = "tierline.overhead_ms"
ATTEMPTS: Final = "tierline.attempts"
WASTED_TOKENS: Final = "tierline.wasted_tokens"
COUNTERFACTUAL: Final = "tierline.counterfactual_usd"  # what the strongest tier would have cost
TPOT: Final = "tierline.tpot_ms"
KEPT: Final = "tierline.kept"  # why the hops were recorded: head, or what tail sampling keeps them for
STEERED_FROM: Final = "tierline.steered_from"  # the tier at which it would have started
STEERED_USD: Final = "tierline.steered_usd"  # what its answer would have cost there
HOP: Final = "tierline.hop"  # the hop's name on spans that are called by their model, as the conventions want
GEN_AI_CACHE_CREATION: Final = "gen_ai.usage.cache_creation.input_tokens"  # what the collector is sent for the above
GEN_AI_INPUT: Final = "gen_ai.input.messages"  # JSON, made of PROMPT for the collector, where texts are captured
GEN_AI_OUTPUT: Final = "gen_ai.output.messages"  # likewise of ANSWER
GEN_AI_STREAM: Final = "gen_ai.request.stream"  # made of the ledger for the collector
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
GEN_AI_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # seconds; of streams, made of TTFT for the collector
GEN_AI_CONVERSATION: Final = "gen_ai.conversation.id"  # made of the ledger for the collector
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
    names.TIER: "tier",
    names.BACKEND: "backend",
    ATTEMPTS: "attempts",
    names.COST: "cost_usd",
    WASTED: "wasted_usd",
    WASTED_TOKENS: "wasted_tokens",
    COUNTERFACTUAL: "counterfactual_usd",
    STEERED_FROM: "steered_from",
    STEERED_USD: "steered_usd",
    names.PROMPT_CACHE_USD: "prompt_cache_usd",
    names.TTFT: "ttft_ms",
    TPOT: "tpot_ms",
    names.QUEUE: "queue_ms",
    OVERHEAD: "overhead_ms",
    names.HOLDOUT: "holdout",
    KEPT: "kept",
}
