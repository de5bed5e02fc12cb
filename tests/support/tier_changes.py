"""Conversations whose tier changes from turn to turn, over model servers as strict as the providers.

    with World() as world:                                     # six servers, each behind a tier of its own
        write_deployment(folder, world.deployment(store.url), world.policies())
        ...                                                    # a gateway over them, and an httpx2.AsyncClient of it
        outcome = await Conversation(world, client, "messages", seed=7).run()
        assert outcome.wrong == []

Each user message and tool result ends with a mark, `[q:KEY|calls|thoughts|down|unsure]`: what the model is to say next,
the tiers that are down for it, and those that draft it without being sure. The servers read the last mark of a request,
so that they need no script and any number of conversations can run at once. `World.made` has what each said.

A client sends back exactly what it was given. After each reply a conversation compares what it sent, what the server
got and what `x-tierline-dropped` says.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal

import httpx2
import yaml
from openai.lib.streaming._deltas import accumulate_delta

from tests.support import strict_messages
from tests.support.connection import Received
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_chat import Say, StrictChat
from tests.support.strict_messages import Block, StrictMessages
from tests.support.upstream import Reply, ToolCall, Upstream, error_reply

Json = dict[str, Any]
Dialect = Literal["chat", "responses", "responses-kept", "messages"]
DIALECTS: Final[tuple[Dialect, ...]] = ("chat", "responses", "responses-kept", "messages")
TIERS: Final = ("local", "details", "blocks", "google", "responses", "claude", "opus")
"""From the weakest: open models, three forms of chat completions, the Responses API, two models of Anthropic's."""
MIXED, STICKY = "chat", "sticky"
"""Surfaces: one starts anywhere, by the length of the conversation; the other where the reasoning was made."""
_STRONG: Final = "responses"
"""The tier of `sticky` that is not its first."""
_MARK = re.compile(r"\[q:([^|\]]+)\|(\d+)\|(\d+)\|([a-z,]*)\|([a-z,]*)\]")
_CARRIER = re.compile(r"tlr1\.([A-Za-z0-9_=-]+)")
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
_PARAMETERS: Json = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
_LEAST_TURNS, _MOST_TURNS = 2, 20
_MOST_STEPS = 3
"""Most requests of one turn: a question, and rounds of tool results."""


@dataclass(frozen=True)
class Thought:
    """One piece of reasoning: its readable text, and the signature by which its maker knows it, '' if it has none."""

    tier: str
    text: str
    signature: str


@dataclass(frozen=True)
class Made:
    """What a server said in one reply."""

    text: str
    calls: tuple[ToolCall, ...]
    thoughts: tuple[Thought, ...]
    received: str
    """The request's body, as it came."""


