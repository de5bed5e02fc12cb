"""Learn from a backend's errors which request fields its model refuses, and leave them out of later requests.

An error 400 or 422 that names a field of the request, in any server's words, is no caller's mistake if the gateway put
the field there, or if an answer without it is still the answer that was asked for: the request goes out once more
without it, before anything has reached the client. If that is answered, the field is left out for some hours, so that
a server that was upgraded is asked again. `quirks.py` leaves out what is known before any request.

    who says it              how
    OpenAI                   param and code: unsupported_parameter, unknown_parameter, unsupported_value, invalid_value
    vLLM, Mistral            pydantic's list: {"type": "extra_forbidden", "loc": ["body", "stream_options"]}
    Anthropic                messages.0.content.0.cache_control: Extra inputs are not permitted
    Groq, Cerebras           property 'x' is unsupported
    Gemini                   Unknown name "x": Cannot find field.
    DeepSeek, xAI, Ollama    unknown field `x`; Argument not supported on this model: x; does not support thinking
    llama.cpp                logprobs is not supported with tools + stream

A field that says what is asked is never left out (ESSENTIAL). If it is refused, another tier is asked.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from gateway.parts.servers.equal_forms import (
    PARTS,
    PINNED,
    SAYS_NOTHING,
    nothing_said,
    refuses_parts,
    refuses_pinned_tool,
    with_joined_texts,
    with_required_tool,
)

log = logging.getLogger("tierline.backends")

KEPT_S: Final = 6 * 3600.0
"""Time in seconds after which a refused field is sent again."""
_MOST_LEFT_OUT: Final = 6
"""Most fields that one call goes without: some servers name one at a time."""
_MOST: Final = 64
_MOST_FIELDS: Final = 256
_MOST_WORDS: Final = 4096
"""Most characters of an error that are searched: some servers quote the request."""
_LONGEST_VALUE: Final = 32
"""Longest refused value, as JSON, that is remembered: a longer one may be what a person wrote."""
ESSENTIAL: Final = frozenset(
    {
        "messages", "model", "input", "instructions", "system", "prompt", "suffix", "stream", "stop", "stop_sequences",
        "tools", "tool_choice", "functions", "function_call", "response_format", "text", "text.format", "format",
        "output_config.format", "n", "best_of", "modalities", "audio", "web_search_options", "max_tokens",
        "max_completion_tokens", "max_output_tokens", "max_tool_calls", "include", "previous_response_id", "background",
        "conversation", "container", "mcp_servers", "truncation", "continue_final_message", "add_generation_prompt",
        "grammar", "json_schema", "regex", "structured_outputs", "dimensions", "cache_salt",
    }
)  # fmt: skip
"""Fields of any API without which another request would be made than the client's, or one that others could read."""
_ELSEWHERE: Final = ESSENTIAL - {"messages", "model", "input", "instructions", "system", "prompt", "stream"}
"""Of these, what another model may take: it is asked if one refuses the field."""
_ESSENTIAL_BEGIN: Final = "guided_"
_OTHER_NAME: Final = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}
"""Fields that are sent under their other name where the model refuses the one."""
_TOGETHER: Final = {"logprobs": ("top_logprobs",)}
"""Fields that mean nothing without another."""
_NESTED: Final = ("reasoning", "text", "stream_options", "output_config", "thinking")
"""Objects whose members are refused one by one."""
_THINKING: Final = ("reasoning_effort", "reasoning", "thinking", "think", "enable_thinking", "output_config.effort")
_MARKS: Final = frozenset({"cache_control", "strict", "citations", "extra_content", "detail", "defer_loading"})
"""Members of anything within messages, tools and the system text that may be left out."""
_OF_MESSAGES: Final = frozenset(
    {"name", "reasoning_content", "reasoning_details", "reasoning", "thinking_blocks", "refusal", "annotations"}
)
"""Members of messages that may be left out."""
_LISTS: Final = ("messages", "input", "tools", "system")
_FREE: Final = frozenset({"parameters", "input_schema", "schema", "arguments"})
"""Members whose value is the client's own, where any name may mean anything."""
_CODES: Final = frozenset({"unsupported_parameter", "unknown_parameter", "unsupported_value", "extra_forbidden"})
_REFUSES: Final = re.compile(
    r"unrecognized|unsupported|not supported|(?:not|n't) support\b|extra inputs|extra fields|extra_forbidden"
    r"|not permitted|additional propert|cannot find field|unknown (?:name|parameter|field|argument|property|key)"
    r"|unexpected (?:keyword|field|property|argument|parameter)|cannot both be (?:specified|set)|deprecated"
    r"|not available|please (?:remove|omit|unset)|\bonly \S{1,9} is allowed|may only be set|must be (?:unset|omitted)"
    r"|must be set to|restricted to|cannot be (?:used|set|requested|specified|combined)|is not configured"
    r"|\bwhile (?:thinking|reasoning)\b|reasoning is active|invalid option|is not a valid field|not compatible",
    re.IGNORECASE,
)
_OF_VALUE: Final = re.compile(
    r"unsupported value|not support (?:the value )?['\"`\d]|supported values are|\bonly \S{1,9} is allowed"
    r"|may only be set|must be (?:set to|one of)|restricted to|invalid option|value ['\"`]\w+['\"`] is not supported",
    re.IGNORECASE,
)
_INSTEAD: Final = re.compile(
    r"(?:,? expected one of|,? did you mean|[.;] ?use |supported (?:values|fields)).*", re.IGNORECASE
)
"""What an error offers in place of what it refuses."""
_NO_THINKING: Final = re.compile(r"\b(?:thinking|reasoning|effort param\w*|think value)\b", re.IGNORECASE)
_LOC_IN_WORDS: Final = re.compile(r"'loc': [\[(]'body', ([^\])]*)[\])]")
_BESIDE: Final = re.compile(
    r"\b(?:together|both|combin\w+|when|while|unless|alongside)\b|\bwith (?!this\b|the model|model|your)", re.IGNORECASE
)
"""Words of a refusal that holds beside another field only."""
_WHILE_REASONING: Final = re.compile(
    r"(?:while|when|unless|if) (?:\w+ ){0,2}(?:reasoning|thinking|reasoning_effort)\b", re.IGNORECASE
)
"""Words of a refusal that holds as long as the model reasons."""
_STREAM: Final = "stream"
_OF_STREAMS: Final = (_STREAM, "stream_options")
_FLAGS: Final = {name: re.compile(rf"\b{name}(?:ing|ed|s)?\b", re.IGNORECASE) for name in (_STREAM, "tools")}
"""Fields beside which others may be refused, whatever their value, as the words of an error name them."""
_NOT_BOTH: Final = re.compile(r"cannot both be (?:specified|set)|use only one", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z_]\w{0,63}|\*")
_STATUSES: Final = frozenset({400, 422})
_AMONG_INDEXES: Final = re.compile(r"\[(\d+)\]")

