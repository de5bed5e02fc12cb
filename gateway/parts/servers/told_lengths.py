"""Read how long a prompt, a reply and a context are in a server's words.

The part `apis` says it in Anthropic's: Claude Code saves itself from a full context by two sentences of that API. After
"prompt is too long: N tokens > M maximum" it shortens the conversation, after "input length and `max_tokens` exceed
context limit: A + B > C" it asks again with a lower limit.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.backends.blame import OUTPUT
from gateway.dialects.told_lengths import Lengths

_BEGINS: Final = 500
"""Characters of an error that figures are read from: what it quotes of the request comes later."""
_CONTEXT: Final = re.compile(
    r"context (?:size|length|window)(?: is| of(?: only)?)?:? \(?(\d{1,9})"
    r"|(?:maximum|max) (?:context|prompt|model|input) (?:length|size|window) (?:is|of) (\d{1,9})"
    r"|context limit: \d{1,9} \+ \d{1,9} > (\d{1,9})|> (\d{1,9}) maximum|(\d{1,9}) maximum context length"
    r"|maximum number of tokens allowed \((\d{1,9})\)|must be <= (\d{1,9})|must have less than (\d{1,9})"
    r"|token limit: (\d{1,9})|cannot exceed (\d{1,9})|exceeds the limit of (\d{1,9})|(?:while|the) limit is (\d{1,9})"
    r"|range of input length should be \[1, (\d{1,9})\]|maximum allowed token size (\d{1,9})|\"n_ctx\": ?(\d{1,9})",
    re.IGNORECASE,
)
_PROMPT: Final = re.compile(
    r"\"n_prompt_tokens\": ?(\d{1,9})|request \((\d{1,9}) tokens|input \((\d{1,9}) tokens"
    r"|prompt (?:is )?too long: (\d{1,9})"
    r"|\((\d{1,9}) (?:in the messages|of text input|in the prompt)|: (\d{1,9}) tokens from the input"
    r"|(?:has|contains) (?:at least )?(\d{1,9}) (?:input )?tokens|context limit: (\d{1,9}) \+|token count \((\d{1,9})\)"
    r"|keep the first (\d{1,9}) tokens|given: (\d{1,9})|received (\d{1,9})|current length is (\d{1,9})"
    r"|requested: (\d{1,9})"
    r"|token count of (\d{1,9})|(?:input|prompt) length (\d{1,9})|\(length (\d{1,9})\)",
    re.IGNORECASE,
)
_REPLY: Final = re.compile(
    r"(\d{1,9}) in the (?:completion|output)|and (\d{1,9}) tokens for the completion|requested (\d{1,9}) output tokens"
    r"|is too large: (\d{1,9})|context limit: \d{1,9} \+ (\d{1,9})|and (\d{1,9}) `max_new_tokens`",
    re.IGNORECASE,
)


def lengths_in(body: bytes) -> Lengths:
    """Return the figures at the beginning of an error's body."""
    text = body[:_BEGINS].decode("utf-8", "replace").replace('\\"', '"')
    output = _figure(OUTPUT.search(body, 0, _BEGINS))
    if output is not None and b"(exclusive)" in body[:_BEGINS]:
        output -= 1
    return Lengths(
        _figure(_PROMPT.search(text)),
        _figure(_REPLY.search(text)),
        _figure(_CONTEXT.search(text)),
        output,
        at_least="at least" in text,
    )


def _figure(match: re.Match[str] | re.Match[bytes] | None) -> int | None:
    """Return the figure in a match, None where there is none or it has more than nine digits."""
    if match is None:
        return None
    digits = next((group for group in match.groups() if group), None)
    return int(digits) if digits is not None and len(digits) <= 9 else None
