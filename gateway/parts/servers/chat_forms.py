"""Bring chat completions into the form that one server takes, and its replies into the form that clients know.

Most chat templates of open models know one system message, at the beginning: they drop `developer` and later `system`
messages in silence, or refuse the request. For such a server the texts before the first turn become one system message.
A later one stays where it is, as a marked text of a turn of the user or of a tool's result: moved to the front it would
hold for what was said before it, and each new one would change the beginning that the server has cached. It goes to the
end of such a turn before it, else to the start of the user's turn after it, else into a turn of its own, so that turns
still alternate.

Token counts are brought into OpenAI's words, because providers spell and divide them differently. `standardise` adds
OpenAI's members to a reply's usage, once, where the reply arrives; all that follows reads these alone. What the
provider said in its own words stays beside them.

    who                     what it says                                             what it means
    DeepSeek                prompt_cache_hit_tokens                                  prompt_tokens_details.cached_tokens
    Moonshot, Together      cached_tokens                                            prompt_tokens_details.cached_tokens
    xAI                     total_tokens = prompt + completion + reasoning tokens    the reasoning is output
    Gemini                  total_tokens beyond prompt + completion tokens           the rest is output (thinking)
    Anthropic               cache_creation, with a count for each lifetime           `CACHE_WRITES`, as LiteLLM names it
    anyone                  a count that is null, missing or negative                the rest of total_tokens, if told
    llama.cpp               completion_tokens are timings.predicted_n, of n choices  the tokens of one choice

Kinds `anthropic` and `responses` translate their own members to OpenAI's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.backends.base import Completion
from gateway.chat.usage import CACHE_WRITES, count_in, portion, usage_of
from gateway.dialects.native import NATIVE
from gateway.parts.servers.call_reasoning import NOTED, AnswerNotes, with_reasoning
from gateway.parts.servers.chat_reasoning import (
    MAY_HOLD_REASONING,
    TranslatedReasoning,
    checks_calls,
    own_reasoning,
    seal_reasoning,
    with_joined_calls,
    with_short_ids,
    with_signed_calls,
)
from gateway.parts.servers.custom_tools import (
    CustomCalls,
    ToolNames,
    as_functions,
    has_custom,
    restore_names,
    with_names,
)
from gateway.parts.servers.normalised import DeltaNormaliser, join_parts, normalise
from gateway.parts.servers.readable_reasoning import ReasoningName

if TYPE_CHECKING:
    from gateway.backends.base import BackendRequest
    from gateway.backends.server_forms import CallMemory
    from gateway.dialects.reasoning import Maker


_MAY_CHANGE: Final = MAY_HOLD_REASONING | {NATIVE}
"""Keys of a delta that may have to be changed."""
_PLAIN: Final = 2
"""Keys of a message that has a role and a content alone."""
_IN, _OUT, _TOTAL, _ESTIMATED = "prompt_tokens", "completion_tokens", "total_tokens", "estimated"
_PARTS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "prompt_tokens_details",
        "cached_tokens",
        ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens"),
    ),
    ("prompt_tokens_details", "cache_write_tokens", ("cache_creation_input_tokens",)),
    ("completion_tokens_details", "reasoning_tokens", ("reasoning_tokens",)),
)
"""Details of a usage: the object that holds one, its name there, and other names that it has beside the counts."""
_CACHE_CREATION: Final = "cache_creation"
_OTHER_WORDS: Final = frozenset((_CACHE_CREATION, *(word for _, _, words in _PARTS for word in words)))


def standardise(value: Mapping[str, Any]) -> bool:
    """Add what is missing of OpenAI's members to a reply's `usage`, in place; return whether anything changed.

    A usage without any count stays as it is. A count that neither is told nor follows from the others becomes 0, and
    `estimated` is set. It is, too, where one choice of several was counted: each then has as many.
    """
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return False
    tokens_in, tokens_out, total = usage.get(_IN), usage.get(_OUT), usage.get(_TOTAL)
    if "timings" in value and tokens_out is not None and _counts_one_choice(value, tokens_out):
        usage[_OUT] = tokens_out * len(value["choices"])
        usage[_TOTAL] = usage[_IN] + usage[_OUT]
        usage[_ESTIMATED] = True
        return True
    if (
        type(tokens_in) is int
        and type(tokens_out) is int
        and tokens_in >= 0
        and tokens_out >= 0
        and total == tokens_in + tokens_out
        and _OTHER_WORDS.isdisjoint(usage)
        and not (usage.get("completion_tokens_details") and _more_thought(usage, tokens_out))
    ):
        return False
    before = dict(usage)
    for holder, name, words in _PARTS:
        details = usage.get(holder)
        details = details if isinstance(details, dict) else {}
        told = next((count for word in words if (count := count_in(usage.get(word))) is not None), None)
        if told is not None and count_in(details.get(name)) is None:
            usage[holder] = {**details, name: told}
    if isinstance(writes := usage.get(_CACHE_CREATION), dict):
        details = usage.get("prompt_tokens_details")
        usage["prompt_tokens_details"] = {CACHE_WRITES: writes, **(details if isinstance(details, dict) else {})}
    _fill_in_counts(usage)
    return usage != before


def _counts_one_choice(value: Mapping[str, Any], tokens_out: object) -> bool:
    """Return whether llama.cpp counted the tokens of one choice of several, with those of the prompt."""
    timings, choices = value["timings"], value.get("choices")
    if not (isinstance(timings, dict) and isinstance(choices, list) and len(choices) > 1):
        return False
    told = count_in(value["usage"].get(_IN)) is not None and type(tokens_out) is int
    return told and timings.get("predicted_n") == tokens_out


def _fill_in_counts(usage: dict[str, Any]) -> None:
    tokens_in, tokens_out, total = (count_in(usage.get(name)) for name in (_IN, _OUT, _TOTAL))
    if tokens_in is None and tokens_out is None:
        return
    rest = 0 if total is None else total - (tokens_in or 0) - (tokens_out or 0)
    if rest > 0:
        prompt = usage.get("prompt_tokens_details")
        in_cache = portion(prompt, "cached_tokens", rest + 1) + portion(prompt, "cache_write_tokens", rest + 1)
        thought = portion(usage.get("completion_tokens_details"), "reasoning_tokens", rest + 1)
        if tokens_in is None or (tokens_out is not None and rest == in_cache != thought):
            tokens_in = (tokens_in or 0) + rest
        else:
            tokens_out = (tokens_out or 0) + rest
    if tokens_in is None or tokens_out is None:
        usage[_ESTIMATED] = True
    usage[_IN], usage[_OUT] = tokens_in or 0, tokens_out or 0
    usage[_OUT] += _more_thought(usage, usage[_OUT])
    usage[_TOTAL] = usage[_IN] + usage[_OUT]


def _more_thought(usage: Mapping[str, Any], tokens_out: int) -> int:
    """Return the reasoning tokens if they are more than the output, of which they cannot be a part then; else 0."""
    details = usage.get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return thought if type(thought) is int and thought > tokens_out else 0


class ServerChat:
    """Implements `gateway.backends.server_forms.ChatForms`.

    Without `custom_tools`, the server is sent functions in place of tools that take a free text.
    """

    def __init__(
        self,
        model: str,
        maker: Maker,
        *,
        one_system: bool = False,
        custom_tools: bool = False,
        calls: CallMemory | None = None,
    ) -> None:
        self._model, self._maker = model, maker
        self._one_system = one_system
        self._custom_tools = custom_tools
        self._calls = calls
        self._checks_calls = checks_calls(model)
        self._reasoning_name = ReasoningName()
        self.remembers = calls is not None
        self.usual = ServerReply(model, maker)

    async def restored(self, request: BackendRequest) -> BackendRequest:
        """Return the request with what its messages lack of this model's reasoning."""
        if self._calls is None:
            return request
        made = await with_reasoning(request.body["messages"], self._calls, self._space(request))
        return request if made is None else replace(request, body={**request.body, "messages": made})

    def learns(self, refusal: Mapping[str, Any]) -> bool:
        """Return whether the server refuses calls without reasoning; it is sent some text in its place from then on."""
        return self._reasoning_name.learn(refusal)

    def prepare(self, payload: dict[str, Any], request: BackendRequest) -> tuple[ServerReply | None, tuple[str, ...]]:
        """Change a body in place; return what reads its reply (None: `usual`) and the paths of what is not sent."""
        native, tools = request.native, payload.get("tools")
        custom: frozenset[str] = frozenset()
        names: ToolNames = {}
        notes: ReplyNotes | None = None
        dropped: tuple[str, ...] = ()
        if not self._custom_tools and (native is not None or (tools and has_custom(tools))):
            functions, custom = as_functions(payload)
            payload.update(functions)
        if native is not None:
            payload["messages"] = with_joined_calls(payload["messages"]) or payload["messages"]
            shorter, names = with_names(payload)
            payload.update(shorter)
        if self._calls is not None and request.conversation:
            notes = ReplyNotes(self._calls, self._space(request), self._reasoning_name)
        if self._one_system and (made := with_one_system(payload["messages"])) is not None:
            dropped = names_of_systems(payload["messages"])
            payload["messages"] = made
        for message in payload["messages"]:
            if len(message) > _PLAIN or "content" not in message or "role" not in message:
                if self._fit_turns(payload):
                    dropped = (*dropped, "reasoning")
                break
        if native is None and notes is None and not custom:
            return None, dropped
        translated = None
        if native is not None:
            translated = TranslatedReasoning(self._maker, calls=native.dialect == "messages")
        return ServerReply(self._model, self._maker, translated, names, custom, notes), dropped

    def _fit_turns(self, payload: dict[str, Any]) -> bool:
        """Bring turns that are more than a text into form; return whether reasoning of others was left out."""
        own = own_reasoning(payload["messages"], self._maker)
        messages, lost = (payload["messages"], False) if own is None else own
        if self._reasoning_name.name:
            messages = self._reasoning_name.sent(messages)
        messages = with_short_ids(messages) or messages
        if self._checks_calls:
            messages = with_signed_calls(messages) or messages
        payload["messages"] = messages
        return lost

    def _space(self, request: BackendRequest) -> str:
        return f"{self._maker.name}.{request.conversation}"


