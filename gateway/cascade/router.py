"""Step 8: rate the request's difficulty, and decide which tiers try it, in which order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.backends.server_forms import RefusedKinds, maker_finder
from gateway.cascade.client_errors import no_tier
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND
from gateway.telemetry.trace import RecordedDecision
from policies.quantities import percent
from policies.value_type import from_fields
from routing.decide import Decision, DecisionInput, NoTierError, TierHealth, asks_both, decide, needs, priors
from routing.difficulty.model import ArtefactError, DifficultyModel
from routing.features import room_wanted

if TYPE_CHECKING:
    from gateway.cascade.protocols import ConversationAdvisor
    from gateway.request.context import RequestContext
    from gateway.telemetry.ledger import Ledger
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Tier
    from policies.model import Policy
    from policies.steering import Steering
    from routing.difficulty.model import Difficulty
    from routing.embedder import Embedder, Vector
    from routing.features import Features


class Classifiers:
    """Load classifiers when policies are loaded, each once, and find a policy's.

    A loaded one is kept as long as the worker lives: a request may still use a policy that is in force no more.
    """

    def __init__(self, default: DifficultyModel, embedder: Embedder) -> None:
        self.default = default
        self._embedder = embedder
        self._pinned: dict[str, DifficultyModel] = {}
        self._by_name: dict[str, DifficultyModel] = {}
        """By `route.classifier`, as far as it was asked for: a request need not take the name apart again."""

    def load(self, folder: Path, version: str) -> None:
        """Load the artefact whose hash begins so, unless it is there. Call it in a thread, it takes about 50 ms.

        Raises ValueError for an artefact that is missing, damaged, another, or of another encoder.
        """
        short = version[:12]
        if short in self._pinned:
            return
        try:
            model = DifficultyModel.load(folder, self._embedder)
        except ArtefactError as error:
            raise ValueError(str(error)) from None
        if model.version != short:
            raise ValueError(f"{folder} holds the classifier {model.version}, not {short}")
        self._pinned[short] = model

    def of(self, policy: Policy) -> DifficultyModel:
        """Return the classifier that rates this policy's requests."""
        name = policy.route.classifier
        found = self._by_name.get(name)
        if found is None:
            pinned = policy.route.pinned
            found = self._by_name[name] = self.default if pinned is None else self._pinned[pinned.version[:12]]
        return found


class Routed(NamedTuple):
    """What step 8 has decided, as far as step 9 needs it."""

    decision: Decision
    health: Mapping[str, TierHealth]
    priors: Mapping[str, float]
    """By tier, the classifier's probability that it answers correctly; empty if the classifier abstains."""
    asks_both: bool
    """Start the next tier at once too (`escalate.speculate.both`)."""


_routed: Final = from_fields(Routed)


