"""Exports and lists of keys from elsewhere: what is in them that no worker could take over is refused, or left out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.parts.access.keys.litellm import litellm_keys
from gateway.parts.access.keys.moving import export_lines, read_export
from gateway.parts.access.keys.records import KeyRecord, OwnerRecord
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused
from gateway.parts.access.quotas.terms import Terms
from tests.parts.access.keys.conftest import WHY, minted, registry, server, store

__all__ = ["registry", "server", "store"]
TOKEN = "b" * 64


async def test_an_export_is_read_as_it_was_written(registry: KeyRegistry) -> None:
    """Keys, of which one was rotated, with their terms, and owners."""
    _, record = minted(team="web", terms=Terms(concurrent=2), metadata={"a": "b"}, surfaces=("chat",))
    first = await registry.create(record, WHY)
    await registry.rotate(first, minted()[1].digest, 60, WHY)
    owner = await registry.put_owner(None, OwnerRecord("team", "web", Terms(concurrent=3)), WHY)
    records = read_export(b"".join(await export_lines(registry)).decode())
    assert owner in records and len(records) == 3
    assert {one.terms for one in records} == {Terms(concurrent=2), Terms(concurrent=3)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "zz"}, {"digest": "A" * 64}, {"state": "actve"}, {"expires": "soon"}, {"surfaces": "chat"},
        {"tenant": "Bad Name"}, {"tenant": ""}, {"team": "a/b:c"}, {"revision": 0}, {"revision": 1 << 60},
        {"expires": 1e15}, {"created": -1},
        {"metadata": {"a": 1}}, {"id": ""}, {"id": "k_/x"}, {"terms": {"concurrent": -1}},
    ],
)  # fmt: skip
async def test_a_record_that_is_none_is_refused(registry: KeyRegistry, wrong: dict[str, Any]) -> None:
    """In the store it would stop every worker from following what changes, a key's end too."""
    await registry.create(minted()[1], WHY)
    head, line = await export_lines(registry)
    assert read_export((head + line).decode())
    with pytest.raises(KeysRefused):
        read_export((head + orjson.dumps({**orjson.loads(line), **wrong})).decode())


async def test_an_owner_that_is_none_is_refused(registry: KeyRegistry) -> None:
    """By its name, its kind or its revision."""
    await registry.put_owner(None, OwnerRecord("team", "web"), WHY)
    head, line = await export_lines(registry)
    for wrong in ({"name": "a:b"}, {"name": ""}, {"kind": "person"}, {"revision": -1}):
        with pytest.raises(KeysRefused):
            read_export((head + orjson.dumps({**orjson.loads(line), **wrong})).decode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"spend": "abc"}, {"rpm_limit": "inf"}, {"rpm_limit": "x"}, {"max_budget": "x"},
        {"max_budget": 1, "budget_duration": "9" * 5000 + "d"},
    ],
)  # fmt: skip
def test_a_key_of_elsewhere_with_a_number_that_is_none_is_left_out(wrong: dict[str, Any]) -> None:
    """The others are taken over."""
    rows = [{"token": TOKEN, "key_alias": "odd", **wrong}, {"token": "c" * 64, "key_alias": "good"}]
    moved = litellm_keys(orjson.dumps(rows).decode(), "acme")
    assert [getattr(one, "name", "") for one in moved.records] == ["good"]
    assert moved.notes["odd"][0].startswith("left out")


@pytest.mark.parametrize(
    ("row", "models", "is_said"),
    [
        ({"models": ["all-team-models"]}, ("-",), True),
        ({"models": ["all-team-models", "gpt-4o"]}, ("gpt-4o",), True),
        ({"models": ["all-team-models"], "team_models": ["a", "b"]}, ("a", "b"), False),
        ({"models": ["all-team-models"], "team_models": ["all-proxy-models"]}, (), False),
        ({"models": ["all-proxy-models"]}, (), False),
        ({"models": ["all-proxy-models"], "team_models": ["a"]}, ("a",), False),
        ({"models": ["a", "b"], "team_models": ["b", "c"]}, ("b",), False),
        ({"models": ["a"], "team_models": ["c"]}, ("-",), False),
        ({"models": []}, (), False),
        ({"models": [], "team_models": ["a"]}, ("a",), False),
        ({"models": [], "team_id": "web"}, (), True),
        ({"models": ["a"], "team_id": "web"}, ("a",), False),
    ],
)
def test_a_key_of_elsewhere_gets_no_more_models(row: dict[str, Any], models: tuple[str, ...], *, is_said: bool) -> None:
    """Those of its team where the list tells them; else none, which is said, as is what its team's may be."""
    moved = litellm_keys(orjson.dumps([{"token": TOKEN, "key_alias": "ada", **row}]).decode(), "acme")
    assert [one.models for one in moved.records if isinstance(one, KeyRecord)] == [models]
    assert any("team" in note for note in moved.notes.get("ada", ())) == is_said