class ServerReply:
    """Implements `gateway.backends.server_forms.ReplyForms`: what a reply is changed in, whole or chunk by chunk.

    `translated` is for a client of another dialect, and `names` are its names of tools that were cut.
    """

    join = staticmethod(join_parts)
    standardise = staticmethod(standardise)

    def __init__(
        self,
        model: str,
        maker: Maker,
        translated: TranslatedReasoning | None = None,
        names: ToolNames | None = None,
        custom: frozenset[str] = frozenset(),
        notes: ReplyNotes | None = None,
    ) -> None:
        self._model, self._maker = model, maker
        self._translated = translated
        self._names = names or {}
        self._custom = CustomCalls(custom) if custom else None
        self._notes = notes
        self._also = _MAY_CHANGE if notes is None else _MAY_CHANGE | NOTED
        self.watched: frozenset[str] = self._also if translated is None else self._also | translated.watched
        self.mends = bool(translated or self._names or custom or notes)

    def whole(self, completion: dict[str, Any]) -> bool:
        """Bring a whole answer into form, in place; return whether anything had to be changed. Raises AnswerFailed."""
        changed = normalise(completion, self._model)
        if self._notes is not None and isinstance(first := completion["choices"][0].get("message"), dict):
            self._notes.add(first)
            self._notes.called(first)
            self._notes.over()
        for choice in completion["choices"]:
            message = choice.get("message")
            if not isinstance(message, dict):
                continue
            if self._translated is not None:
                changed = self._translated.turn(message, ends=True) or changed
            if not MAY_HOLD_REASONING.isdisjoint(message):
                changed = seal_reasoning(message, self._maker) or changed
            if self._names:
                changed = restore_names(message, self._names) or changed
            if self._custom is not None:
                changed = self._custom.whole(message) or changed
        return standardise(completion) or changed

    def mender(self) -> DeltaNormaliser:
        """Return what mends one stream's chunks that call tools or end."""
        return _ChunkMender(self) if self.mends else DeltaNormaliser()

    def change(self, delta: dict[str, Any], *, first: bool) -> bool:
        """Change a delta that has a key of `watched`, in place; return whether anything had to be changed."""
        if self._notes is not None and first:
            self._notes.add(delta)
        changed = False
        if self._translated is not None:
            changed = self._translated.turn(delta)
            self.watched = self._also | self._translated.watched
        return seal_reasoning(delta, self._maker) or changed

    def mend(self, choices: Sequence[dict[str, Any]]) -> bool:
        """Change choices that call tools or end, in place; return whether anything had to be changed."""
        changed = False
        for choice in choices if self._names else ():
            changed = restore_names(choice.get("delta") or {}, self._names) or changed
        if (custom := self._custom) is not None:
            for choice in choices:
                changed = custom.chunk(choice) or changed
        if self._notes is not None and choices:
            self._notes.called(choices[0].get("delta") or {})
        for choice in choices if self._translated is not None else ():
            # Reasoning that nothing has followed is sealed where its choice ends.
            if self._translated is not None and choice.get("finish_reason") and not choice.get("index"):
                delta = choice["delta"] = choice.get("delta") or {}
                changed = self._translated.turn(delta, ends=True) or changed
        return changed

    def over(self) -> None:
        """Keep what was noted of the reply, once."""
        if self._notes is not None:
            self._notes.over()


