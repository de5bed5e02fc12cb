"""Large JSON in pieces: the same bytes as in one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cache.text.json_pieces import json_pieces

LONG = "how do I bake bread? " * 50_000


@pytest.mark.parametrize("option", [0, orjson.OPT_SORT_KEYS])
@pytest.mark.parametrize(
    "value",
    [
        {},
        {"b": "short", "a": [1, None, {"d": "x", "c": []}]},
        {"b": LONG, "a": {"d": LONG, "c": [LONG, LONG.upper()]}},
        {"z": [{"b": LONG + "1", "a": LONG + "2"}], "ü": LONG + "3", "é": LONG + "4", "": LONG},
        {"text": '"\\\n\x00\x7f日本😀' * 100_000},
    ],
)
def test_pieces_are_the_json_of_the_whole(value: dict[str, Any], option: int) -> None:
    """Long texts come in the order of the keys as they are written."""
    assert b"".join(json_pieces(value, option)) == orjson.dumps(value, option=option)


def test_no_piece_is_as_long_as_its_text() -> None:
    assert max(map(len, json_pieces({"a": LONG}))) < len(LONG) / 3