class World:
    """The servers, by tier; what they said, by tier and key."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, str], Made] = {}
        self.servers: dict[str, Upstream] = {
            "local": _ChatModel(self, "local", StrictChat("plain", reasons=False)),
            "details": _ChatModel(self, "details", StrictChat("details")),
            "blocks": _ChatModel(self, "blocks", StrictChat("blocks")),
            "google": _ChatModel(self, "google", StrictChat("google", reasons=False)),
            "responses": _ResponsesModel(self, "responses"),
            "claude": _ClaudeModel(self, "claude"),
            "opus": _ClaudeModel(self, "opus"),
        }
        self._stack = ExitStack()

    def __enter__(self) -> World:
        for server in self.servers.values():
            self._stack.enter_context(server)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def refusals(self) -> list[str]:
        """What the servers have refused, with the tier's name."""
        return [f"{tier}: {why}" for tier, server in self.servers.items() for why in _refusals(server)]

    def deployment(self, store_url: str) -> Json:
        """The config of a gateway over the servers."""
        return {
            "tiers": [{"name": tier, "backends": [self._backend(tier)]} for tier in TIERS],
            "store": {"url": store_url},
            "cross_encoder": "none",
        }

    def _backend(self, tier: str) -> Json:
        backend: Json = {
            "base_url": self.servers[tier].url,
            "model": _MODELS[tier],
            "capabilities": ["tools", "json", "vision"],
        }
        if tier == "responses":
            backend["kind"] = "responses"
        elif tier in ("claude", "opus"):
            backend |= {"kind": "anthropic", "key_env": "CLAUDE_KEY"}
        elif tier in ("details", "blocks"):
            backend |= {"rename": {"max_tokens": "max_completion_tokens"}, "logprobs": False}
        else:
            backend["rename"] = {"max_completion_tokens": "max_tokens"}
        return backend

    def policies(self) -> dict[str, str]:
        """The policies of both surfaces."""
        common: Json = {
            "slo": {"deadline": "60s"},
            "holdout": "0%",
            "escalate": {
                "when": {"confidence_below": 0.5},
                "no_signal": "accept",
                "stream": {"hold_tokens": 4, "hold_max": "5s"},
            },
            "state": {"responses": "1h"},
        }
        # By the length, which grows from turn to turn.
        start = {tier: f"tokens_in < {40 * (at + 1)}" for at, tier in enumerate(TIERS[:-1])} | {TIERS[-1]: "otherwise"}
        mixed = {"tiers": list(TIERS), "route": {"classifier": "none", "start": start}}
        stays = {"local": "not reasoning_above", _STRONG: "otherwise"}
        sticky = {"tiers": ["local", _STRONG], "route": {"classifier": "none", "start": stays}}
        made = {MIXED: mixed, STICKY: sticky}
        return {
            name: yaml.safe_dump({"surface": name, "match": {"models": [name]}} | rules | common, sort_keys=False)
            for name, rules in made.items()
        }

    def plan(self, body: Json) -> _Mark:
        """What the last mark of a request asks for."""
        return _Mark.last_of(json.dumps(body))

    def say(self, tier: str, body: Json) -> tuple[_Mark, Say]:
        """What a tier's model is to say to a request."""
        mark = self.plan(body)
        calls = tuple(
            ToolCall(
                "look" if at % 2 else "find", json.dumps({"key": f"{mark.key}.{at}"}), _call_id(tier, mark.key, at)
            )
            for at in range(mark.calls)
        )
        text = "" if calls and len(mark.key) % 2 else f"Answer to {mark.key}."
        thoughts = tuple(f"I think of {mark.key}.{tier}.{at}; well." for at in range(mark.thoughts))
        return mark, Say(text, calls, thoughts, unsure=tier in mark.unsure)


_MODELS: Final = {
    "local": "open-8b",
    "details": "vendor/large",
    "blocks": "proxy-large",
    "google": "gemini-3-pro",
    "responses": "gpt-5.6",
    "claude": "claude-sonnet-4-5",
    "opus": "claude-opus-4-8",
}


@dataclass(frozen=True)
class _Mark:
    key: str
    calls: int
    thoughts: int
    down: tuple[str, ...]
    unsure: tuple[str, ...]

    def __str__(self) -> str:
        return f"[q:{self.key}|{self.calls}|{self.thoughts}|{','.join(self.down)}|{','.join(self.unsure)}]"

    @classmethod
    def last_of(cls, text: str) -> _Mark:
        key, calls, thoughts, down, unsure = _MARK.findall(text)[-1]
        return cls(key, int(calls), int(thoughts), tuple(down.split(",")), tuple(unsure.split(",")))


def _call_id(tier: str, key: str, at: int) -> str:
    """An id of a call, as servers of this kind make them: some are long, some have dots, and some come again."""
    if tier == "local":
        kind = sum(map(ord, key)) % 3
        return (f"functions.look:{at}", f"chatcmpl-tool-{key:0>32}{at}", f"{at}call{key}".replace(".", "x"))[kind]
    named = f"{key}x{at}".replace(".", "x")
    return {"google": f"function-call-{named}", "claude": f"toolu_{named}", "opus": f"toolu_{named}"}.get(
        tier, f"call_{tier}_{named}"
    )


