"""The models that a gateway asks about its semantic cache: a cross-encoder before a hit, a judge after an audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.ask import ask
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

ITALY, SAME = "What is the capital of Italy?", "what's the capital of Italy"
REWORDED = "Which city is the capital of Italy?"
JUDGING = "answer_1"


@pytest.fixture(scope="module")
def cache_store() -> Iterator[LocalStore]:
    with local_store() as server:
        yield server


@pytest.fixture(scope="module")
def running() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture
def upstream(running: Upstream) -> Upstream:
    running.reset()
    return running


def semantic(rules: str) -> dict[str, str]:
    return {"chat": CHAT.replace("cache:\n", f"cache:\n  semantic: {{ttl: 1h, {rules}}}\n")}


def metric(gateway: Gateway, name: str) -> float:
    """The value of a series; 0 where it is not there yet."""
    lines = httpx2.get(f"{gateway.origin}/metrics", timeout=30).text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


def test_a_judge_compares_what_was_answered_afresh(tmp_path: Path, upstream: Upstream, cache_store: LocalStore) -> None:
    """After the reply and at our own expense: the metrics say so, and what requests cost does not grow."""
    upstream.default = Reply(text="It is Rome.", logprob=-0.01)
    policies = semantic("audit: 100%, audit_judge: {backend: hosted}")
    with serve(tmp_path, upstream.url, upstream.url, store_url=cache_store.url, policies=policies) as gateway:
        ask(gateway, ITALY)
        until(lambda: metric(gateway, 'tierline_cache_writes_total{outcome="stored"'), 30)
        upstream.default = Reply(text="Rome, of course.", logprob=-0.01)
        upstream.on(JUDGING).reply(Reply(text="DIFFERENT"))
        reply = ask(gateway, SAME)
        assert reply.headers["x-tierline-path"] == "direct"
        until(lambda: metric(gateway, 'tierline_cache_judgements_total{outcome="different",surface="chat"}'), 30)
        shown = next(request for request in upstream.requests if JUDGING in request.prompt)
        assert ITALY not in shown.prompt
        assert all(text in shown.prompt for text in (SAME, "It is Rome.", "Rome, of course."))
        assert metric(gateway, "tierline_cache_judge_usd_total") > 0
        assert metric(gateway, "tierline_cost_usd_total") == 0
        until(lambda: metric(gateway, 'tierline_cache_labels{surface="chat"') or None, 30)


@pytest.mark.parametrize(("least", "path"), [("0.0", "cache-semantic"), ("1.0", "direct")])
def test_a_cross_encoder_decides_what_the_verifier_leaves_open(
    tmp_path: Path, upstream: Upstream, cache_store: LocalStore, least: str, path: str
) -> None:
    """Another wording is served or answered by a model as it scores; what has the same words does not ask it."""
    pytest.importorskip("onnx", reason="the minilm extra is not installed")
    from tests.support.cross_encoder import write_cross_encoder

    upstream.default = Reply(text="Rome.", logprob=-0.01)
    settings = {"cross_encoder": str(write_cross_encoder(tmp_path / "model"))}
    policies = semantic(f"audit: 0%, cross_encoder: {{min_score: {least}, ask_from: 0, within: 20s}}")
    with serve(tmp_path, upstream.url, store_url=cache_store.url, policies=policies, settings=settings) as gateway:
        ask(gateway, ITALY)
        until(lambda: metric(gateway, 'tierline_cache_writes_total{outcome="stored"'), 30)
        assert ask(gateway, SAME).headers["x-tierline-path"] == "cache-semantic"
        assert ask(gateway, REWORDED).headers["x-tierline-path"] == path
        outcome = "hit" if path == "cache-semantic" else "miss"
        decided = "tierline_cache_decisions_total"
        until(lambda: metric(gateway, f'{decided}{{outcome="{outcome}",stage="cross_encoder"') == 1, 30)
        assert metric(gateway, f'{decided}{{outcome="hit",stage="rule"') == 1
        assert metric(gateway, "tierline_cache_check_seconds_count") == 1
