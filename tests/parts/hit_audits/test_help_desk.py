"""A help desk in Chinese beside an English majority, with a model that takes opposite questions for the same."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cache.response_cache import ResponseCache
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.store.redis_store import RedisStore
from gateway.parts.hit_audits.audit import Audits
from gateway.seams import build_pair_queue, compares_turns
from tests.cache.conftest import store, valkey
from tests.cache.samples import Facts, answer, body, policy
from tests.parts.measures.test_statements import Reader
from tests.support.wait import eventually

__all__ = ["store", "valkey"]

THINGS = [
    "手机通知",
    "自动更新",
    "会员服务",
    "家庭账户",
    "语音助手",
    "云端备份",
    "位置信息",
    "付款密码",
    "好友申请",
    "夜间模式",
]
WAYS = [("开启", "关闭"), ("恢复", "备份"), ("订阅", "退订"), ("导入", "导出"), ("绑定", "解绑"), ("增加", "减少")]
ENGLISH = ("How do I switch the dark mode on?", "How can I switch on the dark mode?")
RULES = policy(semantic={"ttl": "6h", "cross_encoder": {"within": "30s"}})
MAX_ERROR = 0.01


@dataclass
class Trusting:
    """Calls any two questions the same."""

    strict: float | None = 0.8
    scripts: Sequence[str] = ("Latin", "Han")
    languages: Sequence[str] = ("en", "zh")

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [0.95] * len(pairs)


def alike(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.ones((len(texts), 1), np.float32)


def asked(question: str, desk: int) -> dict[str, Any]:
    """A question in a conversation of its own, so that it finds none but its opposite."""
    messages = [{"role": "system", "content": f"Desk {desk}."}, {"role": "user", "content": question}]
    return {**body(question), "messages": messages}


async def test_wrong_hits_of_a_minority_are_seen_and_end(store: RedisStore, caplog: pytest.LogCaptureFixture) -> None:
    """Its answers are compared by what they say, its threshold rises, its breach is told, and English hits go on.

    Of the first 20 would-be hits every other one is answered afresh, so few are wrong before that; all 180 would be.
    """
    name, vector = secrets.token_hex(4), np.array([1, 0, 0, 0], np.float32)
    audits = Audits(store, name, alike, cross_encoder=name, scorer=Reader())
    cache = ResponseCache(
        store, embedder_name=name, dimension=4, verifier=Verifier.load(shipped_verifier("static")),
        cross_encoder=build_pair_queue(Trusting()), turn_by_turn=compares_turns(), bound=audits,
    )  # fmt: skip
    await cache.start()

    async def ask(question: str, text: str, tenant: str, desk: int) -> str:
        plan = cache.plan(asked(question, desk), RULES, tenant, Facts())
        found = await cache.semantic(plan, vector)
        if found.outcome != "hit":
            await cache.write(plan, answer(text), vector)
            await asyncio.sleep(0.003)
        return found.outcome

    try:
        with caplog.at_level(logging.WARNING, "tierline.cache"):
            english = [await ask(question, "Open Settings.", "acme", -1) for question in ENGLISH * 2]
            surface = audits._surfaces["chat"]
            surface.count("tenant:acme", "en")
            surface.requests += 20_000
            surface.languages["en"] += 20_000
            surface.owners["tenant:acme"] = surface.owners.get("tenant:acme", 0) + 20_000
            await eventually(lambda: surface.control.languages.main == "en")
            wrong = 0
            for desk, (thing, way) in enumerate(itertools.product(THINGS * 3, WAYS)):
                for verb in way:
                    text = f"请打开设置，选择{thing}，点击{verb}，然后保存更改即可。"
                    wrong += await ask(f"请告诉我{verb}{thing}的方法。", text, "desk", desk) == "hit"
            await eventually(lambda: audits.state()["chat"].languages.get("zh", False))
        assert "hit" in english
        assert wrong <= 20
        state = audits.state()["chat"]
        assert not state.breached and state.threshold <= 0.95
        assert state.tenants["tenant:desk"] and not state.tenants.get("tenant:acme")
        assert caplog.text.count("surface chat, language zh: more than 0.01") == 1
        again = [await ask(question, "Open Settings.", "acme", -1) for question in ENGLISH * 10]
        assert again.count("hit") >= 10
    finally:
        await cache.aclose()