def _refusals(server: Upstream) -> list[str]:
    if isinstance(server, ResponsesUpstream):
        return [str(one["message"]) for one in server.refused]
    inner = server.model if isinstance(server, _ChatModel) else server
    assert isinstance(inner, StrictChat | StrictMessages)
    return inner.refusals


def _down(world: World, tier: str, request: Received) -> Reply | None:
    """An error, if the tier is down for this request."""
    if request.method == "POST" and isinstance(request.body, dict) and tier in world.plan(request.body).down:
        return error_reply(503)
    return None


class _ChatModel(Upstream):
    """A StrictChat that follows the marks."""

    def __init__(self, world: World, tier: str, model: StrictChat) -> None:
        super().__init__()
        self.model = model
        self._world, self._tier = world, tier
        model.say = self._say

    def reply_to(self, request: Received) -> Reply:
        return _down(self._world, self._tier, request) or self.model.reply_to(request)

    def _say(self, body: Json) -> Say:
        mark, say = self._world.say(self._tier, body)
        model = self.model
        thoughts = tuple(
            Thought(self._tier, one, "" if model.form == "plain" else model.signature(one))
            for one in (() if model.form == "google" else say.thoughts)
        )
        if model.form == "google" and say.calls:
            thoughts = (Thought(self._tier, "", model.signature(say.calls[0].id)),)
        self._world.made[self._tier, mark.key] = Made(say.text, say.calls, thoughts, json.dumps(body))
        return say


class _ResponsesModel(ResponsesUpstream):
    """A ResponsesUpstream that follows the marks."""

    def __init__(self, world: World, tier: str) -> None:
        super().__init__(refuses=("temperature", "top_p"))
        self._world, self._tier = world, tier

    def reply_to(self, request: Received) -> Reply:
        return _down(self._world, self._tier, request) or super().reply_to(request)

    def _rendered(self, reply: Reply, body: Json) -> Reply:
        _, say = self._world.say(self._tier, body)
        extra: Json = {"said": True} if say.text else {}
        if say.thoughts:
            extra["thinks"] = say.thoughts[0]
        return super()._rendered(
            Reply(text=say.text, tool_calls=say.calls, extra=extra, logprob=-3.0 if say.unsure else -0.01), body
        )

    def response(self, reply: Reply, body: Json) -> Json:
        response = super().response(reply, body)
        mark, say = self._world.say(self._tier, body)
        thoughts = tuple(
            Thought(self._tier, item["summary"][0]["text"], item["encrypted_content"][4:68])
            for item in response["output"]
            if item["type"] == "reasoning"
        )
        self._world.made[self._tier, mark.key] = Made(say.text, say.calls, thoughts, json.dumps(body))
        return response


class _ClaudeModel(StrictMessages):
    """A StrictMessages that follows the marks: it thinks if it is asked to, and encrypts every other thought."""

    def __init__(self, world: World, tier: str) -> None:
        super().__init__(secret=tier)
        self._world, self._tier = world, tier

    def reply_to(self, request: Received) -> Reply:
        return _down(self._world, self._tier, request) or super().reply_to(request)

    def _message(self, body: Json) -> Json:
        mark, say = self._world.say(self._tier, body)
        thinks = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        blocks: list[Block] = []
        for at, one in enumerate(say.thoughts if thinks else ()):
            blocks.append(strict_messages.redacted(one) if at % 2 else strict_messages.thinking(one))
        if say.text:
            blocks.append(strict_messages.text(say.text))
        blocks += [strict_messages.tool_use(one.name, json.loads(one.arguments), one.id) for one in say.calls]
        self._script = deque([(blocks, None, {})])
        message = super()._message(body)
        thoughts = tuple(
            Thought(self._tier, block["thinking"], block["signature"])
            if block["type"] == "thinking"
            else Thought(self._tier, "", block["data"].rpartition(".")[2])
            for block in message["content"]
            if block["type"] in ("thinking", "redacted_thinking")
        )
        self._world.made[self._tier, mark.key] = Made(say.text, say.calls, thoughts, json.dumps(body))
        return message


