from __future__ import annotations

import time
import unicodedata
from typing import Any

import pytest

from cache.planning.plan import Fingerprint, fingerprint
from cache.scopes.scope import scope_of
from gateway.dialects.native import Native
from tests.cache.samples import body


def keys(request: dict[str, Any], tenant: str = "t", secret: bytes = b"s", **rest: Any) -> Fingerprint:
    scope = scope_of(tenant, rest.get("surface", "chat"), rest.get("version", "v1"), secret)
    return fingerprint(request, scope, secret, rest.get("model"), rest.get("embedder", "e"))


BASE = body("What is the capital of Italy?", temperature=0)


@pytest.mark.parametrize(
    "field",
    [
        "stream", "stream_options", "user", "metadata", "safety_identifier", "store", "service_tier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prompt_cache_of_tomorrow",
    ],
)  # fmt: skip
def test_fields_that_cannot_change_the_answer_do_not_count(field: str) -> None:
    """With or without them, a request has the same keys."""
    assert keys({**BASE, field: {"a": 1}}) == keys(BASE)


@pytest.mark.parametrize(
    "field",
    [
        "temperature", "top_p", "max_tokens", "seed", "n", "stop", "tools", "tool_choice", "response_format",
        "logprobs", "logit_bias", "reasoning_effort", "top_k", "chat_template_kwargs", "field_of_tomorrow", "model",
    ],
)  # fmt: skip
def test_every_other_field_counts_unknown_ones_too(field: str) -> None:
    """A field that may change the answer changes the exact key and the semantic partition."""
    changed = keys({**BASE, field: {"a": 1}})
    assert changed.key != keys(BASE).key
    assert changed.partition != keys(BASE).partition


def test_the_order_of_keys_does_not_count_and_that_of_messages_does() -> None:
    """Objects are canonical, lists keep their order."""
    assert keys(dict(reversed(BASE.items()))) == keys(BASE)
    assert keys({**BASE, "x": {"a": 1, "b": 2}}) == keys({**BASE, "x": {"b": 2, "a": 1}})
    assert keys({**BASE, "stop": ["a", "b"]}) != keys({**BASE, "stop": ["b", "a"]})


def test_only_the_last_user_text_is_outside_the_partition() -> None:
    """Another question shares the partition and not the key; another system prompt or history shares neither."""
    other = keys(body("What is the capital of Spain?", temperature=0))
    assert other.partition == keys(BASE).partition
    assert other.key != keys(BASE).key
    history = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    longer = {**BASE, "messages": [BASE["messages"][0], *history, BASE["messages"][-1]]}
    system = {**BASE, "messages": [{"role": "system", "content": "Be long."}, BASE["messages"][-1]]}
    assert len({keys(request).partition for request in (BASE, longer, system)}) == 3


