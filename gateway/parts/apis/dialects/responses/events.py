"""Write a reply as the API's stream of events, from the chunks of a chat completion.

    created, in_progress
      output_item.added      reasoning, a message, or a call; each is closed by output_item.done
        content_part.added   of a message: its text (output_text.delta ... done) or refusal
        content_part.done
      output_item.done
    completed | incomplete | error and failed

A message or reasoning is closed when something else begins, calls at the end, as backends may send several at a time.
A chunk with the events of a backend that speaks this API itself (see `gateway.dialects.native`) is passed on: its
events get the ids, indexes and sequence numbers of this stream. What its terminal event lists and the stream has not
had is written as events first, so a stored whole answer is a full stream too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import DETAILS, joined_details
from gateway.parts.apis.dialects.responses.items import (
    EXTRA,
    Json,
    annotations_of,
    details_of_item,
    logprobs_of,
    reasoning_item,
    usage_object,
    without_encrypted,
)
from gateway.parts.apis.dialects.responses.response_object import (
    SEARCHES,
    Names,
    ResponseHead,
    in_namespace,
    message_item,
    native_end,
    outcome_of,
    reason_of,
    renamed,
    response_error,
    text_part,
)
from gateway.parts.servers.normalised import new_call_id

_DELTA: Final = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","sequence_number":%d,%b%b,"logprobs":[]}\n\n'
)
_HEADS: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_PARTS: Final = {"output_text": "text", "refusal": "refusal"}
_CALLS: Final = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}


class _Thought(NamedTuple):
    """How events of one type of part of reasoning are named, and the member with its number."""

    number: str
    part: str
    text: str


_THOUGHTS: Final = {
    "summary_text": _Thought("summary_index", "response.reasoning_summary_part", "response.reasoning_summary_text"),
    "reasoning_text": _Thought("content_index", "response.content_part", "response.reasoning_text"),
}


class _OpenMessage:
    """A message of the assistant that has begun, and its open part."""

    __slots__ = ("annotations", "head", "id", "index", "kind", "logprobs", "parts", "pieces")

    def __init__(self, index: int, item_id: str) -> None:
        self.index = index
        self.id = item_id
        self.parts: list[Json] = []
        """The parts that are closed."""
        self.kind = ""
        """Type of the open part; '' if none is open."""
        self.pieces: list[str] = []
        self.logprobs: list[Json] = []
        self.annotations: list[Json] = []
        self.head = b""
        """The members of each of its delta events, encoded, up to the delta's text."""

    def open(self, kind: str) -> None:
        """Begin a part."""
        self.kind, self.pieces, self.logprobs, self.annotations = kind, [], [], []
        self.head = b'"item_id":"%b","output_index":%d,"content_index":%d,"delta":' % (
            self.id.encode(),
            self.index,
            len(self.parts),
        )

    def place(self) -> Json:
        """Return the members by which an event names the open part."""
        return {"item_id": self.id, "output_index": self.index, "content_index": len(self.parts)}

    def part(self) -> Json:
        """Return the open part as it is now."""
        text = "".join(self.pieces)
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        return {**text_part(text, None, None), "annotations": self.annotations, "logprobs": self.logprobs}

    def item(self, status: str) -> Json:
        """Return the message as it is now."""
        return message_item(self.id, status, [*self.parts, self.part()] if self.kind else list(self.parts))


class _OpenReasoning:
    """Reasoning that has begun: its pieces, and the open part, of `kind` summary_text or reasoning_text."""

    __slots__ = ("counts", "details", "id", "index", "key", "kind", "pieces")

    def __init__(self, index: int, item_id: str) -> None:
        self.index = index
        self.id = item_id
        self.details: list[Json] = []
        self.kind = ""
        self.key: Any = None
        """What the pieces of the open part have in common."""
        self.pieces: list[str] = []
        self.counts = dict.fromkeys(_THOUGHTS, 0)

    def place(self) -> Json:
        """Return the members by which an event names the open part."""
        number = _THOUGHTS[self.kind].number
        return {"item_id": self.id, "output_index": self.index, number: self.counts[self.kind]}


