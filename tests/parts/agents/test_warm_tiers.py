"""Follow-ups over the real gateway: a conversation in other words is served, and another conversation never is."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import local_store
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

FIRST, ANSWER, LAST = "What is the capital of Italy?", "It is Rome.", "What is the question of the capital?"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a cross-encoder that scores texts by the words they share, and the one conversation stored."""
    pytest.importorskip("onnx", reason="the minilm extra is not installed")
    from tests.support.cross_encoder import write_cross_encoder

    folder = tmp_path_factory.mktemp("conversations")
    settings = {"cross_encoder": str(write_cross_encoder(folder / "model"))}
    rules = "semantic: {ttl: 1h, audit: 0%, cross_encoder: {min_score: 0.9, ask_from: 0, within: 20s}}"
    policies = {"chat": CHAT.replace("cache:\n", f"cache:\n  {rules}\n")}
    with (
        Upstream() as upstream,
        local_store() as store,
        serve(folder, upstream.url, store_url=store.url, policies=policies, settings=settings) as running,
    ):
        upstream.default = Reply(text="That is the question.", logprob=-0.01)
        assert path_of(running, FIRST, ANSWER, LAST) == "direct"
        stored = 'tierline_cache_writes_total{outcome="stored"'
        until(lambda: any(line.startswith(stored) and not line.endswith(" 0.0") for line in metrics(running)), 30)
        yield running


def metrics(gateway: Gateway) -> list[str]:
    return httpx2.get(f"{gateway.origin}/metrics", timeout=30).text.splitlines()


def path_of(gateway: Gateway, *texts: str, system: str = "") -> str:
    """Ask the last of the texts of user and assistant; return how the reply came about."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    body = {"model": "chat", "temperature": 0, "messages": messages}
    reply = httpx2.post(f"{gateway.url}/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200
    return reply.headers["x-tierline-path"]


@pytest.mark.parametrize(
    "texts",
    [
        (FIRST, ANSWER, "Please, what is the question of the capital"),
        ("what is the capital of italy", ANSWER, LAST),
        ("Which is the capital of Italy?", ANSWER, "And what is the question of the capital?"),
    ],
    ids=["last turn", "first turn", "every turn"],
)
def test_the_same_conversation_in_other_words_is_served(gateway: Gateway, texts: tuple[str, ...]) -> None:
    """Although its last message would not stand alone."""
    assert path_of(gateway, *texts) == "cache-semantic"


@pytest.mark.parametrize(
    "texts",
    [
        ("What is the capital of France?", ANSWER, LAST),
        (FIRST, "It is Paris.", LAST),
        (FIRST, "It is Rome. Long ago it was Turin, then Florence.", LAST),
        ("I am vegetarian. What is the capital of Italy?", ANSWER, LAST),
        ("What is the capital of Italy in 1850?", ANSWER, LAST),
        ("Translate to Italian: what is the capital of Italy?", ANSWER, LAST),
        (FIRST, ANSWER, "Thanks.", "Sure.", LAST),
        (LAST,),
    ],
    ids=["entity", "answer", "longer answer", "constraint", "number", "task", "more turns", "alone"],
)
def test_the_same_last_message_after_another_history_is_not(gateway: Gateway, texts: tuple[str, ...]) -> None:
    """Whatever was said before counts, of the user and of the assistant."""
    assert path_of(gateway, *texts) == "direct"


def test_another_system_prompt_is_another_conversation(gateway: Gateway) -> None:
    """It is compared letter by letter."""
    assert path_of(gateway, FIRST, ANSWER, "And what is the question of the capital?", system="Be brief.") == "direct"
