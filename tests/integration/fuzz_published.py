"""Fuzz every path of the published documents.

OpenAI's OpenAPI document, and Anthropic's for `/v1/messages` and the models, say what can be asked and what every reply
looks like (see tests/support/published_api.py). A gateway process with a store gets requests over sockets. Behind it
scripted providers of all dialects, and a service for what is passed on, answer with random replies of the same
documents, whole or as streams. Kinds of requests:

    valid     a body of the schema, at random; multipart forms where the document says so
    broken    the same with a member at any depth removed, or replaced by any JSON value
    text      the same as JSON text that is cut, doubled or deep; huge numbers, duplicate names, lone surrogates, bytes
              that are no UTF-8, other encodings
    other     another JSON value or nothing in place of the body
    media     a wrong, missing or coded content type
    method    a method that the path does not have
    path      ids, segments and queries of all sorts, paths that are not served

A tenth of all also have strange headers. The providers refuse nothing; so what a response repeats of a request that is
valid is not looked at. Held against the gateway:

    no status of 500 or more, no traceback in its log, a reply to every request
    every reply, and every event of a stream, is valid by the document's schema of its path
    every error has the document's envelope: OpenAI's, or Anthropic's below /v1/messages and with `anthropic-version`

A 503 of a gateway, or its store, that is late on a busy machine is asked again.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from tests.gateway.dialects.fields import OUT
from tests.gateway.http.fuzz import NAMED, broken
from tests.support.gateway import Gateway, serve
from tests.support.plain_http import PlainAnswer, PlainClient, PlainReply, PlainServer
from tests.support.published_api import PublishedOperation, published
from tests.support.random_replies import RandomReplies
from tests.support.schema_values import SchemaValues
from tests.support.store import local_store

Json = dict[str, Any]

FAMILIES: Final = (
    *("chat", "completions", "responses", "embeddings", "models", "moderations", "audio", "images", "files"),
    *("uploads", "batches", "conversations", "videos"),
)
"""The paths of OpenAI's document that are fuzzed, by their first segment; the gateway does not serve all of them."""
MESSAGES: Final = ("/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/{model_id}")
"""The paths of Anthropic's document."""
KINDS: Final = {"valid": 40, "broken": 24, "text": 12, "other": 5, "media": 7, "method": 5, "path": 7}
"""The kinds of requests, and how often each comes."""
SURFACES: Final = (*OUT, "service")
_POLICY: Final = """
surface: {name}
match: {{models: [{name}]}}
tiers: [{tier}]
slo: {{deadline: 10m}}
holdout: 0%
route: {{classifier: none, start: {{{tier}: otherwise}}}}
cache: {{exact: {{ttl: 1m}}}}
endpoints:
  moderations: account
  audio: account
  images: account
  files: account
  batches: account
"""
_BY_SERVICE: Final = "  completions: account\n  embeddings: {service: account, model: embedder}\n"
_AT_ONCE: Final = 6
_RESENT: Final = 20
_LATE: Final = (b"server_is_overloaded", b"state_unavailable")
"""Codes of a gateway, or its store, that has no time on a busy machine."""
_ENVELOPE: Final = frozenset({"message", "type", "param", "code"})
_BINARY: Final = "application/octet-stream"
_REPEATED: Final[Json] = {
    **dict.fromkeys(("instructions", "temperature", "top_p")),
    **{"metadata": {}, "parallel_tool_calls": True, "tools": [], "tool_choice": "auto"},
}
"""Values for the members of a response that must be there, and that it repeats of a request."""
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND")
_MEDIA: Final = (
    *(
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=zz",
        "image/png",
        "",
        "a" * 300,
    ),
    *("application/json; charset=utf-16", "application/json; charset=latin-1", "APPLICATION/JSON", "application/xml"),
    *("application/json;;;=", "text/event-stream", "application/vnd.api+json", "json"),
)
_NUMBERS: Final = (
    b"1e999",
    b"-1e999",
    b"9" * 400,
    b"NaN",
    b"-Infinity",
    b"1E-999",
    b"-0",
    b"00",
    b"1.",
    b"0x10",
    b"5e-324",
)
_HEADERS: Final = (
    *(("x-tierline-cache", one) for one in ("no-cache", "no-store", "min-similarity=2", "max-age=x", "\xff", "," * 50)),
    *(("x-tierline-surface", one) for one in ("anthropic", "service", "no", "tier:openai", "\x7f", "a" * 500)),
    *(("x-tierline-max-tier", one) for one in ("openai", "no", "9")),
    *(("x-tierline-deadline-ms", one) for one in ("600000", "x", "1e3", "9" * 40)),
    *(("x-stainless-read-timeout", one) for one in ("600", "nan", "1e400", "NOT_GIVEN")),
    *(("x-request-id", one) for one in ("\xe9", "a" * 200, "ok-1", " ")),
    *(("authorization", one) for one in ("Bearer", "Basic eDp5", "Bearer \xff", "Bearer " + "k" * 4000)),
    *(("anthropic-beta", one) for one in ("a,b,c", "")),
    *(("accept", one) for one in ("text/html", "*/*;q=x", "")),
    *(("accept-encoding", one) for one in ("gzip, br", "identity;q=0")),
    *(("idempotency-key", one) for one in ("k1", "k" * 300)),
    *(("traceparent", one) for one in ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-zz")),
    *(("expect", one) for one in ("100-continue", "x")),
    ("openai-organization", "org"),
    ("range", "bytes=0-0"),
    ("cookie", "a=b"),
)
_SEGMENTS: Final = (
    "resp_no",
    "..",
    ".",
    "%2e%2e",
    "%2F",
    "%00",
    "a b",
    "%ff",
    "\u00e9",
    "~",
    "x" * 3000,
    "",
    "%",
    "auto",
    "{id}",
)


@dataclass
class FuzzedPublished:
    """How the requests of each kind and each path ended, and what was wrong."""

    requests: int = 0
    events: int = 0
    resent: int = 0
    """Requests that were asked again, since the gateway was late."""
    kinds: dict[str, Counter[int]] = field(default_factory=dict)
    paths: dict[str, Counter[int]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    """Why valid requests were refused: the path, the status and the beginning of the message."""
    wrong: list[str] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)
    """How many were wrong in the same way."""


@dataclass(frozen=True)
class FuzzRequest:
    """One request. `operation` is what it was made for."""

    kind: str
    publisher: str
    operation: PublishedOperation
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class FuzzRequests:
    """Make random requests."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        named = {**NAMED, "previous_response_id": self._earlier, "store": lambda rng: rng.choice([True, False, None])}
        self._values = {name: SchemaValues(rng, published(name), named=named) for name in ("openai", "anthropic")}
        self.ids: list[str] = ["resp_no"]
        """Ids of replies that were stored."""
        listed = [one for one in published("openai").operations() if one.path.split("/")[2] in FAMILIES]
        asked = [one for one in published("anthropic").operations() if one.path in MESSAGES]
        self._operations = [*(("openai", one) for one in listed), *(("anthropic", one) for one in asked)]
        weights = {"/v1/chat/completions": 8, "/v1/responses": 10, "/v1/messages": 10, "/v1/completions": 4}
        weights |= {"/v1/embeddings": 4, "/v1/messages/count_tokens": 3, "/v1/responses/input_tokens": 3}
        self._weights = [weights.get(one.path, 1) if one.method == "POST" else 1 for _, one in self._operations]

    def _earlier(self, rng: random.Random) -> str | None:
        return rng.choice([None, None, None, *self.ids[-8:]])

    def __iter__(self) -> Iterator[FuzzRequest]:
        while True:
            yield self._next()

    def _next(self) -> FuzzRequest:
        rng = self._rng
        publisher, operation = rng.choices(self._operations, self._weights)[0]
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if not operation.bodies and kind in ("broken", "text", "other", "media"):
            kind = "path"
        method = operation.method
        target = self._target(operation, odd=kind == "path")
        media, body = self._body(publisher, operation, kind)
        headers = {"anthropic-version": "2023-06-01"} if publisher == "anthropic" else {}
        if kind == "method":
            method = rng.choice(_METHODS)
        if kind == "media":
            media = rng.choice(_MEDIA)
            if rng.random() < 0.2:
                headers["content-encoding"] = rng.choice(("gzip", "br", "x", "identity"))
        if media:
            headers["content-type"] = media
        if body or method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(body))
        if not operation.path.startswith(("/v1/chat", "/v1/responses", "/v1/messages")) or rng.random() < 0.1:
            headers["x-tierline-surface"] = rng.choice((*SURFACES, "service", "service"))
        if rng.random() < 0.1:
            headers |= dict(rng.choices(_HEADERS, k=rng.randrange(1, 4)))
        return FuzzRequest(kind, publisher, operation, method, target, headers, body)

    def _target(self, operation: PublishedOperation, *, odd: bool) -> str:
        """Return the request's target, ASCII only; an odd one has at least a strange id, a segment or a query."""
        rng = self._rng
        parts = []
        for part in operation.path.split("/"):
            if part.startswith("{"):
                known = rng.choice(self.ids[-8:]) if "response" in part else rng.choice(("file-abc", *SURFACES))
                parts.append(rng.choice(_SEGMENTS) if odd else known)
            else:
                parts.append(part)
        query = [
            (name, self._values["openai"].of(schema)) for name, schema in operation.query.items() if rng.random() < 0.3
        ]
        if odd:
            place = rng.randrange(2, len(parts) + 1)
            change = rng.random()
            if change < 0.3:
                parts.insert(place, rng.choice(_SEGMENTS))
            elif change < 0.5:
                query.append((rng.choice(("stream", "limit", "after", "x", "")), self._values["openai"].plain.text()))
            elif change < 0.6:
                parts = parts[: place - 1]
        target = "/".join(parts) or "/"
        target = "".join(one if 0x20 < ord(one) < 0x7F else quote(one) for one in target)
        asked = "&".join(f"{quote(name)}={quote(_plain(value))}" for name, value in query)
        return f"{target}?{asked}" if asked else target

    def _body(self, publisher: str, operation: PublishedOperation, kind: str) -> tuple[str, bytes]:
        rng, values = self._rng, self._values[publisher]
        if not operation.bodies:
            return "", b""
        media = rng.choice(list(operation.bodies))
        value = self._value(publisher, operation, media)
        if kind == "broken":
            value = broken(value or {"x": None}, rng, values.plain)
        if media.startswith("multipart"):
            return _form(value, rng)
        media = "application/json"
        if kind == "other":
            value = rng.choice([None, [], "text", 7, True, {}, [value], {"model": None}, [[[]]], ""])
            return media, rng.choice([b"", b" ", *[json.dumps(value).encode()] * 2])
        encoded = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        return media, self._garbled(encoded) if kind == "text" else encoded

    def _value(self, publisher: str, operation: PublishedOperation, media: str) -> Json:
        """Return a value of the body's schema."""
        rng, values = self._rng, self._values[publisher]
        schema = operation.bodies[media]
        validator = published(publisher).validator(schema)
        for _ in range(30):
            value: Json = values.of(schema)
            if "model" in published(publisher).resolved(schema).get("properties", {"model": 1}):
                value["model"] = rng.choice(SURFACES)
            if operation.path.startswith(("/v1/responses", "/v1/completions")) and rng.random() < 0.9:
                # Most are to be more than bodies that lack what they are about.
                member = "prompt" if operation.path == "/v1/completions" else "input"
                value[member] = value.get(member) or values.plain.text() or "hello"
            if operation.path.startswith("/v1/messages") and not value["messages"] and rng.random() < 0.9:
                continue
            if operation.path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"):
                value["stream"] = rng.random() < 0.4
                if not value["stream"]:
                    value.pop("stream_options", None)
            if validator.is_valid(value):
                return value
        raise ValueError(f"no valid body for {operation.path}")

    def _garbled(self, encoded: bytes) -> bytes:
        """Return a JSON text that is none, or one that few write."""
        rng = self._rng
        place = rng.randrange(len(encoded) + 1)
        change = rng.randrange(10)
        if change == 0:
            return encoded[:place]
        if change == 1:
            return encoded + rng.choice((b"}", b"x", encoded, b"\x00", b"\n \n", b","))
        if change == 2:
            return encoded[:1] + b'"model":"openai",' + encoded[1:]  # twice the same name
        if change == 3:
            return encoded[:1] + b'"x":' + rng.choice(_NUMBERS) + b"," + encoded[1:]
        if change == 4:
            depth = rng.choice((20, 90, 200, 3000, 100_000))
            deep = b"[" * depth + b"]" * depth if rng.random() < 0.5 else b'{"a":' * depth + b"1" + b"}" * depth
            return encoded[:1] + b'"x":' + deep + b"," + encoded[1:]
        if change == 5:
            return encoded[:1] + rng.choice((b'"x":"\\ud800",', b'"\\udfff":1,', b'"x":"\\u0000",')) + encoded[1:]
        if change == 6:
            return (
                encoded[:place]
                + rng.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\x00", b"\x1f"))
                + encoded[place:]
            )
        if change == 7:
            return rng.choice(
                (b"\xef\xbb\xbf" + encoded, encoded.decode().encode("utf-16"), encoded.decode().encode("utf-32"))
            )
        if change == 8:
            return rng.choice((b"\t\n" * 5000 + encoded, b"/* */" + encoded, encoded.replace(b'"', b"'")))
        digits = [i for i, one in enumerate(encoded) if 0x30 <= one <= 0x39]
        if not digits:
            return encoded[::-1]
        at = rng.choice(digits)
        return encoded[:at] + rng.choice(_NUMBERS) + encoded[at + 1 :]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _form(value: Json, rng: random.Random) -> tuple[str, bytes]:
    """Return a multipart form of a value, now and then with a wrong boundary."""
    boundary = f"b{rng.getrandbits(40):x}"
    parts = []
    for name, member in value.items():
        head = f'Content-Disposition: form-data; name="{name}"'
        if "file" in name or name in ("image", "mask", "data"):
            head += '; filename="a.bin"\r\nContent-Type: application/octet-stream'
        parts.append(f"--{boundary}\r\n{head}\r\n\r\n".encode() + _plain(member).encode() + b"\r\n")
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary if rng.random() < 0.95 else 'no'}", body


