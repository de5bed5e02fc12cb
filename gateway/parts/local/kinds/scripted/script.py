"""Define scripted replies: their text, timing and faults, as a config's `script` and the tests write them.

A backend of `kind: scripted` follows a list of rules. The first one whose match fits the last user message gives the
reply, and the module `replies` renders it. ScriptedRule and its parts are what a config says, refused with file and
line where it makes no sense; ModelReply is what that comes to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from policies.errors import Finding
from policies.validation import Seconds, Section, Share, Whole, raise_findings

Json = dict[str, Any]

LOOP_TOKENS = 2000
"""Tokens in a `loop` reply, unless the request allows fewer."""
_WORD = re.compile(r"\s*\S+|\s+$")


class Fault(Enum):
    """A defect of a reply. Those in MID_STREAM occur after `ModelReply.fault_after` tokens."""

    HANG_BEFORE_HEADERS = "hang_before_headers"
    HANG_AFTER_HEADERS = "hang_after_headers"
    HANG_MID_STREAM = "hang_mid_stream"
    CLOSE_BEFORE_HEADERS = "close_before_headers"
    CLOSE_AFTER_HEADERS = "close_after_headers"
    RESET_MID_STREAM = "reset_mid_stream"
    CLOSE_MID_STREAM = "close_mid_stream"
    """The connection ends inside the chunked body."""
    EOF_MID_STREAM = "eof_mid_stream"
    """The body ends cleanly, with neither a finish_reason nor [DONE]."""
    NO_DONE = "no_done"
    """finish_reason was sent, [DONE] is missing."""
    DONE_WITHOUT_FINISH = "done_without_finish"
    MALFORMED_EVENT = "malformed_event"
    MALFORMED_JSON = "malformed_json"
    HTML = "html"
    EMPTY_CHOICES = "empty_choices"
    NULL_CHOICES = "null_choices"
    NO_CHOICES = "no_choices"
    ERROR_IN_200 = "error_in_200"
    """An error object in a 200, or as the first event."""
    ERROR_MID_STREAM = "error_mid_stream"
    OTHER_KIND = "other_kind"
    """JSON in reply to a stream request, SSE in reply to any other."""
    GIANT = "giant"
    """Up to 1 GiB in one JSON string, as fast as the client reads it."""
    REDIRECT = "redirect"
    SLOW_LORIS = "slow_loris"
    """One byte at a time, every `ModelReply.between_s` seconds (at least 0.01)."""
    LOOP = "loop"
    """The text repeated up to LOOP_TOKENS tokens or the request's limit."""


MID_STREAM = frozenset(
    {
        Fault.HANG_MID_STREAM,
        Fault.RESET_MID_STREAM,
        Fault.CLOSE_MID_STREAM,
        Fault.EOF_MID_STREAM,
        Fault.MALFORMED_EVENT,
        Fault.MALFORMED_JSON,
        Fault.ERROR_MID_STREAM,
    }
)
"""The faults that interrupt a stream after `ModelReply.fault_after` tokens."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call in the reply. `arguments` is JSON text, valid or not."""

    name: str
    arguments: str = "{}"
    id: str = "call_scripted"


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One scripted answer. Times are in seconds; `logprob` is for all tokens or one each.

    `usage` None sends no usage.
    """

    text: str = "The scripted upstream says hello."
    tokens: tuple[str, ...] | None = None
    logprob: float | tuple[float, ...] = -0.05
    no_logprobs: bool = False
    """Whether log-probabilities are sent when requested; False imitates a backend that ignores `logprobs: true`."""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Json | Literal["auto"] | None = "auto"
    """Token counts to report; `auto` counts words."""
    prompt_cache: bool = False
    """Whether counted usage says that the conversation's earlier turns were read from the prompt cache."""
    model: str | None = None
    extra: Json = field(default_factory=dict)
    """Additional members of a JSON reply and of every chunk."""
    before_headers_s: float = 0.0
    before_first_s: float = 0.0
    between_s: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Body sent as it is, instead of one rendered from the other fields."""
    fault: Fault | None = None
    fault_after: int = 2
    fragment: int | None = None
    """Bytes per write of an SSE body."""
    newline: str = "\n"

    def pieces(self) -> tuple[str, ...]:
        """Return the tokens of the answer; if none are given, its words."""
        pieces = self.tokens if self.tokens is not None else tuple(_WORD.findall(self.text))
        if self.fault is Fault.LOOP and pieces:
            again = (f" {pieces[0].lstrip()}", *pieces[1:])
            pieces = (pieces + again * (LOOP_TOKENS // len(pieces)))[:LOOP_TOKENS]
        return pieces


def error_reply(
    status: int,
    message: str = "scripted error",
    kind: str = "server_error",
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ModelReply:
    """Return an error reply in OpenAI's format."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    return ModelReply(status=status, headers=headers or {}, body=body)


def _fault(value: object) -> object:
    return Fault(value) if isinstance(value, str) and value in {fault.value for fault in Fault} else value


