"""Hold what a request's steps use in one worker. `gateway.assembly` builds it, starts it and closes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cache.response_cache import ResponseCache
    from cache.store.base import Store
    from gateway.backends.call_reasoning import CallMemory
    from gateway.caching.coalescer import Coalescer
    from gateway.caching.lookups import ExactLookup, QuestionEmbedder, SemanticLookup
    from gateway.caching.store_room import StoreRoom
    from gateway.caching.write_behind import WriteBehind
    from gateway.cascade.router import Router
    from gateway.cascade.runner import CascadeRunner
    from gateway.config.policy_reload import Policies
    from gateway.config.schema import Deployment
    from gateway.request.context import CallerLimits
    from gateway.request.load_shedding import LoadShedder
    from gateway.request.loopback_guard import LoopbackGuard
    from gateway.seams import Admission, Authenticator, ClientApi, Observer
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.sink import Telemetry
    from gateway.tiers import Tier


@dataclass(frozen=True, slots=True)
class AnswerSteps:
    """Hold the objects by which `gateway.pipeline.answer` answers a request."""

    exact_cache: ExactLookup
    coalescer: Coalescer
    embedder: QuestionEmbedder
    semantic_cache: SemanticLookup
    router: Router
    cascade: CascadeRunner
    write_behind: WriteBehind


@dataclass(frozen=True, slots=True)
class Steps(AnswerSteps):
    """Hold what all other code of a worker uses too. Policies and health change inside these while the worker runs."""

    deployment: Deployment
    started_at: int
    """Unix seconds."""
    gate: LoadShedder
    guard: LoopbackGuard
    authenticator: Authenticator
    limits: CallerLimits | None
    policies: Policies
    admissions: Sequence[Admission]
    """What else lets a chat in, in this order; see `gateway.seams`."""
    client_apis: Sequence[ClientApi]
    """What answers paths beside those of chat completions; see `gateway.seams`."""
    kept_calls: CallMemory | None
    observers: Sequence[Observer]
    cache: ResponseCache
    store: Store
    room: StoreRoom
    tiers: Mapping[str, Tier]
    telemetry: Telemetry
    metrics: Metrics
