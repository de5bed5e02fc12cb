"""Which requests get a candidate: the same units at every step, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.parts.reload.part import PolicyReloader
from gateway.parts.rollout.policy import CANDIDATE, CONTROL, Sticky, assign
from gateway.parts.rollout.registry.follower import PolicyFollower
from gateway.request.options import session_of
from policies.loader import PolicySet, PolicySource, RollingPolicy, read_policy
from policies.model import Policy
from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.store import LocalStore
from tests.support.upstream import Upstream

POLICY = Policy.model_validate(
    {
        "surface": "chat",
        "version": "0" * 7,
        "slo": {"deadline": "9s"},
        "tiers": ["a"],
        "route": {"start": {"a": "otherwise"}},
    }
)
SHARES = (0.01, 0.05, 0.25, 0.5)
Message = Mapping[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def rolling(share: float, sticky: Sticky = "conversation", salt: str = "e01f") -> RollingPolicy:
    return RollingPolicy(POLICY, share, "canary", sticky, salt)


def test_a_conversation_keeps_its_arm_in_all_its_turns() -> None:
    """Whether it has a system prompt or not; the first turn, of one message, counts too."""
    for number in range(200):
        for start in ([user(f"q{number}")], [{"role": "system", "content": "Be brief."}, user(f"q{number}")]):
            turns = [[*start, *[{"role": "assistant", "content": "a"}, user("more")] * more] for more in range(4)]
            sessions = {session_of("acme", {}, {"messages": turn}).name for turn in turns}
            assert len({assign(rolling(0.5), "acme", b"", session) for session in sessions}) == 1


def test_who_is_in_at_a_small_share_is_in_at_every_larger_one() -> None:
    """And the shares are what they say, within what chance allows."""
    units = [f"session {number}" for number in range(20_000)]
    before: set[str] = set()
    for share in SHARES:
        found = {made.unit for unit in units if (made := assign(rolling(share), "acme", b"", unit)).arm == CANDIDATE}
        assert before < found
        assert len(found) == pytest.approx(share * len(units), abs=4 * (share * len(units)) ** 0.5)
        before = found


def test_another_candidate_gets_other_units() -> None:
    """Not the same few conversations are tried upon each time."""
    units = [str(number) for number in range(4000)]
    first, second = (
        {n for n, unit in enumerate(units) if assign(rolling(0.1, salt=salt), "t", b"", unit).arm == CANDIDATE}
        for salt in ("1" * 64, "2" * 64)
    )
    assert len(first & second) == pytest.approx(40, abs=25)


@pytest.mark.parametrize(
    ("sticky", "same", "differs"),
    [
        ("conversation", {"bearer": b"k2"}, {"session": "s2"}),
        ("key", {"session": "s2"}, {"bearer": b"k2"}),
        ("tenant", {"session": "s2", "bearer": b"k2"}, {"tenant": "other"}),
    ],
)
def test_what_is_sticky_is_the_unit(sticky: Sticky, same: dict[str, Any], differs: dict[str, Any]) -> None:
    """And nothing else of the request moves it."""
    given: dict[str, Any] = {"tenant": "acme", "bearer": b"k1", "session": "s1"}
    unit = assign(rolling(0.5, sticky), **given).unit
    assert assign(rolling(0.5, sticky), **{**given, **same}).unit == unit
    assert assign(rolling(0.5, sticky), **{**given, **differs}).unit != unit


CANDIDATE_TEXT = CHAT.replace("confidence_below: 0.5", "confidence_below: 0.6")


def _with_candidate(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, mode: Any = "canary") -> str:
    """Let every set of policies that is loaded have this candidate for half of all conversations; return its label."""
    load = PolicySource.load
    file = folder / "candidate.yaml"
    file.write_text(text)

    def loaded(source: PolicySource, *given: Any) -> PolicySet:
        policy = read_policy(file, source.tiers)[0]
        return replace(load(source, *given), rolling={"chat": RollingPolicy(policy, 0.5, mode, salt=policy.version)})

    monkeypatch.setattr(PolicySource, "load", loaded)
    monkeypatch.setattr(PolicyReloader, "assigned", PolicyFollower.assigned)  # files have no candidate
    return read_policy(file)[0].label


async def test_a_request_is_answered_and_recorded_by_its_arms_policy(
    tmp_path: Path, upstream: Upstream, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header and the record name the version that served it."""
    label = _with_candidate(monkeypatch, tmp_path, CANDIDATE_TEXT)
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        replies = [await app.ask(f"question {number}") for number in range(24)]
        labels = {reply.headers["x-tierline-policy"] for reply in replies}
        live = (labels - {label}).pop()
        assert labels == {label, live}
        by_id: dict[str, Any] = {}
        async with asyncio.timeout(20):
            while len(by_id) < len(replies):
                blobs = await app.steps.store.latest("tierline:traces", 100)
                by_id = {one["request_id"]: one for one in (orjson.loads(blob)["ledger"] for _, blob in blobs)}
                await asyncio.sleep(0.01)
    for reply in replies:
        record = by_id[reply.headers["x-request-id"]]
        assert record["policy"] == reply.headers["x-tierline-policy"]
        assert record["arm"] == (CANDIDATE if record["policy"] == label else CONTROL)
        assert (int(record["unit"], 16) < 1 << 63) == (record["arm"] == CANDIDATE)
        assert record["slo"] == {"deadline": True}


async def test_both_arms_share_what_is_stored(
    tmp_path: Path, upstream: Upstream, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that changes no answer does not start with an empty cache, which would make it seem slow and dear."""
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        for number in range(12):
            await app.ask(f"question {number}")
            await app.kept(f"question {number}")
        calls = len(upstream.requests)
    label = _with_candidate(monkeypatch, tmp_path, CANDIDATE_TEXT)
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        replies = [await app.ask(f"question {number}") for number in range(12)]
    assert {reply.headers["x-tierline-path"] for reply in replies} == {"cache-exact"}
    assert len({reply.headers["x-tierline-policy"] for reply in replies}) == 2
    assert label in {reply.headers["x-tierline-policy"] for reply in replies}
    assert len(upstream.requests) == calls


@pytest.mark.parametrize("mode", ["evaluate", "shadow"])
async def test_a_candidate_that_does_not_serve_gets_no_request(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It is decided with elsewhere, or called off the path."""
    label = _with_candidate(monkeypatch, tmp_path, CANDIDATE_TEXT, mode)
    async with in_process(tmp_path, upstream.url) as app:
        replies = [await app.ask(f"question {number}") for number in range(16)]
    assert label not in {reply.headers["x-tierline-policy"] for reply in replies}
