"""The ledger: one flat record per request, filled in by the pipeline as the request goes, kept beside its trace.

It answers "what did this request cost, who answered it, and how long did it take" without reading any hop.
"""

from __future__ import annotations

from dataclasses import dataclass


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
