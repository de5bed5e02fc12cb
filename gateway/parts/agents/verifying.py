"""Ask the policy's verifiers how sure a held draft is, where its log-probabilities do not say: `escalate.verify`.

    logprobs    asks nobody: they come with the answer
    judge       a model reads question and draft (`gateway.parts.agents.draft_judge`)
    agreement   the backend's second sample, drawn beside the draft (`gateway.parts.agents.sampling`)
    scorer      a small model of the worker's own over question and draft, off the event loop

They are asked in the policy's order until one has an answer. `routing.attempt` says which come too late to be asked.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.off_loop import off_loop
from gateway.parts.agents.draft_judge import DraftJudge, NotJudged
from gateway.parts.agents.sampling import Samples
from gateway.telemetry import names
from routing.confidence.judge import Evidence, structural_fault

if TYPE_CHECKING:
    from gateway.cascade.protocols import HeldDraft
    from gateway.parts.agents.agreement import Cosine
    from gateway.parts.agents.scorer import AnswerScorer
    from gateway.request.context import RequestContext
    from gateway.tiers import Endpoint
    from policies.model import Policy, Verifier
    from routing.cascade import Attempt
    from routing.features import Features


class Verifiers:
    """What the drafts of one worker can be verified by: a `gateway.cascade.protocols.AnswerVerifier`."""

    def __init__(self, cosine: Cosine, judge: DraftJudge, scorer: AnswerScorer | None = None) -> None:
        """`cosine` compares two texts by meaning, for samples; without a `scorer` none is asked."""
        self._cosine = cosine
        self._judge = judge
        self._scorer = scorer

    def takes_s(self, policy: Policy, endpoint: Endpoint) -> float:
        """Return the seconds that the first verifier takes which a draft of this endpoint needs; 0 for none."""
        if endpoint.config.logprobs and policy.escalate.verify[0] == "logprobs":
            return 0.0
        return next((takes_s for _, takes_s in self._there(policy, endpoint)), 0.0)

    def beside(
        self,
        request: RequestContext,
        attempt: Attempt,
        endpoint: Endpoint,
        limit_s: float,
        owes: Callable[[str], int],
    ) -> Samples | None:
        """Start the samples that the policy wants, with `limit_s` seconds to come; None if they would tell nothing."""
        policy, features = request.policy, request.features
        rule = policy.escalate.agreement
        if rule is None or attempt.final or not attempt.judged or not attempt.ease:
            return None
        if features.has_images or request.body.get("n") not in (None, 1):
            return None
        if next((by for by, _ in self._there(policy, endpoint)), "") != "agreement":
            return None  # what is asked before it has an answer for nearly every draft
        return Samples(request, endpoint, rule, limit_s, self._cosine, owes)

    async def verify(self, evidence: Evidence, draft: HeldDraft, endpoint: Endpoint) -> Evidence:
        """Return the evidence with what the first verifier that can tell says; note who was skipped, and why."""
        policy, machine, attributes = draft.request.policy, draft.machine, draft.hop.attributes
        began, skipped = time.monotonic(), []
        for by, takes_s in self._there(policy, endpoint):
            if by == "logprobs":
                if evidence.logprobs:
                    break
                continue
            if by != "scorer" and structural_fault(evidence, policy.escalate):
                break  # rejected whatever they say, which costs money or time
            why = machine.why_not_ask(takes_s, time.monotonic())
            said: float | None = None
            if not why:
                try:
                    said = await self._ask(by, evidence, draft)
                except NotJudged as error:
                    why = str(error)
            if said is not None:
                attributes[names.VERIFY_MS] = round((time.monotonic() - began) * 1000, 2)
                evidence = replace(evidence, verified={by: said})
                break
            skipped.append(f"{by}: {why or 'it has no answer'}")
        if skipped:
            attributes[names.VERIFY_SKIPPED] = skipped
        return evidence

    async def verify_later(
        self,
        policy: Policy,
        features: Features,
        kind: str,
        messages: Sequence[Mapping[str, Any]],
        evidence: Evidence,
        quiet: Callable[[Sequence[Endpoint]], Awaitable[Endpoint | None]],
    ) -> tuple[dict[str, float], float]:
        """Return what the first verifier says of an answer for which nobody waits, by name, and the cost in US dollars.

        Of an answer that would be streamed it reads as much as is held. No second sample is drawn.
        """
        escalate = policy.escalate
        if features.stream:
            text = " ".join(evidence.text.split(" ")[: escalate.stream.hold_tokens * 3 // 4])
            evidence = replace(evidence, text=text, complete=evidence.complete and text == evidence.text)
        said: float | None = None
        spent = 0.0
        for by in escalate.verify if escalate.when.asks_for_confidence else ():
            if by == "logprobs" and evidence.logprobs:
                break
            if by == "scorer" and self._scorer is not None:
                said = self._scorer.p_right(features.text, evidence.text, complete=evidence.complete, kind=kind)
            elif by == "judge" and escalate.judge is not None:
                asked = policy.surface, escalate.judge, messages, evidence, quiet
                said, spent = await self._judge.ask_later(*asked)
            if said is not None:
                return {by: said}, spent
        return {}, spent

    def _there(self, policy: Policy, endpoint: Endpoint) -> Iterator[tuple[Verifier, float]]:
        """Yield the verifiers of this endpoint's drafts, in the policy's order, and the seconds that each takes.

        A sample that is drawn beside the draft takes none, nor does the scorer: a tenth of a millisecond.
        """
        escalate = policy.escalate
        for by in escalate.verify if escalate.when.asks_for_confidence else ():
            if by == "judge":
                if escalate.judge is not None:
                    yield by, self._judge.takes_s(escalate.judge)
            elif (
                endpoint.config.logprobs
                if by == "logprobs"
                else (self._scorer if by == "scorer" else escalate.agreement) is not None
            ):
                yield by, 0.0

    async def _ask(self, by: Verifier, evidence: Evidence, draft: HeldDraft) -> float | None:
        """Return what a verifier says, 0..1; None for nothing. Raises NotJudged."""
        rule, left_s = draft.request.policy.escalate.judge, draft.machine.hold_ends - time.monotonic()
        if by == "scorer" and self._scorer is not None:
            question, kind = draft.request.features.text, draft.request.ledger.kind or ""
            read = partial(self._scorer.p_right, question, evidence.text, complete=evidence.complete, kind=kind)
            return await off_loop(read)
        if by == "judge" and rule is not None:
            return await self._judge.ask(draft.request, rule, evidence, min(rule.within, left_s))
        if isinstance(draft.beside, Samples):
            return await draft.beside.agreement(evidence, left_s)
        return None