class _OpenCall:
    """A call that has begun, of `kind` function_call or custom_tool_call."""

    __slots__ = ("call_id", "extra", "id", "index", "kind", "name", "names", "pieces")

    def __init__(self, index: int, item_id: str, kind: str, call_id: str, name: str, names: Names) -> None:
        self.index = index
        self.id = item_id
        self.kind = kind
        self.call_id = call_id
        self.name = name
        self.names = names
        self.pieces: list[str] = []
        self.extra: Any = None

    @property
    def searches(self) -> bool:
        """Whether it looks for tools."""
        return bool(self.names) and self.names.get(self.name) is SEARCHES

    def item(self, status: str) -> Json:
        """Return the call as it is now."""
        item: Json = {
            "id": self.id,
            "type": self.kind,
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            _CALLS[self.kind][0]: "".join(self.pieces),
        }
        if self.extra is not None:
            item[EXTRA] = self.extra
        return in_namespace(item, self.names)


class ResponseEvents:
    """Write one stream. It implements `gateway.parts.apis.dialects.client.StreamWriter`."""

    def __init__(
        self,
        head: ResponseHead,
        ended: Callable[[Json], None],
        *,
        logprobs: bool = False,
        encrypted: bool = False,
    ) -> None:
        """Write for the client of `head`.

        `ended` gets the Response object of a whole answer, or of one that failed, with all that is encrypted, before
        the last event is sent.
        `logprobs`, `encrypted`: whether the client asked for log-probabilities, and for encrypted reasoning.
        """
        self._head = head
        self._ended = ended
        self._logprobs = logprobs
        self._encrypted = encrypted
        self._sequence = 0
        self._begun = self._begun_early = False
        self._output: list[Json] = []
        """Items by output index; those still open as they began."""
        self._message: _OpenMessage | None = None
        self._reasoning: _OpenReasoning | None = None
        self._calls: dict[int, _OpenCall] = {}
        self._finish_reason: Any = None
        self._usage: Json | None = None
        self._native_ids: dict[str, tuple[str, int]] = {}
        """Our id and output index of each item that a backend of this API has begun, by its output index there."""
        self._native_end: Json | None = None

    # --- StreamWriter -------------------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """See `StreamWriter.begin`. The model is the one that the client named, from the first event to the last."""
        begun = self._begin({})
        self._begun, self._begun_early = False, True
        return begun

    def alive(self) -> bytes:
        """See `StreamWriter.alive`. OpenAI's own `keepalive` event is in no schema, and clients fail on it."""
        begun = self._begun or self._begun_early
        return self._event("response.in_progress", response=self._head.of("in_progress")) if begun else b""

    def chunk(self, value: Mapping[str, Any]) -> bytes:
        """Return the events for one chunk."""
        if value.get("usage") is not None:
            self._usage = usage_object(value["usage"])
        if "moderation" in value:
            self._head.note({**value, "model": None} if self._begun_early else value)
        choices = value["choices"]
        choice = choices[0] if choices else None
        if choice is None or choice.get("index"):
            return b""
        begun = b"" if self._begun else self._begin(value)
        delta = choice.get("delta")
        written: list[bytes] = []
        if delta:
            text, message = delta.get("content"), self._message
            if (
                len(delta) == 1
                and text
                and message is not None
                and message.kind == "output_text"
                and not (choice.get("logprobs") and self._logprobs)
                and "obfuscation" not in value
            ):
                written.append(self._plain_text(message, text))
            elif delta.get(NATIVE):
                self._add_native(delta[NATIVE], written)
            else:
                self._add_delta(delta, choice.get("logprobs"), value.get("obfuscation"), written)
        if choice.get("finish_reason"):
            self._finish_reason = choice["finish_reason"]
        return begun + b"".join(written)

    def done(self) -> bytes:
        """Return the rest of the events, and the terminal one."""
        written = [] if self._begun else [self._begin({})]
        status, reason = outcome_of(self._finish_reason)
        usage = self._usage
        if (ended := self._native_end) is not None:
            self._head.note_native(ended)
            status, reason = ended["status"], reason_of(ended)
            usage = self._head.own_usage(ended) or usage
            listed = ended.get("output")
            for item in (listed if isinstance(listed, list) else [])[len(self._output) :]:
                self.add_item(item, written)
        self._close(status, written)
        if not self._output:
            self._open_message(written)
            self._open_part("output_text", written)
            self._close(status, written)
        response = self._head.of(status, self._output, usage, reason=reason)
        self._ended(response)
        written.append(self._event(f"response.{status}", response=self._shown(response)))
        return b"".join(written)

    def prepared(self) -> bytes:
        """Return all events of a response that is to have no output (`generate: false`)."""
        begun = self._begin({})
        response = self._head.of("completed", (), usage_object({"prompt_tokens": 0, "completion_tokens": 0}))
        self._ended(response)
        return begun + self._event("response.completed", response=response)

    def error(self, error: Mapping[str, Any]) -> bytes:
        """Return an error event and, as some clients end on one of them and some on the other, the failed response."""
        written = [] if self._begun else [self._begin({})]
        message = str(error.get("message") or "The answer broke off.")
        param = error.get("param")
        code = str(error.get("code") or error.get("type") or "server_error")
        written.append(self._event("error", code=code, message=message, param=param))
        output = list(self._output)
        if self._message is not None:
            output[self._message.index] = self._message.item("incomplete")
        for call in self._calls.values():
            output[call.index] = call.item("incomplete")
        response = self._head.of("failed", output, self._usage, error=response_error(error))
        self._ended(response)
        written.append(self._event("response.failed", response=self._shown(response)))
        return b"".join(written)

    # --- the parts of a stream ----------------------------------------------------------------------------------------

    def _begin(self, value: Mapping[str, Any]) -> bytes:
        self._begun = True
        if self._begun_early:
            self._head.note({**value, "model": None})
            return b""
        self._head.note(value)
        response = self._head.of("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _event(self, kind: str, **members: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(body))

    def _shown(self, response: Json) -> Json:
        if self._encrypted:
            return response
        return {**response, "output": [without_encrypted(item) for item in response["output"]]}

    def _added(self, item: Json, written: list[bytes]) -> int:
        """Write the event that begins an item, and return its output index."""
        index = len(self._output)
        self._output.append(item)
        written.append(self._event("response.output_item.added", output_index=index, item=item))
        return index

    def _closed(self, index: int, item: Json, written: list[bytes]) -> None:
        self._output[index] = item
        shown = item if self._encrypted else without_encrypted(item)
        written.append(self._event("response.output_item.done", output_index=index, item=shown))

    def _add_delta(self, delta: Mapping[str, Any], logprobs: Any, obfuscation: Any, written: list[bytes]) -> None:
        self._add_reasoning(delta, written)
        if (text := delta.get("content")) and isinstance(text, str):
            entries = logprobs.get("content") if self._logprobs and isinstance(logprobs, dict) else None
            self._add_text("output_text", text, logprobs_of(entries), obfuscation, written)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            self._add_text("refusal", refusal, [], obfuscation, written)
        for annotation in annotations_of(delta.get("annotations")):
            self._add_annotation(annotation, written)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._add_call(call, obfuscation, written)

    def _close(self, status: str, written: list[bytes]) -> None:
        """Close all that is open."""
        self._close_reasoning(written)
        self._close_message(status, written)
        for call in self._calls.values():
            name, event = _CALLS[call.kind]
            item = call.item(status)
            if call.searches:  # no event of the API gives its arguments in pieces
                self._closed(call.index, item, written)
                continue
            named = {"name": item["name"]} if call.kind == "function_call" else {}
            members = {"item_id": call.id, "output_index": call.index, **named, name: "".join(call.pieces)}
            written.append(self._event(f"{event}.done", **members))
            self._closed(call.index, item, written)
        self._calls.clear()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _plain_text(self, message: _OpenMessage, text: str) -> bytes:
        message.pieces.append(text)
        number = self._sequence
        self._sequence += 1
        return _DELTA % (number, message.head, orjson.dumps(text))

    def _open_message(self, written: list[bytes]) -> _OpenMessage:
        self._close_reasoning(written)
        item_id = self._head.ids.new("message")
        index = self._added(message_item(item_id, "in_progress", []), written)
        self._message = _OpenMessage(index, item_id)
        return self._message

    def _open_part(self, kind: str, written: list[bytes]) -> _OpenMessage:
        """Return the open message, with a part of this type open."""
        message = self._message or self._open_message(written)
        if message.kind != kind:
            self._close_part(message, written)
            message.open(kind)
            written.append(self._part_event("added", message, message.part()))
        return message

    def _add_text(self, kind: str, text: str, logprobs: list[Json], obfuscation: Any, written: list[bytes]) -> None:
        message = self._open_part(kind, written)
        message.pieces.append(text)
        members: Json = {**message.place(), "delta": text}
        if kind == "output_text":
            message.logprobs += logprobs
            members["logprobs"] = [_brief(logprob) for logprob in logprobs]
        if obfuscation is not None:
            members["obfuscation"] = obfuscation
        written.append(self._event(f"response.{kind}.delta", **members))

    def _add_annotation(self, annotation: Json, written: list[bytes]) -> None:
        message = self._open_part("output_text", written)
        event = self._event(
            "response.output_text.annotation.added",
            **message.place(),
            annotation_index=len(message.annotations),
            annotation=annotation,
        )
        message.annotations.append(annotation)
        written.append(event)

    def _close_part(self, message: _OpenMessage, written: list[bytes]) -> None:
        if not message.kind:
            return
        part = message.part()
        members: Json = {**message.place(), _PARTS[message.kind]: part[_PARTS[message.kind]]}
        if message.kind == "output_text":
            members["logprobs"] = [_brief(logprob) for logprob in message.logprobs]
        written.append(self._event(f"response.{message.kind}.done", **members))
        written.append(self._part_event("done", message, part))
        message.parts.append(part)
        message.kind = ""

    def _part_event(self, what: str, message: _OpenMessage, part: Json) -> bytes:
        return self._event(f"response.content_part.{what}", **message.place(), part=part)

    def _close_message(self, status: str, written: list[bytes]) -> None:
        message = self._message
        if message is not None:
            self._close_part(message, written)
            self._message = None
            self._closed(message.index, message.item(status), written)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _add_call(self, piece: Mapping[str, Any], obfuscation: Any, written: list[bytes]) -> None:
        custom = isinstance(piece.get("custom"), dict)
        inner = piece["custom"] if custom else piece.get("function")
        inner = inner if isinstance(inner, dict) else {}
        index = piece.get("index")
        if type(index) is not int:
            return
        call = self._calls.get(index)
        name = inner.get("name") if isinstance(inner.get("name"), str) else ""
        if call is None:
            self._close_reasoning(written)
            self._close_message("completed", written)
            kind = "custom_tool_call" if custom or piece.get("type") == "custom" else "function_call"
            call = self._open_call(index, kind, piece.get("id"), name or "", written)
        elif name:
            call.name += name
        if piece.get(EXTRA) is not None:
            call.extra = piece[EXTRA]
        text = inner.get(_CALLS[call.kind][0])
        if isinstance(text, str) and text:
            self._add_to_call(call, text, obfuscation, written)

    def _open_call(self, key: int, kind: str, call_id: Any, name: str, written: list[bytes]) -> _OpenCall:
        item_id = self._head.ids.new(kind)
        call_id = call_id if isinstance(call_id, str) and call_id else new_call_id()
        call = _OpenCall(len(self._output), item_id, kind, call_id, name, self._head.names)
        self._added(call.item("in_progress"), written)
        self._calls[key] = call
        return call

    def _add_to_call(self, call: _OpenCall, text: str, obfuscation: Any, written: list[bytes]) -> None:
        call.pieces.append(text)
        if call.searches:
            return
        members: Json = {"item_id": call.id, "output_index": call.index, "delta": text}
        if obfuscation is not None:
            members["obfuscation"] = obfuscation
        written.append(self._event(f"{_CALLS[call.kind][1]}.delta", **members))

    # --- reasoning ----------------------------------------------------------------------------------------------------

    def _add_reasoning(self, delta: Mapping[str, Any], written: list[bytes]) -> None:
        given = delta.get(DETAILS)
        details = [detail for detail in given if isinstance(detail, dict)] if isinstance(given, list) else []
        text = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(text, str) and text and not any(entry.get("text") or entry.get("summary") for entry in details):
            details.insert(0, {"type": "reasoning.text", "text": text})
        if not details:
            return
        reasoning = self._reasoning
        if reasoning is None:
            self._close_message("completed", written)
            item_id = self._head.ids.new("reasoning")
            item = {"id": item_id, "type": "reasoning", "summary": [], "status": "in_progress"}
            reasoning = self._reasoning = _OpenReasoning(self._added(item, written), item_id)
        for detail in details:
            reasoning.details.append(detail)
            for kind, name in (("summary_text", "summary"), ("reasoning_text", "text")):
                piece = detail.get(name)
                if isinstance(piece, str) and piece:
                    self._add_thought(reasoning, kind, detail.get("index"), piece, written)

    def _add_thought(self, reasoning: _OpenReasoning, kind: str, key: Any, text: str, written: list[bytes]) -> None:
        if reasoning.kind != kind or reasoning.key != key:
            self._close_thought(reasoning, written)
            reasoning.kind, reasoning.key, reasoning.pieces = kind, key, []
            part = {"type": kind, "text": ""}
            written.append(self._event(f"{_THOUGHTS[kind].part}.added", **reasoning.place(), part=part))
        reasoning.pieces.append(text)
        written.append(self._event(f"{_THOUGHTS[kind].text}.delta", **reasoning.place(), delta=text))

    def _close_thought(self, reasoning: _OpenReasoning, written: list[bytes]) -> None:
        kind = reasoning.kind
        if not kind:
            return
        text, place = "".join(reasoning.pieces), reasoning.place()
        written.append(self._event(f"{_THOUGHTS[kind].text}.done", **place, text=text))
        written.append(self._event(f"{_THOUGHTS[kind].part}.done", **place, part={"type": kind, "text": text}))
        reasoning.counts[kind] += 1
        reasoning.kind = ""

    def _close_reasoning(self, written: list[bytes]) -> None:
        reasoning = self._reasoning
        if reasoning is not None:
            self._reasoning = None
            self._close_thought(reasoning, written)
            item = reasoning_item(joined_details(reasoning.details), reasoning.id, encrypted=True)
            self._closed(reasoning.index, {**item, "status": "completed"}, written)

    # --- events of a backend that speaks this API ---------------------------------------------------------------------

    def _add_native(self, events: Any, written: list[bytes]) -> None:
        for event in events if isinstance(events, list) else ():
            kind = event.get("type") if isinstance(event, dict) else None
            if not isinstance(kind, str) or kind in _HEADS:
                continue
            if kind in _ENDS:
                self._native_end = native_end((event,)) or self._native_end
            elif kind == "response.output_item.added" and isinstance(event.get("item"), dict):
                self._begin_native(event, written)
            else:
                self._pass_on(kind, event, written)

    def _begin_native(self, event: Mapping[str, Any], written: list[bytes]) -> None:
        self._close("completed", written)
        item = renamed(event["item"], self._head.ids)
        shown = item if self._encrypted else without_encrypted(item)
        index = self._added(shown, written)
        self._native_ids[str(event.get("output_index"))] = item["id"], index
        if item.get("type") == "message":
            self._message = _OpenMessage(index, item["id"])

    def _pass_on(self, kind: str, event: Mapping[str, Any], written: list[bytes]) -> None:
        """Write a backend's event under this stream's ids; note what a message has so far, in case it breaks off."""
        item_id, index = self._native_ids.get(str(event.get("output_index")), ("", -1))
        members = {name: value for name, value in event.items() if name not in ("type", "sequence_number")}
        if index >= 0:
            members["output_index"] = index
            if "item_id" in members:
                members["item_id"] = item_id
        message = self._message
        mine = message is not None and message.index == index
        if kind == "response.output_item.done" and isinstance(event.get("item"), dict) and index >= 0:
            if mine:
                self._message = None
            self._closed(index, {**event["item"], "id": item_id}, written)
            return
        if message is not None and mine:
            if kind == "response.content_part.added":
                part = event.get("part")
                message.open("refusal" if isinstance(part, dict) and part.get("type") == "refusal" else "output_text")
            elif kind == "response.content_part.done":
                message.parts.append(event.get("part") or message.part())
                message.kind = ""
            elif message.kind and kind.endswith(".delta") and isinstance(event.get("delta"), str):
                message.pieces.append(event["delta"])
        written.append(self._event(kind, **members))

    def add_item(self, item: Any, written: list[bytes]) -> None:
        """Write the events of a backend's whole item."""
        if not isinstance(item, dict):
            return
        self._close("completed", written)
        kind = str(item.get("type"))
        if kind == "message":
            self._add_whole_message(item, written)
        elif kind in _CALLS:
            self._add_whole_call(kind, item, written)
        else:
            whole = renamed(item, self._head.ids)
            begun = {name: value for name, value in whole.items() if name not in ("summary", "content", "status")}
            if kind == "reasoning":
                begun["summary"] = []
            if "status" in whole:
                begun["status"] = "in_progress"
            index = self._added(without_encrypted(begun), written)
            if kind == "reasoning":
                reasoning = _OpenReasoning(index, whole["id"])
                for at, detail in enumerate(details_of_item({**whole, "encrypted_content": None})):
                    part = "summary_text" if "summary" in detail else "reasoning_text"
                    self._add_thought(reasoning, part, at, detail.get("summary") or detail.get("text") or "", written)
                self._close_thought(reasoning, written)
            self._closed(index, whole, written)

    def _add_whole_message(self, item: Mapping[str, Any], written: list[bytes]) -> None:
        message = self._open_message(written)
        parts = item.get("content")
        for part in parts if isinstance(parts, list) else ():
            kind = str(part.get("type")) if isinstance(part, dict) else ""
            if kind in _PARTS:
                self._close_part(message, written)
                text, annotations = part.get(_PARTS[kind]), part.get("annotations")
                self._open_part(kind, written)
                if isinstance(text, str) and text:
                    self._add_text(kind, text, logprobs_of(part.get("logprobs")), None, written)
                for annotation in annotations if isinstance(annotations, list) else ():
                    self._add_annotation(annotation, written)
        self._close_part(message, written)
        self._message = None
        self._closed(message.index, {**item, "id": message.id}, written)

    def _add_whole_call(self, kind: str, item: Mapping[str, Any], written: list[bytes]) -> None:
        call = self._open_call(0, kind, item.get("call_id"), str(item.get("name") or ""), written)
        text = item.get(_CALLS[kind][0])
        if isinstance(text, str) and text:
            self._add_to_call(call, text, None, written)
        self._close("completed", written)
        self._output[call.index] = {**item, "id": call.id}


def _brief(entry: Mapping[str, Any]) -> Json:
    """Return a token's log-probability as events have it."""
    tops = [{"token": logprob["token"], "logprob": logprob["logprob"]} for logprob in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": tops}
