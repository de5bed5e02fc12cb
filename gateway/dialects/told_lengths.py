"""Remember how long the context of a backend's model is, and its longest reply.

A server tells its context by refusing a request that exceeds it, or by cutting off a prompt's beginning. Of that and
what the config says the smaller figure counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple


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
