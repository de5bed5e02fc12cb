"""Name the attributes that this part adds to recorded hops; `gateway.telemetry.names` has the others."""

from __future__ import annotations

from typing import Final

DEADLINE: Final = "tierline.deadline_ms"  # from the start of the request
TTFT_TARGET: Final = "tierline.ttft_target_ms"  # from the start of the request until a stream's first token is due
CHECKS: Final = "tierline.clause.checks"  # the start rules that were read: each comparison with its value and outcome
MIN_SIMILARITY: Final = "tierline.similarity.min"
GUARD: Final = "tierline.cache.guard"  # the guard that refused the neighbour
DIFFICULTY: Final = "tierline.difficulty"
P_ADEQUATE: Final = "tierline.p_adequate"
IN_DOMAIN: Final = "tierline.in_domain"
KIND: Final = "tierline.kind"  # kind of task, such as `chat`
P_KIND: Final = "tierline.kind.p"  # probability that the request is of that kind
QUANTILE: Final = "tierline.quantile"  # share of its kind's reference prompts that are easier
QUANTILE_OWN: Final = "tierline.quantile.own"  # the same of the surface's own requests, where the policy knows them
EFFORT: Final = "tierline.effort"  # how much work the request asks for by common sense, 0..1
CONVERSATION: Final = "tierline.conversation.difficulty"  # of the turn in its conversation, where a rule asks for it
BEFORE: Final = "tierline.conversation.before"  # how hard the turns before make it
# What each tier would cost the conversation until a harder turn, where it is warm at one: lists of the same length, -1
# where it is not known. The last is the strongest that holds a part of its prompt.
COST_TIERS: Final = "tierline.costs.tiers"
COST_USD: Final = "tierline.costs.usd"
COST_COLD: Final = "tierline.costs.tokens_cold"  # of this turn's prompt, those that it would read cold
CLASSIFIER: Final = "tierline.classifier"
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
CALLS: Final = "tierline.calls"  # names of the tools that a rejected answer calls
MIN_CONFIDENCE: Final = "tierline.confidence.min"
VERIFIER: Final = "tierline.verify.by"  # who said how sure the draft is, where its log-probabilities do not
VERIFIED: Final = "tierline.verify.said"  # what that verifier said, 0..1, before a head calibrated it
VERDICT_AT: Final = "tierline.verdict_ms"  # from the start of the attempt until it was judged
PREFIX: Final = "tierline.prefix.logprobs"  # of the first tokens that were judged, in order
LOWEST: Final = "tierline.prefix.lowest"  # places of the least probable tokens, from 0, the least probable first
LOWEST_LOGPROBS: Final = "tierline.prefix.lowest.logprobs"
NEXT_TIER: Final = "tierline.next.tier"  # the tier that would take over
NEXT_TTFT: Final = "tierline.next.ttft_ms"  # expected of it when the request was decided upon
NEXT_WHOLE: Final = "tierline.next.whole_ms"
NEXT_LATE: Final = "tierline.next.late"  # whether it would have been late, at the verdict or at the attempt's end
RACE_CLAUSE: Final = "tierline.race.clause"  # of an attempt beside another, or one that continues another's text
IN_FLIGHT: Final = "tierline.backend.in_flight"  # calls of this worker to the backend, this one included
CAPACITY: Final = "tierline.backend.capacity"  # how many there may be
QUEUED: Final = "tierline.backend.queued"  # requests that waited for it just then
BREAKER: Final = "tierline.backend.breaker"  # closed, or half-open and why it was ejected