# --- clients ----------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """A reply as its client read it: its text and calls, and all of it as given."""

    text: str
    calls: list[tuple[str, str, Json]]
    """Ids, names and arguments."""
    given: Any


class _Client:
    """What a client of one dialect sends and reads. `sent` are all bodies of the conversation that count as history."""

    path = ""
    headers: Mapping[str, str] = MappingProxyType({})

    def ask(self, text: str, image: bool) -> None:
        raise NotImplementedError

    def results(self, results: list[tuple[str, str]]) -> None:
        raise NotImplementedError

    def body(self, model: str, stream: bool, limit: int | None) -> Json:
        raise NotImplementedError

    def read(self, reply: str, stream: bool) -> Answer:
        raise NotImplementedError


class _ChatClient(_Client):
    path = "/chat/completions"

    def __init__(self, *, terse: bool) -> None:
        """Prepare the client; a `terse` one leaves out members that are null, as the SDK's `exclude_none` does."""
        self._terse = terse
        self.messages: list[Json] = [{"role": "system", "content": "You find things."}]

    def ask(self, text: str, image: bool) -> None:
        content: Any = text
        if image:
            url = {"url": f"data:image/png;base64,{_PIXEL}"}
            content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": url}]
        self.messages.append({"role": "user", "content": content})

    def results(self, results: list[tuple[str, str]]) -> None:
        self.messages += [{"role": "tool", "tool_call_id": ident, "content": text} for ident, text in results]

    def body(self, model: str, stream: bool, limit: int | None) -> Json:
        tools = [{"type": "function", "function": {"name": name, "parameters": _PARAMETERS}} for name in _TOOLS]
        body: Json = {"model": model, "messages": self.messages, "tools": tools, "reasoning_effort": "medium"}
        if limit is not None:
            body["max_tokens" if limit % 2 else "max_completion_tokens"] = limit
        return body | ({"stream": True} if stream else {})

    def read(self, reply: str, stream: bool) -> Answer:
        if not stream:
            message = json.loads(reply)["choices"][0]["message"]
        else:
            message, blocks = {}, []
            data = [line[6:] for line in reply.splitlines() if line.startswith("data: ")]
            assert data.pop() == "[DONE]", "the stream has no end"
            for chunk in map(json.loads, data):
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    delta = choice["delta"]
                    blocks += delta.pop("thinking_blocks", ())
                    message = accumulate_delta(message, delta)
            if blocks:
                message["thinking_blocks"] = _joined_thinking(blocks)
        if self._terse:
            message = {name: value for name, value in message.items() if value is not None}
        self.messages.append(message)
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        return Answer(message.get("content") or "", calls, message)


def _joined_thinking(pieces: list[Json]) -> list[Json]:
    """The blocks of a stream's pieces, joined as LiteLLM's client does, as they have no index: a signature ends one."""
    blocks: list[Json] = []
    text = ""
    for piece in pieces:
        text += piece["thinking"]
        if piece["signature"]:
            blocks.append({"type": "thinking", "thinking": text, "signature": piece["signature"]})
            text = ""
    return blocks


class _ResponsesClient(_Client):
    path = "/responses"

    def __init__(self, *, kept: bool) -> None:
        self.items: list[Json] = []
        self.previous: str | None = None
        self._kept = kept

    def ask(self, text: str, image: bool) -> None:
        parts: list[Json] = [{"type": "input_text", "text": text}]
        if image:
            parts.append({"type": "input_image", "image_url": f"data:image/png;base64,{_PIXEL}", "detail": "auto"})
        self.items.append({"role": "user", "content": parts if image else text})

    def results(self, results: list[tuple[str, str]]) -> None:
        self.items += [{"type": "function_call_output", "call_id": ident, "output": text} for ident, text in results]

    def body(self, model: str, stream: bool, limit: int | None) -> Json:
        tools = [{"type": "function", "name": name, "parameters": _PARAMETERS, "strict": False} for name in _TOOLS]
        body: Json = {
            "model": model,
            "instructions": "You find things.",
            "input": self.items,
            "tools": tools,
            "reasoning": {"effort": "medium", "summary": "auto"},
        }
        if self._kept:
            if self.previous is not None:
                body["previous_response_id"] = self.previous
        else:
            body |= {"store": False, "include": ["reasoning.encrypted_content"]}
        if limit is not None:
            body["max_output_tokens"] = limit
        return body | ({"stream": True} if stream else {})

    def read(self, reply: str, stream: bool) -> Answer:
        if stream:
            events = [json.loads(line[6:]) for line in reply.splitlines() if line.startswith("data: {")]
            assert events[-1]["type"] == "response.completed", events[-1]
            response = events[-1]["response"]
        else:
            response = json.loads(reply)
        output = response["output"]
        if self._kept:
            self.previous, self.items = response["id"], []
        else:
            self.items = [*self.items, *output]
        text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
        calls = [
            (item["call_id"], item["name"], json.loads(item["arguments"]))
            for item in output
            if item["type"] == "function_call"
        ]
        return Answer(text, calls, output)


