"""The cross-encoder that ships: its data sheet, that it tells rewordings from traps, and a lookup that asks it."""

from __future__ import annotations

import json
import math
import secrets
from typing import Any

import numpy as np
import pytest

from cache import shipped_cross_encoder
from cache.response_cache import ResponseCache
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.store.redis_store import RedisStore
from gateway.parts.encoders.blend import Blend
from gateway.parts.encoders.cross_encoder import SHEET, CrossEncoder
from gateway.seams import build_pair_queue, compares_turns
from tests.cache.samples import Facts, answer, body, policy

STORED = "How can I cancel my gym membership?"
REWORDINGS = ("What's the way to cancel my gym membership?", "how do i stop my membership at the gym")
TRAPS = ("How can I extend my gym membership?", "What does a gym membership cost?")
VECTOR = np.array([1, 0, 0, 0], np.float32)


def asking(model: CrossEncoder) -> dict[str, Any]:
    """What makes a cache ask the model."""
    return {"cross_encoder": build_pair_queue(model), "turn_by_turn": compares_turns()}


@pytest.fixture(scope="module")
def model() -> CrossEncoder:
    return CrossEncoder.load(shipped_cross_encoder())


def test_its_data_sheet_says_what_it_was_trained_on(model: CrossEncoder) -> None:
    """And the threshold; with its graph it takes no more than 67 MB, the vectors of its tokens included."""
    sheet = json.loads((shipped_cross_encoder() / SHEET).read_bytes())
    assert {"version", "files_version", "trained_on", "figures"} <= sheet.keys()
    assert (model.strict, model.scripts) == (sheet["strict"], set(sheet["scripts"]))
    assert model.languages == set(sheet["languages"]) >= {"en", "zh", "ja", "ar"}
    assert sum(file.stat().st_size for file in shipped_cross_encoder().iterdir()) < 67_000_000


def test_rewordings_score_above_traps(model: CrossEncoder) -> None:
    """Alone and beside other pairs, whose padding and scale of int8 change a score a little."""
    pairs = [(STORED, text) for text in (*REWORDINGS, *TRAPS)]
    together = model.scores(pairs)
    assert min(together[: len(REWORDINGS)]) > max(together[len(REWORDINGS) :])
    assert [model.scores([pair])[0] for pair in pairs] == pytest.approx(together, abs=0.1)


@pytest.mark.parametrize("weight", [0.0, 4.0])
async def test_a_lookup_asks_it_for_what_the_verifier_leaves_open(
    store: RedisStore, model: CrossEncoder, weight: float
) -> None:
    """Over a real store; the score is the model's, and where it has a weight the cosine's too."""
    verifier = Verifier.load(shipped_verifier("static"))
    asking = policy(semantic={"ttl": "6h", "audit": "0%", "cross_encoder": {"ask_from": 0, "within": "30s"}})
    name, tenant = secrets.token_hex(4), secrets.token_hex(8)
    cache = ResponseCache(
        store,
        embedder_name=name,
        dimension=4,
        verifier=verifier,
        cross_encoder=build_pair_queue(model),
        turn_by_turn=compares_turns(),
        cosine_weight=weight,
    )
    near = np.array([0.9, math.sqrt(1 - 0.9**2), 0, 0], np.float32)
    await cache.start()
    try:
        await cache.write(cache.plan(body(STORED), asking, tenant, Facts()), answer(), VECTOR)
        found = await cache.semantic(cache.plan(body(REWORDINGS[1]), asking, tenant, Facts()), near)
    finally:
        await cache.aclose()
    assert found.stage == "cross_encoder"
    strict = model.strict or 1.0
    read = model.scores([(STORED, REWORDINGS[1])])[0]
    assert found.read == pytest.approx(read) and read > strict
    assert found.score == pytest.approx(Blend(strict, weight).score(read, 0.9), abs=1e-3)
    assert (found.outcome == "hit") is (found.score is not None and found.score >= (model.strict or 1.0))


@pytest.mark.parametrize("verify", ["default", "fast", "none"])
@pytest.mark.parametrize(
    ("stored", "asked", "reason"),
    [
        ("Hur slår jag på aviseringar i telefonen?", "Hur slår jag av aviseringar i telefonen?", "guard: language"),
        ("How do I mute the \U0001f514 sign?", "How can I silence the \U0001f514 sign?", "guard: unknown_token"),
    ],
)
async def test_a_lookup_refuses_what_no_model_can_read(
    store: RedisStore, model: CrossEncoder, verify: str, stored: str, asked: str, reason: str
) -> None:
    """However near the vectors, at every level of `verify`; the reason names it."""
    rules = {"ttl": "6h", "verify": verify, "audit": "0%"}
    if verify == "default":
        rules["cross_encoder"] = {"ask_from": 0, "min_score": 0, "within": "30s"}
    asking = policy(semantic=rules)
    name, tenant = secrets.token_hex(4), secrets.token_hex(8)
    verifier = Verifier.load(shipped_verifier("static"))
    cache = ResponseCache(
        store,
        embedder_name=name,
        dimension=4,
        verifier=verifier,
        cross_encoder=build_pair_queue(model),
        turn_by_turn=compares_turns(),
    )
    await cache.start()
    try:
        await cache.write(cache.plan(body(stored), asking, tenant, Facts()), answer(), VECTOR)
        found = await cache.semantic(cache.plan(body(asked), asking, tenant, Facts()), VECTOR)
    finally:
        await cache.aclose()
    assert found.outcome == "miss"
    if verify == "default" or (verify == "fast" and reason == "guard: language"):
        assert found.reason == reason


@pytest.mark.parametrize(
    ("stored", "rewording", "trap"),
    [
        ("怎么开启手机的蓝牙功能？", "如何开启手机的蓝牙功能？", "怎么关闭手机的蓝牙功能？"),
        ("パスワードを変更する方法は？", "パスワードの変え方を教えてください", "パスワードを削除する方法は？"),
        ("¿Cómo cancelo mi pedido?", "¿Qué tengo que hacer para cancelar mi pedido?", "¿Cómo cambio mi pedido?"),
        (
            "Comment annuler ma commande ?",
            "Je voudrais annuler ma commande, comment faire ?",
            "Comment suivre ma commande ?",
        ),
    ],
)
def test_a_rewording_is_told_from_an_opposite_in_other_languages(
    model: CrossEncoder, stored: str, rewording: str, trap: str
) -> None:
    """One reaches the threshold that holds without labels, the other stays far below it."""
    same, other = model.scores([(stored, rewording), (stored, trap)])
    assert same >= (model.strict or 1.0)
    assert other < 0.5


def test_a_score_does_not_depend_on_its_company(model: CrossEncoder) -> None:
    """What is read in the same call, longer or shorter, changes no digit: other traffic decides nothing."""
    pairs = [
        ("How do I bake bread?", "What is a way to bake bread at home?"),
        ("Wie kündige ich mein Abo?", "Abo kündigen, wie geht das?"),
        (
            "Is it legal to keep a crocodile in a garden in the north of the country?",
            "May I have a caiman at home there?",
        ),
    ]
    assert model.scores(pairs) == [model.scores([pair])[0] for pair in pairs]
