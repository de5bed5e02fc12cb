"""Reasoning texts that only their maker reads, and the details that hold them."""

from __future__ import annotations

from gateway.dialects.reasoning import joined_details, maker_name, maker_of


def test_a_text_is_unsealed_by_its_maker_alone() -> None:
    own, other, other_key = maker_of("a", "key"), maker_of("b", "key"), maker_of("a", "another key")
    text = "signature.with.dots and \ud83d"  # a lone surrogate, which JSON may hold
    sealed = own.seal(text)
    assert own.unseal(sealed) == text
    assert [maker.unseal(sealed) for maker in (other, other_key)] == [None, None]
    assert maker_name(sealed) == own.name
    assert [own.unseal(one) for one in (7, None, {"a": 1})] == [None] * 3
    assert [own.unseal(one) for one in (text, sealed + "x", sealed.replace("dots", "bots"), "tl1.", "")] == [None] * 5
    assert maker_name(text) is None


def test_details_of_one_index_are_joined() -> None:
    pieces = [
        {"type": "reasoning.text", "text": "a", "index": 0},
        {"type": "reasoning.text", "text": "b", "index": 0, "signature": None},
        {"type": "reasoning.text", "signature": "s", "index": 0},
        {"type": "reasoning.text", "text": "c", "index": 1},
        "no detail",
    ]
    assert joined_details(pieces) == [
        {"type": "reasoning.text", "text": "ab", "index": 0, "signature": "s"},
        {"type": "reasoning.text", "text": "c", "index": 1},
    ]
    assert pieces[0] == {"type": "reasoning.text", "text": "a", "index": 0}


def test_details_without_an_index_are_joined_but_for_encrypted_ones() -> None:
    first = {"type": "reasoning.summary", "summary": "a", "id": "rs_1"}
    more = {"type": "reasoning.summary", "summary": "b"}
    other = {"type": "reasoning.summary", "summary": "c", "id": "rs_2"}
    sealed = [{"type": "reasoning.encrypted", "data": "x"}, {"type": "reasoning.encrypted", "data": "y"}]
    assert joined_details([first, more, other, *sealed]) == [{**first, "summary": "ab"}, other, *sealed]