class _MessagesClient(_Client):
    path = "/messages"
    headers = MappingProxyType({"anthropic-version": "2023-06-01"})

    def __init__(self, *, adaptive: bool) -> None:
        self.messages: list[Json] = []
        self._thinking: Json = {"type": "adaptive"} if adaptive else {"type": "enabled", "budget_tokens": 1500}

    def ask(self, text: str, image: bool) -> None:
        content: Any = text
        if image:
            source = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
            content = [{"type": "image", "source": source}, {"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": content})

    def results(self, results: list[tuple[str, str]]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": ident, "content": text} for ident, text in results]
        self.messages.append({"role": "user", "content": blocks})

    def body(self, model: str, stream: bool, limit: int | None) -> Json:
        tools = [{"name": name, "input_schema": _PARAMETERS} for name in _TOOLS]
        body = {
            "model": model,
            "system": "You find things.",
            "messages": self.messages,
            "tools": tools,
            "max_tokens": limit or 4000,
            "thinking": self._thinking,
        }
        return body | ({"stream": True} if stream else {})

    def read(self, reply: str, stream: bool) -> Answer:
        content = _joined_blocks(reply) if stream else json.loads(reply)["content"]
        self.messages.append({"role": "assistant", "content": content})
        text = "".join(block["text"] for block in content if block["type"] == "text")
        calls = [(block["id"], block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
        return Answer(text, calls, content)


def _joined_blocks(reply: str) -> list[Json]:
    """The content of a streamed message, put together as Anthropic's SDK does."""
    content: list[Json] = []
    arguments: dict[int, str] = {}
    kind = ""
    for line in reply.splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line[6:])
        kind = event["type"]
        assert kind != "error", event
        if kind == "content_block_start":
            assert event["index"] == len(content)
            content.append(event["content_block"])
        elif kind == "content_block_delta":
            block, delta = content[event["index"]], event["delta"]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                block["thinking"] += delta["thinking"]
            elif delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            elif delta["type"] == "input_json_delta":
                arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
    assert kind == "message_stop", f"the stream ends with {kind}"
    for index, text in arguments.items():
        if text:
            content[index]["input"] = json.loads(text)
    return content


_TOOLS: Final = ("find", "look")


def _client_of(dialect: Dialect, rng: random.Random) -> _Client:
    if dialect == "chat":
        return _ChatClient(terse=rng.random() < 0.5)
    if dialect == "messages":
        return _MessagesClient(adaptive=rng.random() < 0.3)
    return _ResponsesClient(kept=dialect == "responses-kept")


# --- one conversation -------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of one conversation, by tier that answered."""

    dialect: Dialect
    turns: int = 0
    replies: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    """Replies that came from another tier than the one before."""
    refused: int = 0
    """Replies of status 400."""
    own: dict[str, int] = field(default_factory=dict)
    """Pieces of signed reasoning that went back to their maker, of ..."""
    own_due: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    """Replies before which reasoning was removed, of which ..."""
    told: dict[str, int] = field(default_factory=dict)
    """... x-tierline-dropped says so."""
    lost: dict[str, int] = field(default_factory=dict)
    """Pieces of reasoning that were removed."""
    stays: list[bool] = field(default_factory=list)
    """Whether each request to `sticky` started where its latest reasoning was made."""
    wrong: list[str] = field(default_factory=list)
    """What was not as it should be."""


class Conversation:
    """One conversation; `seed` decides all of it."""

    def __init__(self, world: World, http: httpx2.AsyncClient, dialect: Dialect, seed: int) -> None:
        self._world, self._http = world, http
        self._rng = random.Random(seed)
        self._name = f"{seed}"
        self._client = _client_of(dialect, self._rng)
        self._thoughts: list[Thought] = []
        """All reasoning of the replies so far."""
        self._kept = dialect == "responses-kept"
        self._count = 0
        self._surface = STICKY if self._rng.random() < 0.25 else MIXED
        self._last = ""
        self._sure = True
        """Whether the latest draft of the first tier was served: nothing else can change the tier of `sticky`."""
        self.outcome = Outcome(dialect)

    async def run(self, most: int = _MOST_TURNS) -> Outcome:
        """Hold the conversation; it ends early where something is wrong."""
        for _ in range(self._rng.randint(_LEAST_TURNS, most)):
            mark = self._mark(first=True)
            self._client.ask(f"Question {mark.key}: what is it? {mark}", self._rng.random() < 0.1)
            for step in range(_MOST_STEPS):
                answer = await self._exchange(mark)
                if answer is None:
                    return self.outcome
                if not answer.calls:
                    break
                marks = [self._mark(first=False, last=step == _MOST_STEPS - 2) for _ in answer.calls]
                mark = marks[-1]
                results = [(call[0], f"Result {one.key}. {one}") for call, one in zip(answer.calls, marks, strict=True)]
                self._client.results(results)
            self.outcome.turns += 1
        return self.outcome

    def _mark(self, *, first: bool, last: bool = False) -> _Mark:
        rng = self._rng
        self._count += 1
        calls = 0 if last else rng.choice((0, 0, 1, 1, 2) if first else (0, 0, 1, 2))
        ladder = ("local", _STRONG) if self._surface == STICKY else TIERS
        down = tuple(rng.sample(ladder, min(rng.randint(1, 2), len(ladder) - 1))) if rng.random() < 0.15 else ()
        unsure = ("local", "responses") if rng.random() < 0.3 else ()
        key = f"{self._name}.{self._count}{'x' if rng.random() < 0.5 else ''}"
        return _Mark(key, calls, rng.choice((0, 1, 1, 2)), down, unsure)

    async def _exchange(self, mark: _Mark) -> Answer | None:
        rng, outcome = self._rng, self.outcome
        pinned = rng.random() < (0.3 if self._surface == STICKY else 0.6)
        tier = rng.choice(("local", _STRONG) if self._surface == STICKY else TIERS)
        model = f"tier:{tier}" if pinned else self._surface
        stream = rng.random() < 0.5
        limit = rng.choice((None, 3001, 5000))
        body = self._client.body(model, stream, limit)
        headers = {"authorization": "Bearer any", "x-tierline-surface": self._surface, **self._client.headers}
        if pinned:
            mark = self._undone(mark, tier, body)
        where = f"{outcome.dialect} {mark.key} to {model}{', streamed' if stream else ''}"
        sent = "" if self._kept else _expanded(json.dumps(body))
        reply = await self._http.post(
            f"/v1{self._client.path}", content=json.dumps(body), headers={"content-type": "application/json", **headers}
        )
        if reply.status_code != 200:
            outcome.refused += reply.status_code == 400
            outcome.wrong.append(f"{where}: {reply.status_code} {reply.text[:300]}")
            return None
        served = reply.headers["x-tierline-tier"]
        where += f" by {served}"
        try:
            answer = self._client.read(reply.text, stream)
        except (AssertionError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            outcome.wrong.append(f"{where}: unreadable: {type(error).__name__} {str(error)[:300]}")
            return None
        made = self._world.made[served, mark.key]
        outcome.replies[served] = outcome.replies.get(served, 0) + 1
        outcome.changes += bool(self._last) and served != self._last
        self._last = served
        self._compare_reasoning(where, served, sent, made, reply.headers.get("x-tierline-dropped", ""))
        if not pinned and self._surface == STICKY and not mark.down:
            signed = [one.tier for one in self._thoughts if one.signature]
            stays = signed[-1:] == [_STRONG]
            started = served == _STRONG if stays else served == "local" or "local" in mark.unsure
            outcome.stays.append(started)
            if not started:
                outcome.wrong.append(f"{where}: its latest reasoning is of {signed[-1:]}")
        self._compare_text(where, sent, made, answer)
        self._thoughts += made.thoughts
        if not self._kept:
            given = _expanded(json.dumps(answer.given))
            missing = [one for one in made.thoughts if one.signature not in given]
            if missing:
                outcome.wrong.append(f"{where}: not handed out: {missing}")
        return answer if not outcome.wrong else None

    def _undone(self, mark: _Mark, tier: str, body: Json) -> _Mark:
        """Return the mark without `tier` among those that are down, as no other may answer; and change the body."""
        if tier not in mark.down:
            return mark
        changed = _Mark(mark.key, mark.calls, mark.thoughts, (), mark.unsure)
        _replace(body, str(mark), str(changed))
        return changed

    def _compare_reasoning(self, where: str, served: str, sent: str, made: Made, dropped: str) -> None:
        outcome = self.outcome
        given = self._thoughts if self._kept else [one for one in self._thoughts if one.signature in sent]
        got = made.received
        own = [one for one in self._thoughts if one.tier == served and one.signature]
        back = [one for one in own if one.signature in got]
        outcome.own[served] = outcome.own.get(served, 0) + len(back)
        outcome.own_due[served] = outcome.own_due.get(served, 0) + len(own)
        if len(back) < len(own):
            outcome.wrong.append(f"{where}: {len(own) - len(back)} of its own {len(own)} did not come back")
        lost = [
            one
            for one in given
            if one.signature not in got or (one.text not in got and (self._kept or one.text in sent))
        ]
        told = "reasoning" in dropped.split(", ")
        outcome.lost[served] = outcome.lost.get(served, 0) + len(lost)
        outcome.removed[served] = outcome.removed.get(served, 0) + bool(lost)
        outcome.told[served] = outcome.told.get(served, 0) + (told and bool(lost))
        if told != bool(lost):
            outcome.wrong.append(f"{where}: {len(lost)} removed, and x-tierline-dropped says {dropped!r}: {lost[:2]}")

    def _compare_text(self, where: str, sent: str, made: Made, answer: Answer) -> None:
        if answer.text != made.text:
            self.outcome.wrong.append(f"{where}: {answer.text!r} instead of {made.text!r}")
        calls = [(call.name, json.loads(call.arguments)) for call in made.calls]
        if [(name, arguments) for _, name, arguments in answer.calls] != calls:
            self.outcome.wrong.append(f"{where}: {answer.calls} instead of {calls}")
        marks = [mark[0] for mark in _MARK.findall(made.received)]
        if len(marks) != self._count:
            self.outcome.wrong.append(f"{where}: {len(marks)} of {self._count} questions and results arrived")
        if any(one not in made.received for one in re.findall(r"Answer to [^\"\\]+\.", sent)):
            self.outcome.wrong.append(f"{where}: not all answers arrived")


def _replace(value: Any, old: str, new: str) -> None:
    """Replace a text in all strings of a JSON value, in place."""
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        members = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    for name, member in members:
        if isinstance(member, str):
            value[name] = member.replace(old, new)
        else:
            _replace(member, old, new)


def _expanded(text: str) -> str:
    """Return a JSON text with the reasoning that items of the Responses API carry in base64 written out behind it."""
    carried = [base64.urlsafe_b64decode(one).decode() for one in _CARRIER.findall(text)]
    return "\n".join([text, *carried])
