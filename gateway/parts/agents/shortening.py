"""Say what of a conversation's older tool results is sent shorter, by the `input` section of a policy.

Only texts of results change: no message is added or removed, so each call keeps its result, and whatever a provider
takes before, it takes afterwards. The text that stands for a result depends on the messages before the cut alone, and
the cut moves in blocks of turns: between two of its moves, a longer conversation begins as the shorter one did.

    step           what becomes shorter                                 beyond the last
    tool_results   a result: a line that says so                        `tool_results.keep` turns
    repeats        a result that came before: a line that says so       `keep` turns
    minify         a result that is JSON: without white space           `keep` turns

A result that repeats one which was cut to a stub is itself the first that is left, and is sent.

It is done in both forms of a request. In the client's own form, which a backend of its dialect is sent, a result is
found by the id of its call and its text; one that is not found there, or whose id is that of several, stays as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from gateway.off_loop import off_loop
from gateway.telemetry import names
from routing.features import estimated_tokens, text_of

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.parts.agents.policy import InputRules
    from gateway.request.context import RequestContext


STEPS: Final = ("tool_results", "repeats", "minify")
_BLOCK: Final = 4
_LEAST: Final = 400
"""Characters of a result from which it is worth a line in its place."""
_STUB: Final = "[This result of {} characters was left out, as it is old. Call the tool again to see it.]"
_REPEAT: Final = "[The same result as that of an earlier call, which is above.]"
_BETWEEN: Final = re.compile(r'("(?:[^"\\]++|\\.?)*+"?)|[ \t\n\r]++', re.DOTALL)


class ShorterInput(NamedTuple):
    """The new texts of tool results, by the place of their message, and the estimated tokens that each step saves."""

    texts: Mapping[int, str]
    saved: Mapping[str, int]


def shorter_input(messages: Sequence[Mapping[str, Any]], rules: InputRules) -> ShorterInput:
    """Return what of a chat-completions conversation is sent shorter."""
    turns = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    near = _cut(turns, rules.keep)
    far = 0 if rules.tool_results is None else min(near, _cut(turns, max(rules.keep, rules.tool_results.keep)))
    texts: dict[int, str] = {}
    saved = dict.fromkeys(STEPS, 0.0)
    seen: set[str] = set()
    for i in range(near):
        message = messages[i]
        if message.get("role") != "tool" or (text := text_of_result(message.get("content"))) is None:
            continue
        step, shorter = _shorter(text, seen, rules, old=i < far)
        if len(shorter) < len(text):
            texts[i] = shorter
            saved[step] += estimated_tokens(text) - estimated_tokens(shorter)
    return ShorterInput(texts, {step: round(tokens) for step, tokens in saved.items() if tokens})


def history_span(messages: Sequence[Mapping[str, Any]], keep: int) -> range:
    """Return the places of what a summary may stand for: from behind the user's first message to the cut, at a turn of
    the assistant; none where the system's texts, a call without a result or a result without a call are among it.
    """
    first = next((i for i, message in enumerate(messages) if message.get("role") == "user"), len(messages))
    end = _cut([i for i, message in enumerate(messages) if message.get("role") == "assistant"], keep)
    part = messages[first + 1 : end]
    called = Counter(call.get("id") for message in part for call in message.get("tool_calls") or ())
    given = Counter(message.get("tool_call_id") for message in part if message.get("role") == "tool")
    roles = {message.get("role") for message in part}
    return range(first + 1, end) if called == given and roles <= {"user", "assistant", "tool"} else range(0)


def _cut(turns: Sequence[int], keep: int) -> int:
    """Return the place of the first message that stays as it is; 0 for all."""
    block = max(keep, _BLOCK)
    beyond = (len(turns) - keep) // block * block
    return turns[beyond] if beyond > 0 else 0


def _shorter(text: str, seen: set[str], rules: InputRules, *, old: bool) -> tuple[str, str]:
    if len(text) >= _LEAST:
        if old:
            return "tool_results", _STUB.format(f"{len(text):,}")
        if rules.repeats is not None:
            if text in seen:
                return "repeats", _REPEAT
            seen.add(text)
    return "minify", minified(text) if rules.minify is not None else text


def minified(text: str) -> str:
    """Return a JSON object or array without white space between its tokens; any other text as it is.

    Numbers, repeated keys and escapes stay as they are written.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return _BETWEEN.sub(lambda match: match[1] or "", text)