def _pattern(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a regular expression; write it as text")
    try:
        return re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None


LogProb = Annotated[float, Field(le=0, allow_inf_nan=False)]


class ScriptedToolCall(Section):
    """A function call in the reply. `arguments` is a mapping, or the JSON text itself."""

    name: Annotated[str, Field(min_length=1)]
    arguments: Mapping[str, Any] | str = {}
    id: Annotated[str, Field(min_length=1)] | None = None
    """Default: `call_scripted_N`, counted from 0."""


class ScriptedUsage(Section):
    """Token counts that the reply reports instead of a count of words."""

    prompt_tokens: Annotated[Whole, Field(ge=0)]
    completion_tokens: Annotated[Whole, Field(ge=0)]


class ScriptedError(Section):
    """An HTTP error sent instead of an answer."""

    status: Annotated[Whole, Field(ge=400, le=599)]
    body: Mapping[str, Any] | str | None = None
    """Default: an error object in OpenAI's format."""
    retry_after: Seconds | None = None
    """Seconds, sent as the header `retry-after-ms`."""


class ScriptedReply(Section):
    """The reply of a rule: a text, tool calls or an error, with its timing and faults."""

    text: str = "This is a scripted reply."
    confidence: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Probability of every token, or of the mean one: the reply's confidence unless a calibrated head is used."""
    spread: Share = 0.0
    """How far tokens are surer and less sure than `confidence`: from 0, all alike, to 1, some certain."""
    logprobs: LogProb | tuple[LogProb, ...] | None = None
    """Natural logarithm of the token probability, one for all or one each. Default: from `confidence`, or -0.05."""
    tool_calls: tuple[ScriptedToolCall, ...] = ()
    finish_reason: Literal["stop", "length", "content_filter", "tool_calls"] | None = None
    usage: ScriptedUsage | None = None
    """Token counts to report; None counts words."""
    prompt_cache: bool = False
    """Whether the counted words of the conversation's earlier turns are reported as read from the prompt cache."""
    ttft: Seconds = 0.0
    """Seconds until the first token."""
    tpot: Seconds = 0.0
    """Seconds between two chunks of one token each. A JSON reply is sent when its last token would be."""
    error: ScriptedError | None = None
    fault: Annotated[Fault | None, BeforeValidator(_fault)] = None
    after: Annotated[Whole, Field(ge=0)] = 2
    """Number of tokens before a mid-stream fault."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ScriptedReply:
        given = self.model_fields_set
        findings: list[Finding] = []
        if self.confidence is not None and self.logprobs is not None:
            findings.append(Finding(("logprobs",), "confidence says the same; keep one"))
        if isinstance(self.logprobs, tuple) and len(self.logprobs) != (tokens := len(_WORD.findall(self.text))):
            findings.append(Finding(("logprobs",), f"{len(self.logprobs)} numbers for a text of {tokens} words"))
        if self.tool_calls and "text" in given:
            findings.append(Finding(("text",), "a reply that calls tools says nothing else; leave it out"))
        if self.error is not None:
            spare = sorted(given - {"error", "ttft"})
            findings += [Finding((name,), "an error has no use for it; leave it out") for name in spare]
        if "after" in given and self.fault not in MID_STREAM:
            findings.append(Finding(("after",), "needs a fault in the midst of a stream, such as close_mid_stream"))
        raise_findings(findings)
        return self

    def reply(self) -> ModelReply:
        """Return the answer to render."""
        if self.error is not None:
            body, wait_s = self.error.body, self.error.retry_after
            headers = {} if wait_s is None else {"retry-after-ms": f"{wait_s * 1000:g}"}
            made = error_reply(self.error.status, headers=headers)
            if body is None:
                sent = made.body
            else:
                sent = body.encode() if isinstance(body, str) else json.dumps(dict(body)).encode()
            return ModelReply(status=made.status, headers=headers, body=sent, before_first_s=self.ttft)
        usage: Json | Literal["auto"] = "auto"
        if self.usage is not None:
            counts = self.usage.model_dump()
            usage = {**counts, "total_tokens": sum(counts.values())}
        if self.confidence is not None:
            logprob = _spread(math.log(self.confidence), self.spread, len(_WORD.findall(self.text)))
        else:
            logprob = -0.05 if self.logprobs is None else self.logprobs
        return ModelReply(
            text=self.text,
            logprob=logprob,
            tool_calls=tuple(
                ToolCall(
                    call.name,
                    call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments)),
                    call.id or f"call_scripted_{index}",
                )
                for index, call in enumerate(self.tool_calls)
            ),
            finish_reason=self.finish_reason,
            usage=usage,
            prompt_cache=self.prompt_cache,
            before_first_s=self.ttft,
            between_s=self.tpot,
            fault=self.fault,
            fault_after=self.after,
        )


def _spread(mean: float, spread: float, tokens: int) -> float | tuple[float, ...]:
    """Return a log-probability for each token, around `mean`, by turns of the golden ratio; `mean` without spread."""
    if not spread or not tokens:
        return mean
    turns = [(number * 0.6180339887) % 1 - 0.5 for number in range(1, tokens + 1)]
    middle = math.fsum(turns) / tokens
    return tuple(min(mean * (1 + 2 * spread * (turn - middle)), 0.0) for turn in turns)


class ScriptedRule(Section):
    """A reply, and the requests it answers: those whose last user message matches, or all if no match is given."""

    match: Annotated[str, Field(min_length=1)] | None = None
    """Text that the message must contain; case-sensitive."""
    match_regex: Annotated[re.Pattern[str] | None, BeforeValidator(_pattern)] = None
    """Python regular expression to search for in the message."""
    times: Annotated[Whole, Field(ge=1)] | None = None
    """How many requests per worker get this reply before later rules apply; None for no limit."""
    reply: ScriptedReply = ScriptedReply()

    @model_validator(mode="after")
    def _one_match(self) -> ScriptedRule:
        if self.match is not None and self.match_regex is not None:
            raise_findings([(("match_regex",), "match is given too; keep one")])
        return self

    @property
    def always(self) -> bool:
        """Whether the rule answers every request."""
        return self.match is None and self.match_regex is None and self.times is None

    def matches(self, question: str) -> bool:
        """Return whether the rule applies to this last user message; `times` is not considered."""
        if self.match_regex is not None:
            return self.match_regex.search(question) is not None
        return self.match is None or self.match in question
