"""Check an answer by what was asked: JSON schemas, fields that the backend ignored, and a prompt that it cut off.

Some servers cut off a prompt's beginning and answer 200, as Ollama does by default. Its own count of prompt tokens
gives it away: no tokenizer makes one token of two words, so a count below the number of words says that it read less
than it was sent. A whole answer is then rejected as a poor draft, so that the next tier answers, or from the last tier
this one does, as `degraded`; a stream has gone out by then, is `degraded` in its record, and is not stored. The server
has shown its context, which keeps later prompts of that length from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.standard import missing_for, one
from gateway.telemetry import names
from routing.features import text_of

if TYPE_CHECKING:
    from gateway.cascade.call import BackendCall
    from gateway.chat.stream_state import StreamState
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from routing.confidence.judge import Evidence


@one("answer_schemas")
async def check_schemas(evidence: Evidence, request: RequestContext, hop: Hop) -> Evidence:
    """Return the evidence, with any breach of the request's schemas if the policy asks for that check.

    A schema that cannot be checked rejects no answer; the hop then has the reason. Without the part none can be.
    """
    if request.policy.escalate.when.invalid & {"json_schema", "tool_args"}:
        hop.attributes[names.SCHEMA_UNCHECKED] = missing_for("answer_schemas", "the check")
    return evidence


def ignored_fields(body: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields of a chat-completions body whose values these choices do not have.

    Log-probabilities belong to a text: where there is none, as in a call of a tool, none are missing.
    """
    texts = [choice for choice in choices if choice["message"].get("content")]
    return _ignored(body, bool(texts) and not any(choice.get("logprobs") for choice in texts), len(choices))


def ignored_in_stream(body: Mapping[str, Any], state: StreamState) -> tuple[str, ...]:
    """Return what `ignored_fields` does, for an answer that was streamed."""
    return _ignored(body, bool(state.text) and not state.has_logprobs, state.choices)


def _ignored(body: Mapping[str, Any], lacks_logprobs: bool, choices: int) -> tuple[str, ...]:
    ignored: list[str] = []
    if lacks_logprobs and body.get("logprobs") is True:
        ignored.append("logprobs")
    count = body.get("n")
    if type(count) is int and count > choices:
        ignored.append("n")
    return tuple(ignored)


LEAST_TOKENS: Final = 1500
"""Estimated tokens of a prompt that is looked at: no server in use has a context much shorter."""
_LEAST_TOLD: Final = 256
"""Smallest count that is believed: some servers count only what their prompt cache lacked."""


def cut_prompt(request: RequestContext, call: BackendCall) -> str:
    """Return how much of its prompt a call's server read, in words, if that was not all; else an empty string.

    Call it for prompts of at least LEAST_TOKENS alone.
    """
    expected = request.features.approx_tokens
    usage = call.usage or call.state.usage
    if usage is None or usage.estimated or not usage.tokens_in >= _LEAST_TOLD:
        return ""
    lengths = call.slot.endpoint.lengths
    if lengths.context is not None and usage.tokens_in > lengths.context:
        lengths.forget()  # it reads more than it once seemed to: its counts were not those of a cut prompt
    if usage.tokens_in >= expected:
        return ""
    words = _words(request)
    if usage.tokens_in >= words:
        return ""
    lengths.learn(context=usage.tokens_in)
    reason = f"the server read {usage.tokens_in} tokens of a prompt of {words} words"
    call.hop.attributes[names.FAULT] = reason
    return reason


def _words(request: RequestContext) -> int:
    """Return the number of words in a request's messages."""
    return sum(len(text_of(message.get("content"))[0].split()) for message in request.body["messages"])
