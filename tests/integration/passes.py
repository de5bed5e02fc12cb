"""Random chat completions and replies, and whether they pass through a gateway unchanged.

Random requests go over sockets through a gateway process to a scripted model server that records their bytes and
answers with random replies, half of them streams. Both are made from the types of OpenAI's SDK (all fields of the
published schema, nested parts, tools, log-probabilities), plus unknown fields, texts of all planes, numbers of 64 bits.

Compared: each request's values with those the server got, with their types and the order of their members; each whole
reply's bytes; each event's bytes. The gateway may change this and nothing else:

    request   `model`; `stream_options.include_usage` of a stream; `prompt_cache_key`, which it hashes with the tenant;
              output limits above the policy's, or none where it has one; ids of tool calls beyond the 40 characters
              that OpenAI takes, and custom tools, which other servers lack (neither is sent here); white space and
              escapes of the JSON text
    reply     texts of signed or encrypted reasoning, which it seals: such a reply is compared by its values
    stream    the usage's own chunk, sent only to a client that asked for it (compared by its values), and for such a
              client `"usage":null` in the chunks that lack it; comment lines

Ids, models, times and fingerprints of replies are the server's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from tests.support.gateway import serve
from tests.support.plain_http import PlainAnswer, PlainClient, PlainReply, PlainServer
from tests.support.sdk_types import RandomValues

MOST_TOKENS: Final = 4096
"""The policy's limit of the output."""
POLICY: Final = f"""
surface: chat
match: {{models: [chat]}}
slo: {{deadline: 60s}}
holdout: 0%
tiers: [local]
route: {{classifier: none, start: {{local: otherwise}}}}
output: {{max_tokens: {MOST_TOKENS}}}
"""
ABLE: Final = {
    "capabilities": ["tools", "json", "vision", "audio", "files", "web_search", "store"],
    "service_tiers": ["flex", "priority", "other"],
}
"""What a backend of chat completions honours: every field."""
_AT_ONCE: Final = 8
_SEAL: Final = re.compile(rb"tl1\.[0-9a-f]{8}\.[0-9a-f]{16}\.")
_UNKNOWN: Final = ("top_k", "min_p", "chat_template_kwargs", "guided_json", "x_new", "\u00fcn\u00efcode", "extra body")
_ENDS: Final = ("stop", "length", "tool_calls", "content_filter")
_TENANT: Final = b"default"


@dataclass
class Passed:
    """What was compared, and what differed: for each case its number and the first difference."""

    requests: int = 0
    same_bytes: int = 0
    """Requests that came in the very bytes of the compact JSON of what was expected."""
    whole: int = 0
    streams: int = 0
    events: int = 0
    sealed: int = 0
    """Replies and events with sealed reasoning, compared by their values."""
    refused: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Case:
    """One request, and its reply: of a stream, the data of its events, the usage's last, without `[DONE]`."""

    body: dict[str, Any]
    sent: bytes
    reply: bytes
    events: list[bytes]
    pieces: tuple[int, ...]
    got: bytes | None = None
    """What the server got."""


