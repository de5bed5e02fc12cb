"""What a worker remembers of conversations: which tier answered last, and what each tier's provider holds."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gateway.parts.agents.conversations import ConversationMemory, KnownConversation
from gateway.telemetry import names
from gateway.telemetry.ledger import CallAccount, Ledger
from gateway.telemetry.trace import Trace
from policies.loader import made_policy
from policies.model import Policy
from routing.features import features_of
from tests.support.app import in_process

TIERS = ("local", "hosted")
PROMPT = 4000


def policy(**more: Any) -> Policy:
    rules = {"local": "last_tier <= 1", "hosted": "otherwise"}
    content = {"surface": "chat", "slo": {"deadline": "9s"}, "tiers": list(TIERS), "route": {"start": rules}, **more}
    return made_policy(content, Path("chat.yaml"), {"ladder": TIERS})


def call(tier: str, **more: Any) -> CallAccount:
    backend = {"local": "local", "hosted": "hosted"}[tier]
    made = CallAccount(1, tier, backend, "m", "accepted", PROMPT, 20, False, 0.0, False, 0.0, None, 9.0)
    return dataclasses.replace(made, **more)


def turn(
    memory: ConversationMemory, *calls: CallAccount, name: str = "00c0ffee00c0ffee", text: str = "Hello.", **more: Any
) -> KnownConversation | None:
    """One turn of a client that names its session, and what was known of it when it came."""
    rules = more.pop("rules", policy())
    body = {"messages": [{"role": "user", "content": text}], **more}
    trace, ledger = Trace(names.REQUEST), Ledger("r", conversation=name)
    _, known = memory.enter(rules, ledger, body, features_of(body), trace, named=True)
    ledger.calls, ledger.tier = calls, calls[-1].tier if calls else ""
    assert trace.after is not None
    trace.after(ledger)
    return known


async def memory_of(folder: Path, clock: list[float], backends: int = 1, **backend: Any) -> ConversationMemory:
    """A memory over a local and a hosted tier."""
    own = [{"base_url": "http://127.0.0.1:9/v1", "model": "m", **backend} for _ in range(backends)]
    settings = {"tiers": [{"name": name, "backends": own[:1] if name == "local" else own} for name in TIERS]}
    folder.mkdir()
    settings = {
        "tiers": [{**one, "backends": [copy.deepcopy(b) for b in one["backends"]]} for one in settings["tiers"]]
    }
    env = {"A_KEY": "sk-a-key-of-a-test"}
    async with in_process(folder, "http://127.0.0.1:9/v1", settings=settings, env=env) as app:
        return ConversationMemory(app.steps.router._tiers, lambda: clock[0])


async def test_what_a_call_leaves_behind_lasts_for_its_time(tmp_path: Path) -> None:
    """Usually as long as its provider says; of a tier with several backends nobody knows who is asked next."""
    clock = [1000.0]
    one = await memory_of(tmp_path / "one", clock, prompt_lifetime="5m")
    several = await memory_of(tmp_path / "several", clock, 2, prompt_lifetime="5m")
    for memory in (one, several):
        assert turn(memory, call("hosted")) is None
    known, unknown = turn(one, call("hosted", tokens_cached=3968)), turn(several, call("hosted", backend="hosted-1"))
    assert known is not None and unknown is not None
    held = known.held["hosted"]
    assert (held.at(1299.0), held.at(1300.0)) == (3968, 0)
    assert unknown.held["hosted"].at(1001.0) is None and unknown.held["hosted"].lifetime_s is None


async def test_a_call_that_nobody_counted_leaves_nothing_known(tmp_path: Path) -> None:
    """Nor does one that failed before its prompt was read count at all."""
    memory = await memory_of(tmp_path / "one", [1000.0], prompt_lifetime="5m")
    turn(memory, call("local", tokens_in=0, wasted=True), call("hosted", estimated=True))
    known = turn(memory, call("hosted"))
    assert known is not None and set(known.held) == {"hosted"} and known.held["hosted"].tokens is None


async def test_a_session_that_asks_for_longer_is_kept_for_longer(tmp_path: Path) -> None:
    """By the policy, where the model's provider has a longer time; else for the usual one."""
    memory = await memory_of(
        tmp_path / "one", [1000.0], prompt_lifetime="5m", kind="anthropic", model="claude-haiku-4-5", key_env="A_KEY"
    )
    usual, longer = policy(), policy(prompt_cache="long")
    for name, rules in (("a" * 16, usual), ("b" * 16, longer)):
        turn(memory, call("hosted", tokens_cache_write=3000), name=name, rules=rules)
    found = [turn(memory, name=name) for name in ("a" * 16, "b" * 16)]
    [short, long] = [one.held["hosted"] for one in found if one is not None]
    assert [held.at(1299.0) for held in (short, long)] == [3000, 3000]
    assert [held.at(1301.0) for held in (short, long)] == [0, 3000] and long.at(4600.0) == 0


async def test_what_is_weighed_knows_that_an_hour_costs_more(tmp_path: Path) -> None:
    """A tier that is cold writes the whole prompt, for an hour where the policy keeps prompts long."""
    memory = await memory_of(
        tmp_path / "one", [1000.0], prompt_lifetime="5m", kind="anthropic", model="claude-haiku-4-5", key_env="A_KEY",
        price={"input": 2, "output": 0, "cached_input": 0, "cache_write": 2.5},
    )  # fmt: skip
    cold = []
    for rules in (policy(), policy(prompt_cache="long")):
        turn(memory, call("hosted", tokens_cached=PROMPT), rules=rules)
        known = turn(memory, call("hosted", tokens_cached=PROMPT), rules=rules)
        assert known is not None
        body = {"messages": [{"role": "user", "content": "Hello."}]}
        request = SimpleNamespace(
            conversation=known,
            policy=rules,
            features=features_of(body),
            ledger=Ledger("r", tokens_left_out=known.left_out),
        )
        costs = memory.costs(cast(Any, request))
        assert costs is not None
        cold.append(costs["local"].usd)
    assert cold[0] is not None and cold[1] is not None and cold[1] > cold[0]


async def test_the_latest_conversations_are_remembered(tmp_path: Path) -> None:
    """As many as there is room for; the tier of a stored answer counts as the one that answered."""
    memory = await memory_of(tmp_path / "one", [1000.0])
    for number in range(8200):
        turn(memory, call("local"), name=f"{number:016x}")
    assert turn(memory, name=f"{0:016x}") is None
    known = turn(memory, name=f"{8199:016x}")
    assert known is not None and known.tier == "local" and known.turns == 1