class _ChunkMender(DeltaNormaliser):
    """Changes, beside what is normalised, what one reply is changed in."""

    __slots__ = ("_reply",)

    def __init__(self, reply: ServerReply) -> None:
        super().__init__()
        self._reply = reply

    def mend(self, choices: list[dict[str, Any]]) -> bool:
        """See `DeltaNormaliser.mend`."""
        changed = super().mend(choices)
        return self._reply.mend(choices) or changed

    def end(self) -> list[dict[str, Any]]:
        """See `DeltaNormaliser.end`."""
        choices = super().end()
        self._reply.mend(choices)
        return choices


class ReplyNotes:
    """Note one reply's reasoning for the requests that follow it."""

    def __init__(self, memory: CallMemory, space: str, name: ReasoningName) -> None:
        self._memory = memory
        self._space = space
        self._name = name
        self._notes = AnswerNotes()
        self.called = self._notes.called

    def add(self, holder: Mapping[str, Any]) -> None:
        """Note what a message or delta has of reasoning."""
        self._name.see(holder)
        self._notes.add(holder)

    def over(self) -> None:
        """Keep what was noted, once."""
        self._notes.keep(self._memory, self._space)


SYSTEM: Final = ("system", "developer")
"""Roles of the system's messages."""
_BEFORE: Final = ("user", "tool")
MARKED: Final = "<system>\n{}\n</system>"
"""How a text of the system stands in a turn of the user."""
_PLAIN_PART: Final = frozenset({"type", "text"})


