"""What one model's API wants otherwise is adapted on the way out, and what it does not take is named."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.backends.base import BackendRequest, Completion, EventStream
from gateway.parts.servers.quirks import AdaptedBackend

MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


class RecordingBackend:
    """Keeps the body that it was sent."""

    def __init__(self) -> None:
        self.body: Any = None

    async def complete(self, request: BackendRequest) -> Completion:
        self.body = request.body
        return Completion(b"", {}, dropped=("stop",))

    async def stream(self, request: BackendRequest) -> EventStream:
        raise NotImplementedError

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "sent", "dropped"),
    [
        ({"max_tokens": 5}, {"max_completion_tokens": 5}, ("stop",)),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_completion_tokens": 7}, ("stop",)),
        ({"temperature": 0.5, "seed": 1}, {"seed": 1}, ("temperature", "stop")),
        ({"temperature": None}, {}, ("stop",)),
        ({"temperature": 0}, {}, ("temperature", "stop")),
        ({"service_tier": "auto"}, {}, ("stop",)),
        ({"service_tier": "flex"}, {}, ("service_tier", "stop")),
        ({"seed": 1}, {"seed": 1}, ("stop",)),
    ],
)
async def test_fields_are_renamed_or_left_out(
    given: dict[str, Any], sent: dict[str, Any], dropped: tuple[str, ...]
) -> None:
    """Renamed fields keep their value; what is left out is reported, with what the backend itself did not take."""
    inner = RecordingBackend()
    adapted = AdaptedBackend(inner, {"max_tokens": "max_completion_tokens"}, frozenset({"temperature", "service_tier"}))
    completion = await adapted.complete(BackendRequest(MESSAGES | given, ask_logprobs=False))
    assert (inner.body, completion.dropped) == (MESSAGES | sent, dropped)


@pytest.mark.parametrize(
    ("message", "sent", "dropped"),
    [
        ({"role": "user", "content": "a", "name": "Ann"}, {"role": "user", "content": "a"}, ("messages[].name",)),
        (
            {"role": "assistant", "content": "b", "reasoning_content": "hm", "name": None},
            {"role": "assistant", "content": "b"},
            ("messages[].reasoning_content",),
        ),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}, ()),
    ],
)
async def test_members_of_messages_are_left_out(
    message: dict[str, Any], sent: dict[str, Any], dropped: tuple[str, ...]
) -> None:
    """They are named once for all messages, unless they say nothing; a body without them is sent as it is."""
    inner = RecordingBackend()
    adapted = AdaptedBackend(inner, {}, frozenset({"n", "messages.reasoning_content", "messages.name"}))
    body = {"messages": [*MESSAGES["messages"], message], "n": 1}
    completion = await adapted.complete(BackendRequest(body, ask_logprobs=False))
    assert inner.body == {"messages": [*MESSAGES["messages"], sent]}
    assert completion.dropped == (*dropped, "stop")
    assert body == {"messages": [*MESSAGES["messages"], message], "n": 1}