def test_a_text_part_can_be_cut_out_and_an_image_cannot() -> None:
    """Content of one text part has a question; anything else has none, and so no partition."""
    part = {**BASE, "messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}]}
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    mixed = {**BASE, "messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}, image]}]}
    assert keys(part).question == "Q"
    assert keys(mixed).question is None
    assert keys(mixed).partition == ""
    assert keys({**BASE, "messages": [*BASE["messages"], {"role": "assistant", "content": "A"}]}).question is None


def test_the_cut_cannot_be_imitated() -> None:
    """A null content, an empty text and a cut-out text give three different keys."""
    null = keys({**BASE, "messages": [{"role": "user", "content": None}]})
    empty = keys({**BASE, "messages": [{"role": "user", "content": ""}]})
    assert null.key != empty.key
    assert null.question is None
    assert empty.question == ""


def test_equal_text_in_another_unicode_form_is_equal() -> None:
    """Composed and decomposed characters have one canonical form, in the question and elsewhere."""
    assert keys(body("caf\u00e9?", user_note="\u00e9")) == keys(body("cafe\u0301?", user_note="e\u0301"))


@pytest.mark.parametrize(
    "other",
    [{"tenant": "u"}, {"secret": b"z"}, {"surface": "batch"}, {"version": "v2"}, {"model": "tier:hosted"}],
)
def test_scopes_never_meet(other: dict[str, Any]) -> None:
    """Another tenant, secret, surface, policy version or pinned model: another key and another partition."""
    assert keys(BASE, **other).key != keys(BASE).key
    assert keys(BASE, **other).partition != keys(BASE).partition


def test_an_encoder_has_its_own_partitions() -> None:
    """Vectors of two encoders are never compared; exact entries are shared."""
    assert keys(BASE, embedder="other").partition != keys(BASE).partition
    assert keys(BASE, embedder="other").key == keys(BASE).key


def test_no_text_moves_the_border_between_parts() -> None:
    """ "a:b" + "c" and "a" + "b:c" are different scopes, whatever separators the names hold (S6)."""
    scopes = {
        scope_of(*parts, b"") for parts in (("a:b", "c", "v"), ("a", "b:c", "v"), ("a", "b", "c:v"), ("1:a", "", ""))
    }
    assert len(scopes) == 4
    assert "canary" not in scope_of("canary", "canary", "canary", b"canary")


@pytest.mark.parametrize("place", ["question", "history", "field"])
def test_marks_in_a_row_cost_no_more_than_other_letters(place: str) -> None:
    """To put a million marks in order would take hours: a text with more than 30 of them counts as it is written."""
    marks = "e" + "\u0301\u0316" * 500_000
    said = [{"role": "user", "content": marks}, {"role": "user", "content": "hi"}]
    texts: dict[str, dict[str, Any]] = {
        "question": {"messages": said[:1]},
        "history": {"messages": said},
        "field": {"messages": said[1:], "x": marks},
    }
    started = time.process_time()
    assert keys({"model": "m", **texts[place]}) == keys({"model": "m", **texts[place]})
    assert time.process_time() - started < 1


@pytest.mark.parametrize("marks", [1, 30, 31, 200])
def test_texts_are_composed_up_to_thirty_marks_in_a_row(marks: int) -> None:
    """What people write in any script counts by what it says."""
    words = " ".join(["cafe\u0301"] * 100)
    text = f"{words} e{chr(0x316) * (marks - 1)}\u0301"
    forms = (text, unicodedata.normalize("NFC", text))
    assert len({keys(body(form)).key for form in forms}) == (1 if marks <= 30 else 2)


def translated(**more: Any) -> Fingerprint:
    """The keys of BASE as the translation of a request of another dialect."""
    own = Native(**{"dialect": "responses", "body": OWN, "lost": {}} | more)
    return fingerprint(BASE, scope_of("t", "chat", "v1", b"s"), b"s", None, "e", own=own)


OWN = {"model": "chat", "input": [{"role": "user", "content": "x", "id": "msg_1"}], "top_p": 1}


def test_all_of_a_translated_requests_own_form_counts() -> None:
    """A backend of its dialect is sent that form. All but its conversation counts for the partition too."""
    base = translated()
    assert translated(body={**OWN, "input": [{"role": "user", "content": "y"}]}).key != base.key
    changes: list[dict[str, Any]] = [
        {"body": {**OWN, "top_p": 0.5}}, {"body": {**OWN, "previous_response_id": "resp_1"}},
        {"lost": {"truncation": "off"}}, {"dialect": "messages"}, {"protocol": {"anthropic-beta": "a"}},
        {"forms": [[0, 0, "document"]]},
    ]  # fmt: skip
    for change in changes:
        assert translated(**change).key != base.key, change
        assert translated(**change).partition != base.partition, change
    assert base.key != keys(BASE).key


@pytest.mark.parametrize(
    "change",
    [
        {"paths": ["input[0]"], "messages": 3},
        {"body": {**OWN, "model": "auto", "metadata": {"a": "b"}, "user": "u", "stream": True, "store": True}},
        {"body": {**OWN, "client_metadata": {"turn_id": "1"}}},
        {"body": {**OWN, "input": [{"role": "user", "content": "x", "id": "msg_2", "status": "completed"}]}},
        {"lost": {"metadata": {"user_id": "u" * 99}}},
    ],
)
def test_what_cannot_change_the_answer_does_not_count_in_its_own_form_either(change: dict[str, Any]) -> None:
    assert translated(**change) == translated()


def test_no_field_of_a_client_is_taken_for_a_translated_requests_own_form() -> None:
    own = Native("responses", OWN, {})
    for name in ("x_tierline_native", "native", "own", ""):
        for value in (own.options(), {**own.options(), "paths": []}, OWN):
            assert keys({**BASE, name: value}).key != translated().key
