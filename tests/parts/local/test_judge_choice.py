"""Who judges drafts without log-probabilities, by what `tierline init` knows: its size, its price, its signal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.parts.local.judge_choice import judge_of, verifier_advice
from gateway.parts.local.ladder import ModelServer, Rung
from gateway.parts.prices.model_facts import Provider, known_providers, shipped_facts
from policies.model import JudgeRules

URL = "http://127.0.0.1:9/v1"


def rung(tier: str, model: str, provider: str = "", *, also: int = 0) -> Rung:
    """A rung of a provider, with its shipped facts, or of a server of one's own."""
    known: dict[str, Provider] = {one.name: one for one in known_providers().providers}
    own = known.get(provider)
    url = URL if own is None else own.base_url
    facts = None if own is None else shipped_facts().find(url, model)
    place = ModelServer(provider or "vLLM", url, (model,), own)
    return Rung(tier, model, place, facts, also=(place,) * also)


def test_the_cheapest_rung_that_tells_judges() -> None:
    silent, luna, sol = (
        rung("first", "gemini-2.5-flash-lite", "Gemini"),
        rung("hosted", "gpt-6-luna", "OpenAI"),
        rung("large", "gpt-6.1-sol", "OpenAI"),
    )
    choice = judge_of([silent, luna, sol])
    assert choice is not None and choice.backend == "hosted" and choice.rule == "judge: {backend: hosted}"
    price = luna.facts and luna.facts.price
    assert price and choice.usd == pytest.approx((1250 * price.input + price.output) / 1000)
    assert f"about ${choice.usd:.2f}" in verifier_advice([silent, luna, sol])


def test_a_small_model_does_not_judge() -> None:
    """A name that states less than 3B is passed over; one that states nothing judges, and that is said."""
    small, hosted = rung("local", "llama3.2:1b"), rung("hosted", "claude-haiku-5-5", "Anthropic")
    last = rung("large", "claude-sonnet-5-5", "Anthropic")
    assert judge_of([small, hosted, last]) is None
    assert "agreement: {samples: 1}" in verifier_advice([small, hosted, last])
    unnamed = rung("local", "my-model")
    assert judge_of([unnamed, hosted, last]) is not None
    assert "its name states no size" in verifier_advice([unnamed, hosted, last])


def test_a_judge_that_costs_more_than_the_default_allows_gets_a_cap_that_lets_it() -> None:
    """Else it would be named in the policy, and skipped at each draft."""
    judge = rung("large", "gpt-6-luna", "OpenAI")
    assert judge.facts is not None and judge.facts.price is not None
    price = judge.facts.price.model_copy(update={"input": 3.0})
    judge = replace(judge, facts=judge.facts.model_copy(update={"price": price}))
    choice = judge_of([rung("hosted", "claude-haiku-5-5", "Anthropic"), judge])
    assert choice is not None and choice.usd is not None
    default = JudgeRules(backend="large").max_usd_per_request
    assert choice.usd / 1000 > default and "max_usd_per_request" in choice.rule
    assert float(choice.rule.rstrip("}").rpartition(" ")[2]) >= choice.usd / 1000


def test_of_several_servers_the_first_is_named_as_the_config_names_it() -> None:
    rungs = [rung("local", "llama3.1:8b", also=1), rung("hosted", "claude-haiku-5-5", "Anthropic")]
    rungs.append(rung("large", "claude-sonnet-5-5", "Anthropic"))
    choice = judge_of(rungs)
    assert choice is not None and choice.rule == "judge: {backend: local-1}" and choice.usd == 0


def test_nobody_judges_where_each_draft_tells_or_there_is_one_tier() -> None:
    assert verifier_advice([rung("hosted", "gpt-6-luna", "OpenAI"), rung("large", "gpt-6.1-sol", "OpenAI")]) == ""
    assert verifier_advice([rung("hosted", "claude-haiku-5-5", "Anthropic")]) == ""
