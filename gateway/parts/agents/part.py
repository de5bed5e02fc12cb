"""Provide the seams `admission`, `conversations`, `call_memory`, `verifier` and `successor` (`gateway.seams`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.parts.agents.admission import AgentAdmission
from gateway.parts.agents.call_memory import KeptCalls
from gateway.parts.agents.config import ScorerSections
from gateway.parts.agents.continuation import Successors
from gateway.parts.agents.conversations import ConversationMemory
from gateway.parts.agents.draft_judge import DraftJudge
from gateway.parts.agents.history import HistorySummaries
from gateway.parts.agents.metrics import SessionMetrics
from gateway.parts.agents.session_caps import SessionCounts
from gateway.parts.agents.verifying import Verifiers
from gateway.parts.measures.daily_budget import DailyBudget
from gateway.tiers.build import endpoints_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cache.store.base import Store
    from gateway.seams import Admission, AdmissionNeeds, VerifierNeeds
    from gateway.tiers import Tier


def build_admissions(needs: AdmissionNeeds) -> Sequence[Admission]:
    """Return what caps a worker's sessions, and sends older turns of a conversation shorter."""
    counted = SessionMetrics(needs.metrics)
    sessions = SessionCounts(needs.store, counted.capped)
    return (AgentAdmission(sessions, HistorySummaries(needs.store, needs.tiers, counted.summary_made)),)


def build_conversation_advisor(tiers: Mapping[str, Tier]) -> ConversationMemory:
    """Return what remembers a worker's conversations."""
    return ConversationMemory(tiers)


def build_call_memory(store: Store) -> KeptCalls:
    """Return what keeps the reasoning of a worker's tool calls."""
    return KeptCalls(store)


def build_verifier(needs: VerifierNeeds) -> Verifiers:
    """Return a worker's verifiers of drafts."""
    tiers = needs.tiers
    tier_of = {endpoint.config.name: tier.name for tier in tiers.values() for endpoint in tier.endpoints}
    judge = DraftJudge(endpoints_of(tiers), tier_of, DailyBudget(needs.store))
    return Verifiers(needs.cosine, judge, needs.deployment.of(ScorerSections).answer_scorer)


def build_successor(tiers: Mapping[str, Tier]) -> Successors:
    """Return what continues a worker's broken streams."""
    return Successors(tiers)
