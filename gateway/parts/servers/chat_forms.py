"""Bring chat completions into the form that one server takes, and its replies into the form that clients know.

Most chat templates of open models know one system message, at the beginning: they drop `developer` and later `system`
messages in silence, or refuse the request. For such a server the texts before the first turn become one system message.
A later one stays where it is, as a marked text of a turn of the user or of a tool's result: moved to the front it would
hold for what was said before it, and each new one would change the beginning that the server has cached. It goes to the
end of such a turn before it, else to the start of the user's turn after it, else into a turn of its own, so that turns
still alternate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

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
from gateway.parts.servers.usage_words import standardise

if TYPE_CHECKING:
    from gateway.backends.base import BackendRequest
    from gateway.backends.server_forms import CallMemory
    from gateway.dialects.reasoning import Maker


_MAY_CHANGE: Final = MAY_HOLD_REASONING | {NATIVE}
"""Keys of a delta that may have to be changed."""
_PLAIN: Final = 2
"""Keys of a message that has a role and a content alone."""


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
        messages = [choice.get("message") for choice in completion["choices"]]
        if self._notes is not None and isinstance(messages[0], dict):
            self._notes.add(messages[0])
            self._notes.called(messages[0])
            self._notes.over()
        for message in messages:
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
    roles = [message.get("role") for message in messages]
    if "developer" not in roles and "system" not in roles[1:]:
        return None
    first = next((i for i, role in enumerate(roles) if role not in SYSTEM), len(roles))
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