class ScriptedProviders:
    """Answer the gateway's calls with random valid replies: those of one call are always the same."""

    def __init__(self) -> None:
        self.server = PlainServer(self.reply)
        self._operations = [one for one in published("openai").operations() if "application/json" in one.replies]

    def reply(self, target: str, raw: bytes) -> PlainReply:
        """Return the reply to a call."""
        path = target.partition("?")[0]
        of, rest = path[1:].split("/", 1)
        replies = RandomReplies(random.Random(zlib.crc32(raw + path.encode())))
        if of == "account":
            return self._of_service(f"/{rest}", raw, replies)
        asked = orjson.loads(raw)
        streamed = bool(asked.get("stream"))
        if rest.endswith("/chat/completions"):
            whole = replies.completion(n=asked.get("n") or 1, logprobs=bool(asked.get("logprobs")))
            body = replies.chunks(whole) if streamed else orjson.dumps(whole)
        elif rest.endswith("/count_tokens"):
            body = orjson.dumps({"input_tokens": 7})
        elif rest.endswith("/input_tokens"):
            body = orjson.dumps({"object": "response.input_tokens", "input_tokens": 7})
        elif rest.endswith("/messages"):
            whole = replies.message()
            body = replies.message_events(whole) if streamed else orjson.dumps(whole)
        else:
            whole = replies.response()
            body = replies.response_events(whole) if streamed else orjson.dumps(whole)
        return PlainReply(body, events=streamed)

    def _of_service(self, path: str, raw: bytes, replies: RandomReplies) -> PlainReply:
        """Return a reply of the operation that the call is for."""
        if path == "/v1/embeddings":
            return PlainReply(orjson.dumps(_embedded(orjson.loads(raw))))
        if path.endswith("/content") or path == "/v1/audio/speech":
            return PlainReply(bytes(range(256)), content_type=_BINARY)
        fitting = (one for one in self._operations if one.method == self.server.method and one.pattern.fullmatch(path))
        if (operation := next(fitting, None)) is None:
            error = {"message": "There is no such thing.", "type": "invalid_request_error", "param": None, "code": None}
            return PlainReply(orjson.dumps({"error": error}), status=404)
        return PlainReply(orjson.dumps(replies.valid("openai", operation.replies["application/json"])))