def text_of_result(content: object) -> str | None:
    """Return the text of a tool's result; None if it has none, or more than one part that is a text."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        content = part.get("text") if part.get("type") in ("text", "input_text", "output_text") else None
    return content if isinstance(content, str) else None


_LONG: Final = 8000
"""Estimated tokens of a conversation from which it is read in a thread."""
_RESULTS: Final[Mapping[Any, tuple[str, str]]] = {
    "tool_result": ("tool_use_id", "content"),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), ("call_id", "output")),
}
"""The members of a result with the id of its call and with its text, by its type."""
_ITEM: Final = re.compile(r"input\[(\d+)\]")
_GO_ON: Final = "Go on."
_Texts = Mapping[Any, tuple[str, str]]
"""The text of a result, and the one that takes its place, by the id of its call."""


async def with_shorter_input(request: RequestContext, rules: InputRules) -> RequestContext:
    """Return a request whose older tool results are shorter; the request itself if none is. The trace gets a hop."""
    if rules.tool_results is None and rules.repeats is None and rules.minify is None:
        return request
    hop = request.trace.begin(names.INPUT)
    shorten = partial(shorter_input, request.body["messages"], rules)
    shorter = await off_loop(shorten) if request.features.approx_tokens > _LONG else shorten()
    tokens = sum(shorter.saved.values())
    hop.attributes[names.INPUT_SAVED] = [f"{step} {saved}" for step, saved in shorter.saved.items()]
    hop.end()
    if not shorter.texts:
        return request
    request.ledger.tokens_left_out += tokens
    body, native = request.body, request.native
    features = request.features._replace(approx_tokens=max(1, request.features.approx_tokens - tokens))
    if native is not None:
        native = _in_own_form(native, _by_call(body["messages"], shorter))
    return replace(request, body=_in_chat(body, shorter), native=native, features=features)


def with_summary(request: RequestContext, span: range, text: str) -> RequestContext | None:
    """Return a request with this text of the assistant, and a word of the user, in place of the messages of a span.

    None where the client's own form has no such messages of its own.
    """
    instead: list[Any] = [{"role": "assistant", "content": text}, {"role": "user", "content": _GO_ON}]
    messages, native = request.body["messages"], request.native
    made = [*messages[: span.start], *instead, *messages[span.stop :]]
    if native is not None:
        name = native.turns
        before, first, end = (_origin(native.paths, place) for place in (span.start - 1, span.start, span.stop))
        if before is None or end is None or first != before + 1 or _origin(native.paths, span.stop - 1) == end:
            return None
        own = [*native.body[name][:first], *instead, *native.body[name][end:]]
        paths = [*native.paths[: span.start], *[native.paths[span.start]] * 2, *native.paths[span.stop :]]
        native = replace(native, body={**native.body, name: own}, paths=paths, messages=len(made))
    tokens = sum(estimated_tokens(text_of(messages[i].get("content"))[0]) for i in span) - estimated_tokens(text)
    features = request.features._replace(approx_tokens=max(1, int(request.features.approx_tokens - tokens)))
    return replace(request, body={**request.body, "messages": made}, native=native, features=features)


def _origin(paths: Sequence[Any], place: int) -> int | None:
    """Return the number of the client's own message or item that a message comes from; None if it is none."""
    at = paths[place]
    at = at["at"] if isinstance(at, dict) else at[0] if isinstance(at, (tuple, list)) and at else at
    if isinstance(at, str):
        match = _ITEM.fullmatch(at)
        return None if match is None else int(match[1])
    return at if isinstance(at, int) and at >= 0 else None


def _in_chat(body: Mapping[str, Any], shorter: ShorterInput) -> dict[str, Any]:
    messages = [
        {**message, "content": shorter.texts[i]} if i in shorter.texts else message
        for i, message in enumerate(body["messages"])
    ]
    return {**body, "messages": messages}


def _by_call(messages: list[Mapping[str, Any]], shorter: ShorterInput) -> _Texts:
    ids = Counter(message.get("tool_call_id") for message in messages if message.get("role") == "tool")
    return {
        ident: (text_of_result(messages[i].get("content")) or "", text)
        for i, text in shorter.texts.items()
        if ids[ident := messages[i].get("tool_call_id")] == 1
    }


def _in_own_form(native: Native, texts: _Texts) -> Native:
    name = native.turns
    given = native.body.get(name)
    if not isinstance(given, list):
        return native
    if name == "input":
        made = [_result(item, texts) for item in given]
    else:
        contents = [message.get("content") for message in given]
        made = [
            {**message, "content": [_result(block, texts) for block in content]} if type(content) is list else message
            for message, content in zip(given, contents, strict=True)
        ]
    return replace(native, body={**native.body, name: made})


def _result(item: Any, texts: _Texts) -> Any:
    """Return an item or a block, a tool's result with the text that takes the place of its own."""
    ident, member = _RESULTS.get(item.get("type"), ("", "")) if type(item) is dict else ("", "")
    before, after = texts.get(item.get(ident), ("", "")) if ident else ("", "")
    return {**item, member: after} if after and text_of_result(item.get(member)) == before else item
