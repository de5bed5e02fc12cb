"""What a scripted model says, how fast, and what goes wrong: the words in which a test tells `upstream` its part."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

Json = dict[str, Any]

_WORD = re.compile(r"\s*\S+|\s+$")


class Fault(Enum):
    """What goes wrong with a reply. The mid-stream ones come after `Reply.fault_after` tokens."""

    HANG_BEFORE_HEADERS = auto()
    HANG_AFTER_HEADERS = auto()
    HANG_MID_STREAM = auto()
    CLOSE_BEFORE_HEADERS = auto()
    CLOSE_AFTER_HEADERS = auto()
    RESET_MID_STREAM = auto()
    CLOSE_MID_STREAM = auto()
    """The connection ends inside the chunked body."""
    EOF_MID_STREAM = auto()
    """The body ends cleanly, with neither a finish_reason nor [DONE]."""
    NO_DONE = auto()
    """finish_reason was sent, [DONE] is missing."""
    DONE_WITHOUT_FINISH = auto()
    MALFORMED_EVENT = auto()
    MALFORMED_JSON = auto()
    HTML = auto()
    EMPTY_CHOICES = auto()
    NULL_CHOICES = auto()
    NO_CHOICES = auto()
    ERROR_IN_200 = auto()
    """An error object in a 200, or as the first event."""
    ERROR_MID_STREAM = auto()
    OTHER_KIND = auto()
    """JSON to a stream request, SSE to any other."""
    GIANT = auto()
    """Up to 1 GiB in one string, as fast as the peer reads."""
    REDIRECT = auto()
    SLOW_LORIS = auto()
    """A byte at a time, `Reply.between_s` (at least 10 ms) apart."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function the model wants called. `arguments` is the JSON text, valid or not."""

    name: str
    arguments: str = "{}"
    id: str = "call_scripted"


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer. Times are seconds; `logprob` is each token's, or one for all; `usage` None leaves it out."""

    text: str = "The scripted upstream says hello."
    tokens: tuple[str, ...] | None = None
    logprob: float | tuple[float, ...] = -0.05
    no_logprobs: bool = False
    """A backend that ignores `logprobs: true`."""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Json | Literal["auto"] | None = "auto"
    model: str | None = None
    extra: Json = field(default_factory=dict)
    """More members of a JSON reply and of every chunk."""
    before_headers_s: float = 0.0
    before_first_s: float = 0.0
    between_s: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent as it is, in place of everything rendered here."""
    fault: Fault | None = None
    fault_after: int = 2
    fragment: int | None = None
    """Bytes per write, for SSE bodies."""
    newline: str = "\n"

    def pieces(self) -> tuple[str, ...]:
        """The tokens of the answer; words, when the test did not say."""
        return self.tokens if self.tokens is not None else tuple(_WORD.findall(self.text))


def error_reply(
    status: int,
    message: str = "scripted error",
    kind: str = "server_error",
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An error as OpenAI sends it."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    return Reply(status=status, headers=headers or {}, body=body)
