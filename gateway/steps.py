"""The whole wiring of one worker, as the request path sees it: built once by `assembly`, closed in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache.response_cache import Cache
from cache.store.base import Store
from gateway.accounting.hedge_budget import Spending
from gateway.caching.coalescing import Coalescing
from gateway.caching.embedding import EmbeddingService
from gateway.caching.write_behind import Afterwards
from gateway.config.policy_reload import PolicyWatcher
from gateway.config.schema import Deployment
from gateway.request.access import LoopbackGuard, Tenants
from gateway.request.load_shedding import Gate
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sink import Telemetry
from gateway.tiers import Tier
from routing.difficulty.model import DifficultyModel


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a request needs. What changes while it runs (policies, health) changes inside these."""

    deployment: Deployment
    gate: Gate
    policies: PolicyWatcher
    guard: LoopbackGuard
    tenants: Tenants
    tiers: Mapping[str, Tier]
    spending: Spending
    store: Store
    cache: Cache
    coalescing: Coalescing
    embedding: EmbeddingService
    classifier: DifficultyModel
    telemetry: Telemetry
    metrics: Metrics
    afterwards: Afterwards
    started_at: int
    """Unix seconds."""