def _embedded(asked: Json) -> Json:
    given = asked["input"]
    inputs = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    data = [{"object": "embedding", "index": i, "embedding": [0.5, -0.25]} for i in range(len(inputs))]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    return {"object": "list", "data": data, "model": asked["model"], "usage": usage}


def check(request: FuzzRequest, answer: PlainAnswer, fuzzed: FuzzedPublished) -> None:
    """Hold one answer against the documents."""
    fuzzed.requests += 1
    fuzzed.kinds.setdefault(request.kind, Counter())[answer.status] += 1
    fuzzed.paths.setdefault(f"{request.operation.method} {request.operation.path}", Counter())[answer.status] += 1
    try:
        if answer.status >= 500:
            raise AssertionError(answer.body[:400].decode(errors="replace"))
        assert answer.whole, "the reply broke off"
        assert answer.headers.get("x-request-id"), "no x-request-id"
        if request.method == "HEAD":
            return
        if answer.status >= 300:
            _check_error(request, answer)
            if request.kind == "valid":
                _count_refused(request, answer, fuzzed)
        elif request.method == request.operation.method and request.kind != "path":
            fuzzed.events += _check_reply(request, answer)
    except (AssertionError, ValueError, KeyError) as error:
        shown = f"{request.kind}: {request.method} {request.target[:200]} {request.headers} {request.body[:1200]!r}"
        why = f"{request.operation.path} {answer.status} {str(error)[:120]}"
        fuzzed.why[why] += 1
        fuzzed.wrong.append(f"{answer.status} {str(error)[:1600]}\n    of {shown}")


