"""The ledger: one flat record per request, filled in by the pipeline as the request goes, kept beside its trace.

It answers "what did this request cost, who answered it, and how long did it take" without reading any hop. What the
pipeline knows anyway it writes here at once; what follows from the hops (the account of each call, what was wasted,
the pace, the objectives) `gateway.accounting.finalize` adds when the reply is out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class CallAccount:
    """What one backend call cost, in tokens, money and milliseconds. Made from its hop, after the reply.

    `attempt` is the attempt's number; 0 for a sample drawn beside one, which is never served. `wasted`: nobody saw what
    it wrote. `ttft_ms` is the backend's own, None where its answer came whole. A call that failed has a cost of 0.
    """

    attempt: int
    tier: str
    backend: str
    model: str
    outcome: str
    tokens_in: int
    tokens_out: int
    estimated: bool
    cost_usd: float
    wasted: bool
    queue_ms: float
    ttft_ms: float | None
    total_ms: float


@dataclass(slots=True)
class Ledger:
    """One request's account. Mutable until `Telemetry.record` takes it; never changed after that.

    `surface` and `tier` become metric labels, so they hold names from policies and config (or nothing), never text
    a client sent. Money is in US dollars; `cost_usd` is everything spent, `wasted_usd` the part of it that went to
    drafts nobody saw. `usage_estimated` says that some backend reported no usage and the tokens are our own count.
    """

    request_id: str
    tenant: str = ""
    surface: str = ""
    policy: str = ""
    """The policy's label, `surface@version`."""
    requested_model: str = ""
    stream: bool = False
    status: int = 0
    """What the client got; 499 when it left first."""
    path: str = ""
    """The word of `x-tierline-path`."""
    tier: str = ""
    backend: str = ""
    model: str = ""
    attempts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usage_estimated: bool = False
    cost_usd: float = 0.0
    wasted_usd: float = 0.0
    difficulty: float | None = None
    confidence: float | None = None
    similarity: float | None = None
    ttft_ms: float | None = None
    """To the first byte of content the client got; None when it got none."""
    total_ms: float = 0.0
    overhead_ms: float = 0.0
    """Our own time: the total less the time spent waiting for backends."""
    error: str | None = None
    """The `code` of the error envelope, or another stable word such as `client_gone`."""
    served: tuple[int, ...] | None = None
    """The attempts of whose text the answer is made: one, or several where one went on for another; none where nothing
    was served. None when no cascade has run."""
    answer_tokens_in: int | None = None
    """Of the served answer, whoever paid for it: a hit's are those of the answer as it was stored."""
    answer_tokens_out: int | None = None
    answer_estimated: bool = False
    """Whether the two are our own count."""
    counterfactual_usd: float | None = None
    """What the answer's tokens would have cost at the policy's strongest tier; None when not known."""
    wasted_tokens: int = 0
    """Read and written by calls that nobody saw anything of; free ones count too."""
    tpot_ms: float | None = None
    """The pace of the stream as the client got it: time per token after the first. None for JSON and hits."""
    queue_ms: float = 0.0
    """Waited in line for backends; an attempt beside another adds nothing."""
    holdout: bool | None = None
    """Whether it was drawn to go to the strongest tier regardless; None where there was no draw."""
    hedged: bool = False
    speculated: bool = False
    classifier: str = ""
    """The version of the classifier that judged the difficulty."""
    embedder: str = ""
    head: str = ""
    """The version of the head that calibrated the served answer's confidence."""
    slo: Mapping[str, bool] | None = None
    """The surface's objectives, each with whether this request met it; None where none could apply."""
    calls: Sequence[CallAccount] = ()