_IN_MESSAGE: Final = re.compile(r"\bmessages(?:\.|\[)(\d+)")
_ANYWHERE: Final = 3

Path = tuple[str, ...]
"""Where a field stands in a body: its name, a member of an object, ("messages", "*", NAME) for a member anywhere, or
("messages", "*", "system", NAME) for one in messages of that role."""


class RefusedField(NamedTuple):
    """A field that a backend refuses: its path, the refused value as JSON (b'': any), and whether that always holds.

    What is refused beside another field alone, such as an effort beside tools, is left out of that request only, but a
    flag, such as `logprobs`, of all that have what is named in `beside`. What is refused while the model reasons is
    left out of requests with the same `effort`, as JSON (b"null": none given).
    """

    path: Path
    value: bytes = b""
    always: bool = True
    effort: bytes = b""
    beside: Path = ()

    @property
    def shown(self) -> str:
        """The path as people read it, such as `reasoning.effort` or `messages[].cache_control`."""
        return f"{self.path[0]}[].{self.path[-1]}" if "*" in self.path else ".".join(self.path)

    @property
    def may_be_left_out(self) -> bool:
        """Whether an answer without the field is still the one that was asked for."""
        if "*" in self.path or self.path[0] in _OTHER_NAME:
            return True
        if self.path[0] in SAYS_NOTHING and self.value:
            return self.pins_a_tool or orjson.loads(self.value) in SAYS_NOTHING[self.path[0]]
        return self.shown not in ESSENTIAL and not self.path[0].startswith(_ESSENTIAL_BEGIN)

    @property
    def pins_a_tool(self) -> bool:
        """Whether what is refused is a `tool_choice` that names a tool, which can be said in another form."""
        return self.path == ("tool_choice",) and self.value == PINNED

    @property
    def has_parts(self) -> bool:
        """Whether what is refused is a list of texts as a message's content, which can be said as one text."""
        return self.path == ("messages", "*", "content") and self.value == PARTS


