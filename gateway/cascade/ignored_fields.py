"""Name the fields of a request that its backend took and did not honour, as the answer shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.chat.stream_state import StreamState


def ignored_fields(body: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields of a chat-completions body whose values these choices do not have.

    Log-probabilities belong to a text: where there is none, as in a call of a tool, none are missing.
    """
    texts = [choice for choice in choices if choice["message"].get("content")]
    return _ignored(body, bool(texts) and not any(choice.get("logprobs") for choice in texts), len(choices))


def ignored_in_stream(body: Mapping[str, Any], state: StreamState) -> tuple[str, ...]:
    """Return those of an answer that was streamed."""
    return _ignored(body, bool(state.text) and not state.has_logprobs, state.choices)


def _ignored(body: Mapping[str, Any], lacks_logprobs: bool, choices: int) -> tuple[str, ...]:
    ignored: list[str] = []
    if lacks_logprobs and body.get("logprobs") is True:
        ignored.append("logprobs")
    count = body.get("n")
    if type(count) is int and count > choices:
        ignored.append("n")
    return tuple(ignored)
