"""Provide the seams `admission`, `conversations`, `call_memory`, `verifier` and `successor` (`gateway.seams`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.parts.agents.admission import AgentAdmission, SessionCounts
from gateway.parts.agents.agreement import TextComparer
from gateway.parts.agents.call_memory import KeptCalls
from gateway.parts.agents.config import ScorerSections
from gateway.parts.agents.continuation import Successors
from gateway.parts.agents.conversations import ConversationMemory
from gateway.parts.agents.history import HistorySummaries
from gateway.parts.agents.metrics import SessionMetrics
from gateway.parts.agents.verifying import DraftJudge, Verifiers
from gateway.parts.measures.daily_budget import DailyBudget
from gateway.parts.measures.likeness import AnswerLikeness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.steps import Admission, Core


def build_admissions(core: Core) -> Sequence[Admission]:
    """Return what caps a worker's sessions, and sends older turns of a conversation shorter."""
    counted = SessionMetrics(core.metrics)
    sessions = SessionCounts(core.store, counted.capped)
    return (AgentAdmission(sessions, HistorySummaries(core.store, core.tiers, counted.summary_made)),)


def build_conversation_advisor(core: Core) -> ConversationMemory:
    """Return what remembers a worker's conversations."""
    return ConversationMemory(core.tiers)


def build_call_memory(core: Core) -> KeptCalls:
    """Return what keeps the reasoning of a worker's tool calls."""
    return KeptCalls(core.store)


def build_verifier(core: Core) -> Verifiers:
    """Return a worker's verifiers of drafts."""
    tier_of = {endpoint.config.name: tier.name for tier in core.tiers.values() for endpoint in tier.endpoints}
    judge = DraftJudge(core.endpoints, tier_of, DailyBudget(core.store))
    comparer = TextComparer(AnswerLikeness(core.models.cross_encoder))
    return Verifiers(comparer, judge, core.deployment.of(ScorerSections).answer_scorer)


def build_successor(core: Core) -> Successors:
    """Return what continues a worker's broken streams."""
    return Successors(core.tiers)