class RefusedFields:
    """The fields that one backend's model refuses, each with the time until which it is left out."""

    def __init__(self, backend: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self.until: dict[RefusedField, float] = {}

    def names(self) -> list[str]:
        """Return the paths of what is left out now; of a field that is refused at some values, with those."""
        self._forget()
        return sorted(
            field.shown
            + (f"={field.value.decode()}" if field.value else "")
            + (f" with {' and '.join(field.beside)}" if field.beside else "")
            for field in self.until
        )

    def left_out(
        self, body: dict[str, Any], also: Sequence[RefusedField] = (), *, held: bool = False
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the body without what is refused, and the paths of what was left out; `body` stays as it is.

        `also` is what this request alone goes without. A field that has another name (max_tokens) is sent under that.
        What is refused of streams alone is kept where the answer is `held` anyway: it is then asked for whole.
        """
        self._forget()
        refused = (*self.until, *also)
        fitted, paths = body, []
        for field in refused:
            if (other := _OTHER_NAME.get(field.path[0])) is not None:
                limit = fitted.get(field.path[0])
                if limit is not None and not any(another.path[0] == other for another in refused):
                    fitted = {other: limit, **{name: fitted[name] for name in fitted if name != field.path[0]}}
                continue
            if field.has_parts:
                fitted = with_joined_texts(fitted) or fitted
                continue
            if field.pins_a_tool:
                fitted = with_required_tool(fitted)
                continue
            if field.effort and field.effort != _effort(body):
                continue
            if field.beside and not all(fitted.get(name) for name in field.beside):
                continue
            if held and _STREAM in field.beside:
                fitted = {name: value for name, value in fitted.items() if name not in _OF_STREAMS}
                continue
            changed = _without(fitted, field.path, field.value)
            if changed is not None:
                fitted = changed
                paths.append(field.shown)
        return fitted, paths

    def remember(self, refused: Iterable[RefusedField]) -> None:
        """Leave these fields out from now on: the request without them was answered."""
        for field in refused:
            if field.always and field not in self.until and len(self.until) < _MOST:
                self.until[field] = self._clock() + KEPT_S
                hours = round(KEPT_S / 3600)
                log.warning("backend %s refuses %s, and is sent none for %d hours", self._backend, field.shown, hours)

    def refused(
        self, status: int, error: bytes, body: Mapping[str, Any], also: Sequence[RefusedField]
    ) -> tuple[list[RefusedField], bool]:
        """Return the fields to leave out of another try, if that may help, and whether another model may take one."""
        fields = refused_in(status, error, body)
        new = [field for field in fields if field.may_be_left_out and field not in also]
        return (
            new if len(also) + len(new) <= _MOST_LEFT_OUT else [],
            any(field.shown in _ELSEWHERE for field in fields),
        )

    def asks_for(self, body: Mapping[str, Any], path: str) -> bool:
        """Return whether a body asks for anything by the field at this path, as `RefusedField.shown` has it."""
        name, _, member = path.partition("[].")
        if member:
            return _without(body, (name, "*", member), b"") is not None
        if name == "stream_options":  # the gateway counts the tokens itself then
            return False
        value = _at(body, tuple(name.split(".")))
        return value is not None and value is not False

    def _forget(self) -> None:
        now = self._clock()
        for field, until in tuple(self.until.items()):  # large bodies are fitted in threads
            if until <= now:
                self.until.pop(field, None)


def refused_in(status: int, raw: bytes, body: Mapping[str, Any]) -> list[RefusedField]:
    """Return the fields of this body that an error in reply to it refuses; none for any other error.

    A value that no model would take (`temperature: 9`) is the caller's mistake and no refusal of the field.
    """
    if status not in _STATUSES or len(body) > _MOST_FIELDS:
        return []
    said = _Said(raw)
    if refuses_pinned_tool(body, said.text):
        return [RefusedField(("tool_choice",), PINNED)]
    if refuses_parts(body, said.text):
        return [RefusedField(("messages", "*", "content"), PARTS)]
    if nothing := nothing_said(body, said.text):
        return [RefusedField((name,), value) for name, value in nothing]
    refuses = said.code in _CODES or _REFUSES.search(said.text) is not None
    of_value = said.code == "unsupported_value" or _OF_VALUE.search(said.text) is not None
    of_effort = said.code == "invalid_value" and any("effort" in name or "verbosity" in name for name in said.params)
    if not refuses and not of_effort:
        return []
    always = _BESIDE.search(said.text) is None
    reasoning = not always and _WHILE_REASONING.search(said.text) is not None
    found: list[RefusedField] = []
    where = _IN_MESSAGE.search(said.text)
    named = (body.get("messages") or ())[int(where[1]) :][:1] if where else ()
    of_system = any(message.get("role") == "system" for message in named)
    for raw_path in _paths_in(body, raw):
        # Where a mark is refused in a turn of the system's, those of other turns are taken.
        path = (*raw_path[:2], "system", raw_path[-1]) if of_system and raw_path[:2] == ("messages", "*") else raw_path
        if all(map(_NAME.fullmatch, path)) and said.names(path):
            value = _at(body, path) if (of_value or of_effort) and "*" not in path else None
            told = b"" if value is None else orjson.dumps(value)
            beside = () if always or type(_at(body, path)) is not bool else said.flags(body, path)
            lasts = bool(always or beside) and len(told) <= _LONGEST_VALUE and said.is_about(path)
            effort = _effort(body) if reasoning and path[0] not in _THINKING and said.is_about(path) else b""
            found.append(RefusedField(path, told, lasts or bool(effort), effort, beside))
    if _NOT_BOTH.search(said.text):
        found = found[1:]  # the first may stay
    if not found and _NO_THINKING.search(said.text):
        paths = [tuple(name.split(".")) for name in _THINKING]
        found = [RefusedField(path, always=always) for path in paths if _at(body, path) is not None]
    return found


class _Said:
    """What an error body says, whatever its form: the paths that it names, its code, and its words."""

    def __init__(self, raw: bytes) -> None:
        self.params: list[str] = []
        self.code = ""
        words: list[str] = []
        try:
            self._read(orjson.loads(raw), words)
        except orjson.JSONDecodeError:
            words.append(raw.decode("utf-8", "replace"))
        self.text = "\n".join(words)[:_MOST_WORDS]
        self._named = _INSTEAD.sub("", self.text)
        for loc in _LOC_IN_WORDS.findall(self.text):
            self.params.append(".".join(part.strip(" '\"") for part in loc.split(",")))

    def _read(self, value: Any, words: list[str], depth: int = 0) -> None:
        if depth > 6:
            return
        for item in value if isinstance(value, list) else ():
            self._read(item, words, depth + 1)
        if isinstance(value, str) and depth == 0:
            words.append(value)
        for name, member in value.items() if isinstance(value, dict) else ():
            if name == "loc" and isinstance(member, list):
                self.params.append(".".join(str(part) for part in member if part != "body"))
            elif name == "param" and isinstance(member, str):
                self.params.append(_AMONG_INDEXES.sub(r".\1", member).removeprefix("body."))
            elif name == "code" and isinstance(member, str):
                self.code = member
            elif name in ("message", "msg", "detail", "error", "description", "type") and isinstance(member, str):
                words.append(member)
            elif isinstance(member, (dict, list)):
                self._read(member, words, depth + 1)

    def names(self, path: Path) -> bool:
        """Return whether the error is about the field at this path."""
        if "*" in path:
            # messages.1.content.0.cache_control, or a mark by its name alone.
            top, last = path[0], path[-1]
            if any(param.split(".")[0] == top and param.split(".")[-1] == last for param in self.params):
                return True
            at, quoted = rf"\b{top}(?:\.\d+|\[\d+\])", rf"['\"`]{last}['\"`]"
            within = rf"\b{top}(?:\.\w+|\[\d+\])+\.{last}\b|{at}.{{0,200}}{quoted}|{quoted}.{{0,80}}{at}"
            return re.search(within, self.text, re.DOTALL) is not None
        name = ".".join(path)
        if self.params:
            return name in self.params or (len(path) == 1 and self._quotes(name) and not self._names_essential())
        return self._quotes(name)

    def is_about(self, path: Path) -> bool:
        """Return whether the error's own members name the field, or name none: words may be quoted from the client."""
        return "*" in path or not any(self.params) or ".".join(path) in self.params

    def flags(self, body: Mapping[str, Any], path: Path) -> Path:
        """Return the fields of the body, of those that only are there or not, beside which the field is refused."""
        return tuple(
            name for name, word in _FLAGS.items() if path != (name,) and body.get(name) and word.search(self.text)
        )

    def _names_essential(self) -> bool:
        return any(param.split(".")[0] in ESSENTIAL for param in self.params)

    def _quotes(self, name: str) -> bool:
        """Return whether the words name the field: quoted, after a colon, or by a name that is no word of English."""
        camel = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
        if name not in self._named and camel not in self._named:
            return False
        for spelling in {re.escape(name), re.escape(camel)}:
            listed = rf"(?:supplied|parameters?|arguments?|fields?|model)s?:? (?:[\w, ]{{1,100}}, )?{spelling}(?![\w.])"
            pattern = rf"['\"`](?:body\.)?{spelling}['\"`]|(?:^|\n){spelling}: |{listed}|\binvalid {spelling}\b"
            if "_" in name or "." in name or camel == "logprobs":
                pattern += rf"|(?<![\w.]){spelling}(?![\w.]\w)(?!\w)"
            if re.search(pattern, self._named):
                return True
        return False


def _paths_in(body: Mapping[str, Any], raw: bytes) -> Iterator[Path]:
    """Yield the paths of a body that an error may name, the narrower ones first.

    Only what the error has as a word is looked for in messages, which may be many.
    """
    for name in _NESTED:
        if isinstance(inner := body.get(name), Mapping) and len(inner) <= _MOST_FIELDS:
            yield from ((name, member) for member in inner)
    for name in _LISTS:
        if isinstance(body.get(name), list):
            marks = (*_MARKS, *_OF_MESSAGES) if name in ("messages", "input") else (*_MARKS,)
            named = (mark for mark in marks if mark.encode() in raw)
            yield from ((name, "*", mark) for mark in named if _without(body, (name, "*", mark), b"") is not None)
    yield from ((name,) for name in body)


def _effort(body: Mapping[str, Any]) -> bytes:
    """Return what a body asks about the model's reasoning, as JSON."""
    return orjson.dumps(
        next((value for name in _THINKING if (value := _at(body, tuple(name.split(".")))) is not None), None)
    )


def _at(body: Mapping[str, Any], path: Path) -> Any:
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _without(body: Mapping[str, Any], path: Path, value: bytes) -> dict[str, Any] | None:
    """Return the body without what stands at a path with this value as JSON (b'': any); None if it is not there."""
    if "*" in path:
        top, name = path[0], path[-1]
        items = body.get(top)
        if len(path) > _ANYWHERE and isinstance(items, list):  # of messages of one role
            fitted = [_stripped(one, name, deep=True) or one if one.get("role") == path[2] else one for one in items]
            return None if fitted == items else {**body, top: fitted}
        stripped = _stripped(items, name, deep=name in _MARKS) if isinstance(items, list) else None
        return None if stripped is None else {**body, top: stripped}
    here = _at(body, path)
    if here is None or (value and orjson.dumps(here) != value):
        return None
    if len(path) == 1:
        gone = (path[0], *_TOGETHER.get(path[0], ()))
        return {name: member for name, member in body.items() if name not in gone}
    kept = {name: member for name, member in body[path[0]].items() if name != path[1]}
    rest = {name: member for name, member in body.items() if name != path[0]}
    return {**rest, path[0]: kept} if kept else rest


def _stripped(value: Any, name: str, *, deep: bool) -> Any:
    """Return a copy of messages or tools without the members of this name; None if there is none."""
    if isinstance(value, list):
        made = [_stripped(item, name, deep=deep) for item in value]
        return None if all(copy is None for copy in made) else [
            item if copy is None else copy for item, copy in zip(value, made, strict=True)
        ]  # fmt: skip
    if not isinstance(value, dict):
        return None
    kept = {key: member for key, member in value.items() if key != name}
    changed = len(kept) < len(value)
    for key, member in kept.items() if deep else ():
        is_calls_input = key == "input" and value.get("type") == "tool_use"
        if key not in _FREE and not is_calls_input and (copy := _stripped(member, name, deep=True)) is not None:
            kept[key], changed = copy, True
    return kept if changed else None