def with_one_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return messages with one system message at most, at the beginning; None if they are such already."""
    for i, message in enumerate(messages):
        role = message.get("role")
        if role == "developer" or (role == "system" and i > 0):
            break
    else:
        return None
    first = next((i for i, message in enumerate(messages) if message.get("role") not in SYSTEM), len(messages))
    made: list[Mapping[str, Any]] = []
    if first:
        contents = [message.get("content") for message in messages[:first]]
        made.append({"role": "system", "content": _joined(contents)})
    waiting: list[Any] = []
    for message in messages[first:]:
        if message.get("role") in SYSTEM:
            text = _marked(message.get("content"))
            if made and not waiting and made[-1]["role"] in _BEFORE:
                made[-1] = {**made[-1], "content": _joined([made[-1].get("content"), text])}
            else:
                waiting.append(text)
            continue
        joins = waiting and message.get("role") == "user"
        if waiting and not joins:
            made.append({"role": "user", "content": _joined(waiting)})
        made.append({**message, "content": _joined([*waiting, message.get("content")])} if joins else message)
        waiting = []
    if waiting:
        made.append({"role": "user", "content": _joined(waiting)})
    return made


def names_of_systems(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the paths of names of the system's messages, which have no place in one message or a marked text."""
    return tuple(
        f"messages[{i}].name"
        for i, message in enumerate(messages)
        if message.get("role") in SYSTEM and message.get("name")
    )


def _marked(content: Any) -> Any:
    text = _joined([content])
    return MARKED.format(text) if isinstance(text, str) else text


def _joined(contents: Sequence[Any]) -> Any:
    """Return several contents of messages as one: a text if all are plain texts, else a list of parts."""
    parts: list[Any] = []
    for content in contents:
        if isinstance(content, list):
            parts += content
        elif content:
            parts.append({"type": "text", "text": content})
    if all(isinstance(part, dict) and part.keys() == _PLAIN_PART and isinstance(part["text"], str) for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def translated_completion(value: dict[str, Any], model: str) -> Completion:
    """Return the completion for one that was translated from another dialect, with missing members filled in.

    Impossible token counts are dropped, because clients add them up.
    """
    normalise(value, model)
    standardise(value)
    usage = usage_of(value)
    sound = value.get("usage") is None or (usage is not None and not usage.incomplete)
    if usage is None and not sound:
        value["usage"] = None
    return Completion(orjson.dumps(value), value, sound, (), usage)
