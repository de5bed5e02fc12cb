"""Say that a request is too long as Anthropic's API says it, which its clients look for."""

from __future__ import annotations

from typing import Final

from gateway.dialects.told_lengths import lengths_in

_TOO_LONG: Final = "prompt is too long"
_BOTH: Final = "input length and `max_tokens` exceed context limit"
_ANTHROPICS: Final = (_TOO_LONG, _BOTH)


def in_anthropics_words(message: str) -> str:
    """Return the message of an error that means "too long" as Anthropic's API says it, with the figures it names."""
    if message.startswith(_ANTHROPICS):
        return message
    prompt, reply, context, _, at_least = lengths_in(message.encode())
    if prompt is not None and context is not None and prompt >= context:
        return f"{_TOO_LONG}: {prompt} tokens > {context} maximum"
    if prompt is not None and reply is not None and context is not None and not at_least:
        return f"{_BOTH}: {prompt} + {reply} > {context}, decrease input length or `max_tokens` and try again"
    return f"{_TOO_LONG} ({message.rstrip('.')})" if message else _TOO_LONG