class Router:
    """Decide which tiers try a request, from the health of the worker's tiers and the classifier's difficulty."""

    def __init__(
        self, tiers: Mapping[str, Tier], classifiers: Classifiers, conversations: ConversationAdvisor | None = None
    ) -> None:
        """Without `conversations` each turn is decided on by itself."""
        self._tiers = tiers
        self.conversations = conversations
        self._last_maker = maker_finder()
        self._tier_of_maker = {maker: tier.name for tier in tiers.values() for maker in tier.makers}
        self.classifiers = classifiers

    def tier_of_reasoning(self, messages: Sequence[Any]) -> str | None:
        """Return the tier whose backend sealed a conversation's latest reasoning; None if none of them did."""
        maker = None if self._last_maker is None else self._last_maker(messages)
        return None if maker is None else self._tier_of_maker.get(maker)

    def in_conversation(self, policy: Policy, features: Features, vector: Vector, difficulty: Difficulty) -> Features:
        """Return the features with how hard earlier turns make this one, where a rule of the policy asks for it."""
        if self.conversations is None or "conversation_difficulty" not in policy.asked or not features.earlier:
            return features
        return self.conversations.rated(policy, self.classifiers.of(policy), features, vector, difficulty.effort)

    def decide(self, request: RequestContext, vector: Vector | None) -> Routed:
        """Return the decision for one request, as a hop of its trace. Raises ApiError when no tier can answer."""
        tokens_in, batch = request.features.approx_tokens, request.policy.load.priority == "batch"
        health: dict[str, TierHealth] = {}
        refusing: dict[str, RefusedKinds] = {}
        largest = 0
        for name in request.policy.ladder:
            tier = self._tiers[name]
            state = health[name] = tier.health(tokens_in, batch=batch)
            largest = max(largest, state.context or 0)
            if (refused := tier.refused) is not None and refused.kinds:
                refusing[name] = refused
        if refusing:
            self._pass_over(request, refusing, health)
        hop = request.trace.begin(names.ROUTE)
        difficulty: Difficulty | None = None
        features = request.features
        if features.last_tier:
            hop.attributes[names.LAST_TIER] = request.policy.tiers[features.last_tier - 1]
        if vector is not None and request.is_classified():
            difficulty = self.classifiers.of(request.policy).assess(vector, features)
            _note_difficulty(request.ledger, difficulty)
            if features.earlier:
                features = self.in_conversation(request.policy, features, vector, difficulty)
        costs = None
        if request.conversation is not None and self.conversations is not None:
            costs = self.conversations.costs(request)
        left = request.left()
        spent = None if request.hold is None else request.hold.spent(request.policy)
        given = DecisionInput(
            difficulty,
            features,
            health,
            left.total_s,
            left.ttft_s,
            request.clamp,
            request.policy.held_out > 0
            and (spent is None or spent.share < request.policy.steer_from)
            and _held_out(request, hop, health),
            room_wanted(request.body, largest, own_limit=request.own_limit) if largest else 0,
            costs,
            spent,
        )
        decision = self._decide(request, hop, given)
        both = request.policy.escalate.speculate.both is not None and asks_both(request.policy, given)
        return _routed((decision, health, {} if difficulty is None else priors(request.policy, difficulty), both))

    def _pass_over(
        self, request: RequestContext, refusing: Mapping[str, RefusedKinds], health: dict[str, TierHealth]
    ) -> None:
        """Take from tiers that have refused such a request the capabilities that it needs, if another can answer."""
        needed, tools = needs(request.features), request.features.tools
        if not needed or request.clamp is not None:
            return
        out = [n for n, kinds in refusing.items() if kinds.has(request.tenant, request.body, needed, tools)]
        if any(needed <= one.capabilities and not one.unavailable for name, one in health.items() if name not in out):
            health |= {n: replace(health[n], capabilities=health[n].capabilities - needed) for n in out}

    def _decide(self, request: RequestContext, hop: Hop, given: DecisionInput) -> Decision:
        made = request.trace.decision = RecordedDecision(request.policy, given)
        try:
            decision = made.decision = decide(request.policy, given)
        except NoTierError as error:
            hop.attributes[names.REASON] = str(error)
            hop.end("no_tier")
            tiers = [self._tiers[name] for name in request.policy.ladder]
            raise no_tier(error, tiers, request.body, request.native) from error
        if decision.steering is not None:
            _note_steering(request, hop, decision, decision.steering)
        hop.attributes[names.DECISION] = list(decision.tiers)
        hop.attributes[names.REASON] = decision.reason + (f"; {decision.stand_in}" if decision.stand_in else "")
        hop.end()
        return decision


def _held_out(request: RequestContext, hop: Hop, health: Mapping[str, TierHealth]) -> bool:
    """Return whether chance sends this request to the strongest tier, as a baseline for measuring the others."""
    ladder = request.policy.ladder
    if request.clamp is not None or request.ledger.arm == PLAYGROUND:
        return False
    if len(ladder) < 2 or health[ladder[-1]].unavailable:
        return False
    drawn = hop.attributes[names.HOLDOUT] = random.random() < request.policy.held_out  # noqa: S311
    return drawn


def _note_steering(request: RequestContext, hop: Hop, decision: Decision, steering: Steering) -> None:
    """Say in the ledger, the trace and the reply's head that a budget steers, and whose."""
    request.ledger.steered_from = steering.wanted or decision.tiers[0]
    whose = "a budget" if request.hold is None else request.hold.whose()
    place, cap = request.policy.tiers.index, steering.cap
    if cap and place(decision.tiers[0]) > place(cap):  # what the client pins or needs, no tier up to the cap is
        cap = ""
    text = f"{percent(steering.share, 0)} of {whose}" + (f", capped at {cap}" if cap else "")
    hop.attributes |= {
        names.BUDGET: text,
        names.BUDGET_SHARE: steering.share,
        names.BUDGET_EASE: round(steering.ease, 4),
        **({names.BUDGET_CAP: cap} if cap else {}),
    }
    request.trace.root.attributes[names.BUDGET] = text


def _note_difficulty(ledger: Ledger, difficulty: Difficulty) -> None:
    """Copy into the ledger what the classifier says."""
    ledger.classifier = difficulty.model_version
    if difficulty.in_domain:
        ledger.difficulty, ledger.kind, ledger.quantile = difficulty.score, difficulty.kind, difficulty.quantile
