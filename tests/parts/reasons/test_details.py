"""What a record says of why each hop ended as it did: the application over scripted models and a real store."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.console.facts import hop_facts
from gateway.parts.reasons import detail_names as detail
from gateway.parts.reasons.details import clause_of_verdict
from gateway.parts.reasons.words import reasons_of
from gateway.telemetry import names
from policies.model import Rules
from tests.gateway.telemetry.conftest import server
from tests.gateway.telemetry.test_recorded import POLICY, app_of, hops, let_answer, recorded
from tests.support.app import in_process
from tests.support.store import LocalStore
from tests.support.upstream import Reply, ToolCall, Upstream

__all__ = ["server"]


async def test_each_hop_names_the_key_that_decided_it(tmp_path: Path, upstream: Upstream, server: LocalStore) -> None:
    """With its place in the file, the values that the rule read, the tokens in doubt, and what else there was."""
    let_answer(upstream)
    async with app_of(tmp_path, upstream, server) as app:
        reply = await app.ask("What is it?", stream=True)
        assert reply.headers["x-tierline-path"] == "escalated"
        record = await recorded(app, reply)
    (request,), (route,), (first, second) = (hops(record, name) for name in ("request", "route", "attempt"))
    assert request[detail.DEADLINE] == 20_000 and request[detail.TTFT_TARGET] == 5000
    assert record["ledger"]["kept"] == "head"
    left = [hop["attributes"][detail.BUDGET_LEFT] for hop in record["hops"]]
    assert all(0 < one <= 20_000 for one in left) and left[0] == max(left)

    line = next(i for i, text in enumerate(POLICY.splitlines(), 1) if "start:" in text)
    assert (route[names.CLAUSE], route[names.CLAUSE_LINE]) == ("route.start.local", f"chat.yaml:{line}")
    tokens = route[detail.CHECKS][0]
    assert tokens.startswith("local: tokens_in ") and tokens.endswith(" < 500: yes")
    assert route[detail.CHECKS][1] == "local: has_tools: no"
    assert (route[detail.OTHER_TIERS], route[detail.OTHER_STATE]) == (["hosted"], [""])
    assert (route[detail.OTHER_TTFT], route[detail.OTHER_LATE]) == ([-1.0], [False])

    assert first[names.CLAUSE] == "escalate.when.uncalibrated_below"
    assert first[names.CLAUSE_LINE].startswith("chat.yaml:")
    assert first[detail.PREFIX] == [-0.1, -0.2, -0.3, -6.0]
    assert first[detail.LOWEST] == [3, 2, 1, 0] and first[detail.LOWEST_LOGPROBS][0] == -6.0
    assert 0 < first[detail.VERDICT_AT] < 20_000
    assert (first[detail.NEXT_TIER], first[detail.NEXT_LATE]) == ("hosted", False)
    assert first[detail.BREAKER] == "closed" and first[detail.IN_FLIGHT] == 1 and first[detail.QUEUED] == 0
    assert first[names.SERVER_ADDRESS] == "127.0.0.1" and first[names.CONFIDENCE] == pytest.approx(math.exp(-1.65))
    assert detail.NEXT_TIER not in second and detail.PREFIX not in second
    assert not any(name in hop["attributes"] for hop in record["hops"] for name in names.TEXTS - {names.NEIGHBOUR})


async def test_texts_are_captured_and_redacted_where_the_config_says_so(
    tmp_path: Path, upstream: Upstream, server: LocalStore
) -> None:
    """Prompt, answer and tokens; a number that is spread over tokens takes all their texts with it."""
    let_answer(upstream)
    async with app_of(tmp_path, upstream, server, prompts=["chat"], redact=[r"4111 1111", "knows"]) as app:
        record = await recorded(app, await app.ask("Is 4111 1111 my card?", stream=True))
        (request,), (first, _) = hops(record, "request"), hops(record, "attempt")
        assert request[names.PROMPT] == "Is [redacted] my card?"
        assert request[names.ANSWER] == "The large model [redacted]."
        assert first[names.PREFIX_TOKENS] == ["My", " card", " is", " 4111"]
        assert first[names.LOWEST_TOKENS][0] == " 4111"
    async with app_of(tmp_path, upstream, server, prompts=["chat"], redact=["card is"]) as app:
        (first, _) = hops(await recorded(app, await app.ask("Once more?", stream=True)), "attempt")
        assert detail.PREFIX in first and not first.keys() & {names.PREFIX_TOKENS, names.LOWEST_TOKENS}


@pytest.mark.parametrize(
    ("reason", "basis", "clause"),
    [
        ("confidence 0.2 < 0.3 (calibrated by 1)", "calibrated", "escalate.when.confidence_below"),
        ("confidence 0.2 < 0.3 (logprob)", "logprob", "escalate.when.uncalibrated_below"),
        ("refusal", "logprob", "escalate.when.refusal"),
        ("cut off", "none", "escalate.when.finish"),
        ("invalid JSON", "none", "escalate.when.invalid"),
        ("not what the JSON schema says", "none", "escalate.when.invalid"),
        ("no signal", "none", "escalate.no_signal"),
        ("repetition loop", "none", "escalate.when.repetition"),
    ],
)
def test_each_verdict_has_a_key_of_the_policy(reason: str, basis: str, clause: str) -> None:
    """And the policy has that key."""
    assert clause_of_verdict(reason, basis) == clause
    model: Any = Rules
    for part in clause.split("."):
        model = model.model_fields[part].annotation


@pytest.mark.parametrize("captured", [False, True])
async def test_the_calls_of_a_rejected_draft_are_recorded(
    upstream: Upstream, server: LocalStore, tmp_path: Path, captured: bool
) -> None:
    """The names of its tools; what they were called with only where texts are captured, and redacted there."""
    bad = Reply(tool_calls=(ToolCall("search_web", '{"card":"4111"}'),), no_logprobs=True)
    upstream.on(lambda request: request.body["model"] == "small").reply(bad)
    upstream.on(lambda request: request.body["model"] == "large").reply(Reply(text="The large model knows."))
    policy = POLICY.replace(" and not has_tools", "").replace("refusal: true}", "refusal: true, invalid: [tool_calls]}")
    telemetry = {"prompts": True, "redact": ["[0-9]{4}"]} if captured else {}
    settings = {"telemetry": telemetry} if telemetry else {}
    async with in_process(
        tmp_path, upstream.url, upstream.url, store_url=server.url, policies={"chat": policy}, settings=settings
    ) as app:
        tools = [{"type": "function", "function": {"name": "read"}}]
        reply = await app.ask(f"look, captured: {captured}", tools=tools)
        record = await recorded(app, reply)
        first, _ = hops(record, names.ATTEMPT)
        assert (first[names.OUTCOME], first[detail.CALLS]) == ("unfit", ["search_web"])
        assert first[names.CLAUSE] == "escalate.when.invalid"
        called = 'search_web({"card":"[redacted]"})' if captured else "search_web"
        assert first.get(names.CALL_ARGUMENTS) == (called if captured else None)
        told = reasons_of({"name": names.ATTEMPT, "attributes": first, "error": None})
        assert f"called {called}" in told
        facts = {fact.label: fact for fact in hop_facts(first)}
        assert facts["called"].value == called
        assert (facts[""].value, facts[""].state) == ("unfit", "bad")
