"""Fields that a server took and did not honour are named, as far as its answer shows it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cascade.ignored_fields import ignored_fields

TEXT: dict[str, Any] = {"message": {"content": "a"}, "logprobs": None}
SURE: dict[str, Any] = {"message": {"content": "a"}, "logprobs": {"content": []}}
CALL: dict[str, Any] = {"message": {"content": None, "tool_calls": [{}]}}


@pytest.mark.parametrize(
    ("body", "choices", "ignored"),
    [
        ({"logprobs": True}, [TEXT], ("logprobs",)),
        ({"logprobs": True}, [SURE], ()),
        ({"logprobs": True}, [CALL], ()),
        ({"logprobs": False}, [TEXT], ()),
        ({"n": 2}, [TEXT], ("n",)),
        ({"n": 2}, [TEXT, TEXT], ()),
        ({"n": 2, "logprobs": True}, [TEXT], ("logprobs", "n")),
        ({"n": None}, [TEXT], ()),
    ],
)
def test_what_an_answer_lacks(body: dict[str, Any], choices: list[Any], ignored: tuple[str, ...]) -> None:
    assert ignored_fields(body, choices) == ignored