class Cases:
    """Make random requests and their replies."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._values = RandomValues(
            self._rng,
            named={
                "n": lambda rng: rng.randrange(1, 4),
                "max_tokens": lambda rng: rng.randrange(1, 2 * MOST_TOKENS),
                "max_completion_tokens": lambda rng: rng.randrange(1, 2 * MOST_TOKENS),
                "stop": lambda rng: rng.choice(["\n", ["a", "b\u00e9"], None]),
                "stream_options": lambda rng: rng.choice([None, {}, {"include_usage": True}, {"include_usage": False}]),
                "usage": _usage,
                "id": lambda rng: f"id_{rng.getrandbits(32):x}",  # an empty one is filled in
                "name": lambda rng: f"name_{rng.getrandbits(32):x}",  # a call without one is a failed answer
                "tool_call_id": lambda rng: f"call_{rng.getrandbits(64):x}",  # longer than OpenAI takes: shortened
                "created": lambda rng: rng.randrange(1, 1 << 31),
            },
        )

    def next(self, number: int) -> Case:
        """Return the case with this number, which its body holds as `x_case`."""
        rng, values = self._rng, self._values
        body = values.object_of(CompletionCreateParamsNonStreaming)
        while b'"custom"' in orjson.dumps(body):
            body = values.object_of(CompletionCreateParamsNonStreaming)
        body |= {"model": "chat", "messages": body["messages"] or [{"role": "user", "content": values.text()}]}
        body.pop("stream", None)
        if streamed := rng.random() < 0.5:
            body["stream"] = True
        else:
            body.pop("stream_options", None)
        body |= {name: values.json(4) for name in _UNKNOWN if rng.random() < 0.2}
        body["x_case"] = number
        names = list(body)
        rng.shuffle(names)
        body = {name: body[name] for name in names}
        sent = (
            orjson.dumps(body)
            if rng.random() < 0.5
            else json.dumps(body, ensure_ascii=rng.random() < 0.5, indent=1).encode()
        )
        if streamed:
            events = self._events(body)
            whole = b"".join(b"data: %b\n\n" % event for event in [*events, b"[DONE]"])
            pieces = tuple(sorted(rng.randrange(len(whole)) for _ in range(rng.randrange(4))))
            return Case(body, sent, whole, events, pieces)
        return Case(body, sent, self._encoded(self._completion(body)), [], ())

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        rng, values = self._rng, self._values
        completion = values.object_of(ChatCompletion)
        completion |= {"id": f"chatcmpl-{rng.getrandbits(64):x}", "model": "small-2026", "object": "chat.completion"}
        completion["choices"] = []
        for index in range(body.get("n") or 1):
            message = values.of(ChatCompletionMessage, 5) | self._signed()
            message |= {"role": "assistant", "content": rng.choice([None, values.text()]), "refusal": None}
            choice = {"index": index, "message": message, "finish_reason": self._end(message), "logprobs": None}
            if body.get("logprobs"):
                choice["logprobs"] = values.of(ChoiceLogprobs, 4)
            completion["choices"].append(choice | self._unknown())
        return completion | self._unknown()

    def _end(self, message: dict[str, Any], calls: bool = False) -> str:
        """Return how an answer ends: a finish reason that does not fit its calls would be brought into form."""
        tools = calls or bool(message.get("tool_calls"))
        unfit = {"stop"} if tools else {"stop", "tool_calls"} if message.get("function_call") else {"tool_calls"}
        return self._rng.choice([end for end in _ENDS if end not in unfit])

    def _events(self, body: dict[str, Any]) -> list[bytes]:
        """Return the data of a stream's events: each choice's deltas in turn, their ends, and the usage."""
        rng, values = self._rng, self._values
        head = {"id": f"chatcmpl-{rng.getrandbits(64):x}", "object": "chat.completion.chunk", "created": 1_790_000_000}
        head |= {"model": "small-2026"} | self._unknown()
        choices = range(body.get("n") or 1)
        deltas: list[tuple[int, dict[str, Any]]] = [(index, {"role": "assistant", "content": ""}) for index in choices]
        begun: set[int] = set()
        for _ in range(rng.randrange(8)):
            index = rng.choice(choices)
            delta: dict[str, Any] = {"content": f"{values.text()} {rng.getrandbits(40):x} "}
            if rng.random() < 0.2:
                delta = {"reasoning_content": values.text()} | self._signed()
            elif rng.random() < 0.2:
                function = {"arguments": values.text()} | ({} if index in begun else {"name": "look"})
                call = {"index": 0} | ({} if index in begun else {"id": f"call_{index}", "type": "function"})
                call |= {"function": function}
                begun.add(index)  # said once: an id or a name that comes again is left out
                delta = {"tool_calls": [call | self._unknown()]}
            deltas.append((index, delta | self._unknown()))
        usage = {"usage": None} if rng.random() < 0.5 else {}
        events = []
        for index, delta in deltas:
            choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": None}
            if body.get("logprobs"):
                choice["logprobs"] = values.of(ChoiceLogprobs, 3)
            events.append({**head, "choices": [choice | self._unknown()], **usage})
        events += [
            {
                **head,
                "choices": [{"index": index, "delta": {}, "finish_reason": self._end({}, index in begun)}],
                **usage,
            }
            for index in choices
        ]
        events.append({**head, "choices": [], "usage": _usage(rng)})
        return [self._encoded(event, one_line=True) for event in events]

    def _unknown(self) -> dict[str, Any]:
        return {"x_unknown \u00fc": self._values.json(3)} if self._rng.random() < 0.2 else {}

    def _signed(self) -> dict[str, Any]:
        """Return members that hold reasoning which only its maker can read, now and then."""
        if self._rng.random() > 0.1:
            return {}
        detail = {"type": "reasoning.encrypted", "data": f"secret{self._rng.getrandbits(64):x}", "index": 0}
        return {"reasoning_details": [detail]}

    def _encoded(self, value: dict[str, Any], *, one_line: bool = False) -> bytes:
        rng = self._rng
        if rng.random() < 0.5:
            return orjson.dumps(value)
        indent = None if one_line or rng.random() < 0.5 else 2
        return json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=indent).encode()


def _usage(rng: random.Random) -> dict[str, Any]:
    tokens = rng.randrange(1, 1000), rng.randrange(1, 1000)
    return {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens), "x_unknown": [1]}


def expected(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body that the server is to get for a client's."""
    wanted = dict(body)
    limits = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    wanted |= {name: min(body[name], MOST_TOKENS) for name in limits}
    if not limits:
        wanted["max_completion_tokens"] = MOST_TOKENS
    if isinstance(key := body.get("prompt_cache_key"), str):
        hashed = hashlib.sha256(b"%d:%b%b" % (len(_TENANT), _TENANT, key.encode())).hexdigest()
        wanted["prompt_cache_key"] = f"tl-{hashed[:32]}"
    wanted["model"] = "small"
    if body.get("stream"):
        wanted["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    return wanted


def compare(case: Case, answer: PlainAnswer, passed: Passed) -> None:
    """Compare what the server and the client got with what the other side sent."""
    number = case.body["x_case"]
    if answer.status != 200:
        passed.refused[answer.body[:300].decode(errors="replace")] += 1
        return
    passed.requests += 1
    wanted, got = orjson.dumps(expected(case.body)), case.got or b"null"
    passed.same_bytes += got == wanted
    if _exact(got) != _exact(wanted):
        passed.different.append(f"{number}: request: {_first(wanted, got)}")
    if not case.events:
        passed.whole += 1
        _compare_data(case.reply, answer.body, f"{number}: reply", passed)
        return
    passed.streams += 1
    *events, after = answer.body.split(b"\n\n")
    lines = [line for event in events for line in event.split(b"\n")]
    data = [line.removeprefix(b"data: ") for line in lines if not line.startswith(b":")]
    asked = (case.body.get("stream_options") or {}).get("include_usage")
    count = len(case.events) + (1 if asked else 0)
    if after or len(data) != count or data[-1] != b"[DONE]":
        passed.different.append(f"{number}: {len(data)} events, not {count}, the last {data[-1][:200]!r}")
        return
    for sent, came in zip(case.events[:-1], data, strict=False):
        passed.events += 1
        lacks_usage = asked and "usage" not in orjson.loads(sent)
        wanted = sent[:-1] + b',"usage":null}' if lacks_usage else sent
        _compare_data(wanted, came, f"{number}: event", passed)
    if asked and orjson.loads(data[-2]) != orjson.loads(case.events[-1]):
        passed.different.append(f"{number}: usage: {_first(case.events[-1], data[-2])}")


def _compare_data(sent: bytes, got: bytes, place: str, passed: Passed) -> None:
    plain, seals = _SEAL.subn(b"", got)
    passed.sealed += seals > 0
    if plain != sent and not (seals and _exact(plain) == _exact(sent)):
        passed.different.append(f"{place}: {_first(sent, plain)}")


def _exact(raw: bytes) -> str:
    """Return a form of a JSON text that shows the order of members, and tells 1 from 1.0 and from true."""
    return repr(json.loads(raw))


def _first(wanted: bytes, got: bytes) -> str:
    """Return where two texts first differ."""
    place = next((i for i, (one, other) in enumerate(zip(wanted, got, strict=False)) if one != other), -1)
    begin = max(0, place - 40)
    return f"at {place}: wanted {wanted[begin : place + 60]!r}, got {got[begin : place + 60]!r}"


def run(requests: int, seed: int, folder: Path) -> Passed:
    """Send so many random requests through a gateway, and compare."""
    passed = Passed()
    cases: dict[int, Case] = {}

    def reply(path: str, raw: bytes) -> PlainReply:
        case = cases[orjson.loads(raw)["x_case"]]
        case.got = raw
        return PlainReply(case.reply, events=bool(case.events), pieces=case.pieces)

    with PlainServer(reply) as server:
        backend = {"base_url": server.url, "model": "small", "roles": "any", **ABLE}
        settings = {"tiers": [{"name": "local", "backends": [backend]}]}
        with serve(folder, server.url, policies={"chat": POLICY}, settings=settings) as gateway:
            asyncio.run(_send_all(requests, Cases(seed), cases, gateway.port, passed))
            if (log := gateway.log()) and "Traceback" in log:
                passed.different.append(log[log.index("Traceback") :][:2000])
    return passed


async def _send_all(requests: int, made: Cases, cases: dict[int, Case], port: int, passed: Passed) -> None:
    numbers = iter(range(requests))

    async def client() -> None:
        connection = PlainClient(port)
        for number in numbers:
            case = cases[number] = made.next(number)
            compare(case, await connection.ask("/v1/chat/completions", case.sent), passed)
            del cases[number]
        connection.close()

    await asyncio.gather(*(client() for _ in range(_AT_ONCE)))
