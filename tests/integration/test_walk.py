"""A walk says what a gateway does: the same drafts, told to `gateway.parts.lab.walk` and given by scripted models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from gateway.parts.lab.walk import STATUS, Draft, Surroundings, Walk, walk
from gateway.parts.local.kinds.scripted.script import ModelReply as Reply
from gateway.parts.local.kinds.scripted.script import ToolCall, error_reply
from policies.loader import read_policy
from routing.decide import DecisionInput, TierHealth
from routing.features import features_of
from tests.support.app import in_process
from tests.support.upstream import Upstream

POLICY: Final = """
surface: {surface}
slo: {{deadline: 20s}}
holdout: 0
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
escalate:
  when: {{uncalibrated_below: 0.8, invalid: [json, json_schema, tool_args], finish: [length]}}
  no_signal: {no_signal}
  stream: {{hold_tokens: 8, hold_max: 2s}}
"""
WORDS: Final = "one two three four five six seven eight nine ten eleven twelve"
RAW: Final = Draft(confidence=0.95, calibrated=False, tokens=12, text=WORDS)
SURE: Final = Reply(text=WORDS)
JSON: Final = {"response_format": {"type": "json_object"}}
TOOLS: Final = {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]}
LOOP: Final = "again and " * 20

CASES: Final[dict[str, tuple[Draft, Reply, Mapping[str, Any]]]] = {
    "sure": (RAW, SURE, {}),
    "doubtful": (replace(RAW, confidence=0.41), replace(SURE, logprob=-0.9), {}),
    "just enough": (replace(RAW, confidence=0.81), replace(SURE, logprob=-0.21), {}),
    "just too little": (replace(RAW, confidence=0.79), replace(SURE, logprob=-0.236), {}),
    "no evidence": (replace(RAW, confidence=None), replace(SURE, no_logprobs=True), {}),
    "refusal": (replace(RAW, text="I can't assist with that."), replace(SURE, text="I can't assist with that."), {}),
    "short and cut off": (
        replace(RAW, tokens=3, text="one two three", finish="length"),
        replace(SURE, text="one two three", finish_reason="length"),
        {},
    ),
    "long and cut off": (
        replace(RAW, finish="length", total_s=0.06),
        replace(SURE, finish_reason="length", between_s=0.005),
        {},
    ),
    "the client's own limit": (
        replace(RAW, tokens=3, text="one two three", finish="length"),
        replace(SURE, text="one two three", finish_reason="length"),
        {"max_tokens": 3},
    ),
    "loop": (replace(RAW, text=LOOP, tokens=40), replace(SURE, text=LOOP), {}),
    "empty": (replace(RAW, text="", tokens=0), replace(SURE, text=""), {}),
    "invalid JSON": (replace(RAW, tokens=2, text='{"a": ', invalid="json"), replace(SURE, text='{"a": '), JSON),
    "JSON": (replace(RAW, tokens=2, text='{"a": 1}'), replace(SURE, text='{"a": 1}'), JSON),
    "invalid call": (
        replace(RAW, text="", tokens=1, invalid="tool_args", calls_tools=True, finish="tool_calls"),
        replace(SURE, text="", tool_calls=(ToolCall("look", "{"),)),
        TOOLS,
    ),
    "rejected": (
        Draft(fault="rejected"),
        error_reply(400, "messages: at least one message is required", "invalid_request_error"),
        {},
    ),
    "failed": (Draft(fault="error"), error_reply(500), {}),
}


def walked(folder: Path, surface: str, draft: Draft, body: Mapping[str, Any]) -> Walk:
    """Return what a walk says of a request whose local draft this is; the hosted tier gives a good answer."""
    policy, _ = read_policy(folder / "policies" / f"{surface}.yaml")
    features = features_of({"messages": [{"role": "user", "content": "hello"}], **body})
    health = {name: TierHealth(name, frozenset({"tools", "json"}), 1) for name in policy.ladder}
    around = Surroundings({"local": (draft,)}, own_limit="max_tokens" in body)
    return walk(policy, DecisionInput(None, features, health, policy.slo.deadline), around)


async def test_walks_end_as_requests_do(local_upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> None:
    """Status, path, tier and the number of calls are equal for every kind of draft, whole and as a stream."""
    kinds = {"chat": "escalate", "eager": "accept"}
    policies = {surface: POLICY.format(surface=surface, no_signal=kind) for surface, kind in kinds.items()}
    different = {}
    async with in_process(tmp_path, local_upstream.url, hosted_upstream.url, policies=policies) as app:
        for surface, stream, (name, (draft, reply, more)) in product(kinds, (False, True), CASES.items()):
            if stream and name == "loop":
                continue  # it shows only after the hold, and what happens then a walk leaves out
            local_upstream.queue(reply)
            before = len(local_upstream.requests) + len(hosted_upstream.requests)
            got = await app.ask(model=surface, stream=stream, **more)
            calls = len(local_upstream.requests) + len(hosted_upstream.requests) - before
            was = got.status_code, "", "", calls
            if got.status_code == 200:
                was = 200, got.headers["x-tierline-path"], got.headers["x-tierline-tier"], calls
            told = walked(tmp_path, surface, draft, {**more, "stream": stream})
            expected = STATUS[told.refused], told.path, told.tier, len(told.called)
            if was != expected:
                different[surface, stream, name] = was, expected
    assert different == {}
