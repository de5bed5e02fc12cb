"""Which verifiers a draft can have, and how long the first of them takes."""

from __future__ import annotations

from typing import Any

import pytest

from cache.store.base import NoStore
from gateway.config.backends import BackendConfig
from gateway.parts.agents.agreement import TextComparer
from gateway.parts.agents.scorer import AnswerScorer
from gateway.parts.agents.verifying import DraftJudge, Verifiers
from gateway.parts.measures.daily_budget import DailyBudget
from gateway.parts.measures.likeness import AnswerLikeness
from gateway.tiers import Endpoint
from policies.model import Policy

_SCRIPTED = {"name": "a", "kind": "scripted", "script": [{"reply": {}}]}
TOLD, UNTOLD = (
    Endpoint(
        BackendConfig.model_validate({"name": "a", "kind": "scripted", "logprobs": told, "script": [{"reply": {}}]}),
        None,
    )
    for told in (True, False)
)


class SlowJudge(DraftJudge):
    """Takes a fifth of a second."""

    def takes_s(self, rule: Any) -> float:
        return 0.2


def verifiers(*, scorer: bool = True) -> Verifiers:
    judge = SlowJudge({}, {}, DailyBudget(NoStore()))
    return Verifiers(TextComparer(AnswerLikeness(None)), judge, AnswerScorer("0", {}, frozenset()) if scorer else None)


def policy(**escalate: Any) -> Policy:
    rules = {"when": {"confidence_below": 0.5}, **escalate}
    plain = {"surface": "chat", "version": "0" * 7, "slo": {"deadline": "10s"}, "tiers": ["a"]}
    return Policy.model_validate({**plain, "route": {"start": {"a": "otherwise"}}, "escalate": rules})


@pytest.mark.parametrize(
    ("escalate", "endpoint", "takes_s"),
    [
        ({}, TOLD, 0.0),
        ({}, UNTOLD, 0.0),
        ({"judge": {"backend": "b"}}, UNTOLD, 0.2),
        ({"judge": {"backend": "b"}, "verify": ["scorer", "judge"]}, UNTOLD, 0.0),
        ({"judge": {"backend": "b"}, "verify": ["judge", "logprobs"]}, TOLD, 0.2),
        ({"agreement": {}, "verify": ["agreement", "scorer"]}, UNTOLD, 0.0),
        ({"verify": ["logprobs"]}, UNTOLD, 0.0),
        ({"judge": {"backend": "b"}, "when": {"confidence_below": 0}}, UNTOLD, 0.0),
    ],
)
def test_the_first_verifier_that_is_there_says_how_long_a_verdict_takes(
    escalate: dict[str, Any], endpoint: Endpoint, takes_s: float
) -> None:
    """In the policy's order; nothing is asked where no threshold asks for a confidence."""
    assert verifiers().takes_s(policy(**escalate), endpoint) == takes_s


def test_a_scorer_that_no_config_names_is_not_there() -> None:
    """Then nothing is left, unless the policy has a section for something."""
    assert verifiers(scorer=False).takes_s(policy(), UNTOLD) == 0.0