def _check_error(request: FuzzRequest, answer: PlainAnswer) -> None:
    assert answer.headers.get("content-type", "").startswith("application/json"), answer.headers
    value = orjson.loads(answer.body)
    # What is no HTTP has no path, so that its reply knows no dialect.
    is_asked = request.target.startswith("/v1/messages") or "anthropic-version" in request.headers
    is_anthropic = is_asked and b"not a valid HTTP request" not in answer.body
    _validate("anthropic" if is_anthropic else "openai", "ErrorResponse", value)
    if not is_anthropic:
        assert value.keys() == {"error"} and value["error"].keys() == _ENVELOPE, value
    assert value["error"]["message"], value


def _count_refused(request: FuzzRequest, answer: PlainAnswer, fuzzed: FuzzedPublished) -> None:
    message = orjson.loads(answer.body)["error"]["message"]
    fuzzed.refused[f"{request.operation.path} {answer.status} {message[:110]}"] += 1


def _check_reply(request: FuzzRequest, answer: PlainAnswer) -> int:
    """Check a reply of status 200; return how many events it has."""
    media = answer.headers.get("content-type", "").partition(";")[0]
    replies = request.operation.replies
    if media == "text/event-stream":
        return _check_stream(request, answer.body)
    if media == _BINARY or request.operation.path.endswith("/content"):
        return 0
    assert media == "application/json", media
    value = orjson.loads(answer.body)
    if request.operation.path == "/v1/embeddings" and value["data"] and isinstance(value["data"][0]["embedding"], str):
        for one in value["data"]:
            one["embedding"] = []  # as base64, which the document does not know as a reply
    if request.operation.path == "/v1/responses":
        value = _without_repeated(request, value)
    _validate(request.publisher, replies.get(media, True), value)
    return 0


