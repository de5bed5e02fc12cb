"""Read how long a prompt, a reply and a context are in a server's words, say it in Anthropic's, and remember it.

Claude Code saves itself from a full context by two sentences of Anthropic's API: after "prompt is too long: N tokens >
M maximum" it shortens the conversation, after "input length and `max_tokens` exceed context limit: A + B > C" it asks
again with a lower limit.

A server tells its context by refusing a request that exceeds it, or by cutting off a prompt's beginning. Of that and
what the config says the smaller figure counts (`ModelLengths`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

OUTPUT: Final = re.compile(
    rb"max_(?:completion_|output_|new_)?tokens: (?:\d{1,9}) > (\d{1,9})"
    rb"|max_(?:completion_)?tokens is too large.{0,80}? at most (\d{1,9})"
    rb"|supports at most (\d{1,9}) (?:completion|output) tokens"
    rb"|maxOutputTokens value of \d{1,9} but the supported range is from 1 \(inclusive\) to (\d{1,9}) \(exclusive\)"
    rb"|max_(?:completion_)?tokens`? must be less than or equal to `?(\d{1,9})"
    rb"|range of max_(?:completion_)?tokens (?:is|should be) \[\d{1,9}, ?(\d{1,9})\]"
    rb"|(?:maximum|max) (?:output )?tokens (?:you )?requested exceeds the model limit of (\d{1,9})",
    re.IGNORECASE | re.DOTALL,
)
"""What names the longest reply of a model."""
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


class Lengths(NamedTuple):
    """Tokens that an error names, each None where it names none.

    `prompt` and `reply` are what was sent and asked for, `context` what the model holds of both, and `output` its
    longest reply. `at_least`: the prompt was counted no further.
    """

    prompt: int | None = None
    reply: int | None = None
    context: int | None = None
    output: int | None = None
    at_least: bool = False

    @property
    def prompt_fits(self) -> bool:
        """Whether the prompt alone would fit, so that only the limit of the reply is too high."""
        return self.prompt is not None and self.context is not None and self.prompt < self.context


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


_KEPT_S: Final = 6 * 3600.0
"""Seconds after which what a server told is forgotten: it may be started anew with a longer context."""
_LEAST_LENGTH: Final = 256
"""Smallest context or longest reply, in tokens, that is believed."""


class ModelLengths:
    """The longest context and reply of one backend's model, in tokens, as configured or learnt from its errors.

    None where unknown. Use it from one event loop.
    """

    __slots__ = ("_clock", "_config", "_until", "context", "known", "output")

    def __init__(
        self, context: int | None = None, output: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = (context, output)
        self._clock = clock
        self._until = 0.0
        self.context = context
        """Tokens of prompt and reply together."""
        self.output = output
        """Tokens of its longest reply."""
        self.known = context is not None or output is not None
        """Whether any of them is known."""

    def learn(self, context: int | None = None, output: int | None = None) -> bool:
        """Take in lengths that the server named; return whether one is smaller than what was known."""
        before = self.context, self.output
        if context is not None and context >= _LEAST_LENGTH:
            self.context = context if self.context is None else min(self.context, context)
        if output is not None and output >= _LEAST_LENGTH:
            self.output = output if self.output is None else min(self.output, output)
        changed = (self.context, self.output) != before
        if changed:
            self.known, self._until = True, self._clock() + _KEPT_S
        return changed

    def refresh(self) -> None:
        """Forget what the server told if that is too long ago."""
        if self._until and self._clock() >= self._until:
            self.forget()

    def forget(self) -> None:
        """Forget what the server told."""
        self._until = 0.0
        self.context, self.output = self._config
        self.known = self._config != (None, None)
