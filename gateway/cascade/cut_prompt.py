"""Notice a server that cut off a prompt's beginning and answered 200, as Ollama does by default.

Its own count of prompt tokens gives it away: no tokenizer makes one token of two words, so a count below the number of
words says that it read less than it was sent. A whole answer is then rejected as a poor draft, so that the next tier
answers, or from the last tier this one does, as `degraded`; a stream has gone out by then, is `degraded` in its record,
and is not stored. The server has shown its context, which keeps later prompts of that length from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.telemetry import names
from routing.features import text_of

if TYPE_CHECKING:
    from gateway.cascade.call import BackendCall
    from gateway.request.context import RequestContext

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