def _without_repeated(request: FuzzRequest, response: Json) -> Json:
    """Return a response without what it repeats of a request that is not valid itself."""
    asked = orjson.loads(request.body)
    if published("openai").validator(request.operation.bodies["application/json"]).is_valid(asked):
        return response
    kept = {name: value for name, value in response.items() if name not in asked or name == "model"}
    return {**_REPEATED, **kept}


def _check_stream(request: FuzzRequest, content: bytes) -> int:
    path = request.operation.path
    lines = [line for line in content.split(b"\n") if line.startswith(b"data: ")]
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert lines and lines[-1] == b"data: [DONE]", content[-300:]
        lines.pop()
    for line in lines:
        event = orjson.loads(line[len(b"data: ") :])
        assert "error" not in event or path == "/v1/responses", event
        assert event.get("type") != "error", event
        if path == "/v1/messages":
            if event["type"] != "ping":  # the document leaves it out, Anthropic's guide has it
                _validate("anthropic", "MessageStreamEvent", event)
            continue
        if "response" in event and path == "/v1/responses":
            event["response"] = _without_repeated(request, event["response"])
        if path == "/v1/completions":
            if event.get("usage", 0) is None:
                del event["usage"]  # which is what the document's words on stream_options say
            for choice in event["choices"]:
                choice["finish_reason"] = (
                    choice["finish_reason"] or "stop"
                )  # null before the end, as in OpenAI's streams
        media = "application/json" if path == "/v1/completions" else "text/event-stream"
        _validate("openai", request.operation.replies[media], event)
    return len(lines)


