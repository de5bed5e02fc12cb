"""The whole wiring of one worker, as the request path sees it: built once by `assembly`, closed in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache.response_cache import ResponseCache
from cache.store.base import Store
from gateway.accounting.hedge_budget import HedgeBudgets
from gateway.caching.coalescer import Coalescer
from gateway.caching.embedding import EmbeddingService
from gateway.caching.write_behind import WriteBehind
from gateway.config.policy_reload import PolicyReloader
from gateway.config.schema import Deployment
from gateway.request.access import LoopbackGuard, Tenants
from gateway.request.load_shedding import LoadShedder
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sink import Telemetry
from gateway.tiers import Tier
from routing.difficulty.model import DifficultyModel


@dataclass(frozen=True, slots=True)
class Steps:
    """Everything a request needs. What changes while it runs (policies, health) changes inside these."""

    deployment: Deployment
    gate: LoadShedder
    policies: PolicyReloader
    guard: LoopbackGuard
    tenants: Tenants
    tiers: Mapping[str, Tier]
    hedge_budgets: HedgeBudgets
    store: Store
    cache: ResponseCache
    coalescer: Coalescer
    embedding: EmbeddingService
    classifier: DifficultyModel
    telemetry: Telemetry
    metrics: Metrics
    write_behind: WriteBehind
    started_at: int
    """Unix seconds."""