def _validate(publisher: str, schema: Any, value: Any) -> None:
    document = published(publisher)
    error = next(document.validator(document.arm_of(schema, value)).iter_errors(value), None)
    if error is not None:
        place = "/".join(map(str, error.instance_path))
        raise AssertionError(f"at {place!r}: {error.message[-110:]} in {json.dumps(value)[:1400]}")


def run(requests: int, seed: int, folder: Path) -> FuzzedPublished:
    """Send so many random requests, and check the replies."""
    fuzzed = FuzzedPublished()
    with local_store() as store, ScriptedProviders().server as server:
        origin = f"http://127.0.0.1:{server.port}"
        tiers = [
            {"name": out, "backends": [{"base_url": f"{origin}/{out}/v1", **backend}]} for out, backend in OUT.items()
        ]
        settings: Json = {"tiers": tiers, "default_surface": "openai"}
        settings["services"] = {"account": {"base_url": f"{origin}/account/v1"}}
        policies = {name: _POLICY.format(name=name, tier=name) for name in OUT}
        policies["service"] = _POLICY.format(name="service", tier="openai") + _BY_SERVICE
        with serve(folder, server.url, store_url=store.url, policies=policies, settings=settings) as gateway:
            asyncio.run(_send_all(requests, FuzzRequests(seed), gateway, fuzzed))
            if "Traceback" in (log := gateway.log()):
                fuzzed.wrong.append(log[log.index("Traceback") :][:3000])
    return fuzzed


async def _send_all(count: int, requests: FuzzRequests, gateway: Gateway, fuzzed: FuzzedPublished) -> None:
    made = zip(range(count), requests, strict=False)

    async def client() -> None:
        connection = PlainClient(gateway.port)
        for _, request in made:
            try:
                answer = await _sent(connection, request, fuzzed)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                connection.close()
                shown = f"{request.method} {request.target[:200]} {request.headers} {request.body[:300]!r}"
                fuzzed.wrong.append(f"no reply: {error!r}\n    of {request.kind}: {shown}")
                continue
            check(request, answer, fuzzed)
            if answer.status == 200 and request.kind == "valid" and answer.body.startswith(b'{"id":"resp_'):
                requests.ids.append(orjson.loads(answer.body)["id"])
        connection.close()

    await asyncio.gather(*(client() for _ in range(_AT_ONCE)))


async def _sent(connection: PlainClient, request: FuzzRequest, fuzzed: FuzzedPublished) -> PlainAnswer:
    for _ in range(_RESENT):
        answer = await connection.send(request.method, request.target, request.headers, request.body, 60)
        if answer.status != 503 or not any(code in answer.body for code in _LATE):
            return answer
        fuzzed.resent += 1
        await asyncio.sleep(0.2)
    return answer
