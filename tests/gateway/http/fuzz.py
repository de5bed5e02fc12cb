"""Ask every endpoint at random, by the published schemas.

Requests are made from the types of OpenAI's SDK and, for `/v1/messages`, of Anthropic's, which are generated from the
providers' OpenAPI documents. Half of them are broken: a random member, at any depth, is removed, or replaced by any
JSON value. They are sent to a gateway in this process before scripted backends of all dialects. Held against it:

    no status of 500 or more, and no exception in the log
    every reply, and every event of a stream, is of the SDK's type
    every error has OpenAI's envelope with its four members, that of `/v1/messages` Anthropic's
"""

from __future__ import annotations

import base64
import copy
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as TextParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses import Response
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter, ValidationError

from tests.gateway.dialects.fields import OUT, matrix
from tests.support.response_events import CLASSES
from tests.support.sdk_types import RandomValues

Json = dict[str, Any]

_REPLIES: Final[dict[str, tuple[Any, Any, Any]]] = {
    "/v1/chat/completions": (CompletionCreateParamsNonStreaming, ChatCompletion, ChatCompletionChunk),
    "/v1/responses": (ResponseCreateParamsNonStreaming, Response, None),
    "/v1/messages": (MessageCreateParamsNonStreaming, Message, RawMessageStreamEvent),
    "/v1/completions": (TextParams, Completion, Completion),
    "/v1/embeddings": (EmbeddingCreateParams, CreateEmbeddingResponse, None),
    "/v1/messages/count_tokens": (MessageCountTokensParams, MessageTokensCount, None),
    "/v1/responses/input_tokens": (InputTokenCountParams, InputTokenCountResponse, None),
}
"""The types of each endpoint's requests, of its whole replies and of its streams' events."""
NAMED: Final[dict[str, Callable[[random.Random], Any]]] = {
    **{name: lambda rng: rng.choice([False, None]) for name in ("background", "store")},
    **dict.fromkeys(("conversation", "previous_response_id"), lambda rng: None),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "max_completion_tokens"), lambda rng: rng.randrange(16, 5000)),
    "n": lambda rng: rng.choice([1, 2, None]),
    "suffix": lambda rng: None,
    "top_logprobs": lambda rng: rng.randrange(21),
}
"""Values of fields that would be refused at once with most others."""
_STREAMED: Final = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions")
_ENVELOPE: Final = {"message", "type", "param", "code"}


@dataclass
class Fuzzed:
    """How many requests to each endpoint had which status, and what was wrong."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class _Exceptions(logging.Handler):
    """Collect what is logged with a traceback."""

    def __init__(self, wrong: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._wrong = wrong

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._wrong.append(f"log: {logging.Formatter().format(record)[-600:]}")


async def run(requests: int, seed: int, folder: Path) -> Fuzzed:
    """Send so many random requests, and check the replies."""
    rng = random.Random(seed)
    values = RandomValues(rng, named=NAMED)
    fuzzed = Fuzzed()
    handler = _Exceptions(fuzzed.wrong)
    logging.getLogger().addHandler(handler)
    try:
        async with matrix(folder) as sender:
            for path, body in _requests(requests, rng, values):
                answer = await sender.client.post(path, content=body, headers={"content-type": "application/json"})
                _check(path, body, answer, fuzzed)
            for path in ("/v1/models", *(f"/v1/models/{out}" for out in OUT), "/v1/models/no", "/v1/responses/resp_no"):
                _check_listed(path, await sender.client.get(path), fuzzed)
    finally:
        logging.getLogger().removeHandler(handler)
    return fuzzed


def _requests(count: int, rng: random.Random, values: RandomValues) -> Iterator[tuple[str, bytes]]:
    for _ in range(count):
        path = rng.choice(list(_REPLIES))
        body = values.object_of(_REPLIES[path][0])
        body["model"] = rng.choice(list(OUT))
        body.pop("stream", None)
        if path in _STREAMED and rng.random() < 0.4:
            body["stream"] = True
        if rng.random() < 0.5:
            body = broken(body, rng, values)
        yield path, orjson.dumps(body)


def broken(body: Json, rng: random.Random, values: RandomValues) -> Json:
    """Return a body with a random member replaced by any value, or removed."""
    changed = copy.deepcopy(body)
    holder: Any = changed
    while True:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            break
        holder = inner
    if rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = values.json(3)
    return changed


def _check(path: str, body: bytes, answer: Any, fuzzed: Fuzzed) -> None:
    fuzzed.statuses.setdefault(path, Counter())[answer.status_code] += 1
    try:
        if answer.status_code >= 500:
            raise AssertionError(answer.text[:300])
        if answer.status_code != 200:
            _check_error(path, answer.json())
        elif answer.headers["content-type"].startswith("text/event-stream"):
            _check_stream(path, answer.content)
        else:
            _REPLIES[path][1].model_validate(_whole(answer.json()))
    except (AssertionError, ValidationError, ValueError, KeyError) as error:
        fuzzed.wrong.append(f"{path} {answer.status_code}: {error} of {body[:1500]!r}")


def _whole(value: Json) -> Json:
    """Return a whole reply as the SDK's client gives it: embeddings come as base64 where that was asked for."""
    if value.get("object") == "list" and isinstance(value["data"][0]["embedding"], str):
        data = [{**one, "embedding": list(base64.b64decode(one["embedding"], validate=True))} for one in value["data"]]
        return {**value, "data": data}
    return value


def _check_error(path: str, value: Json) -> None:
    error = value["error"]
    assert isinstance(error["message"], str) and error["message"], value
    assert isinstance(error["type"], str), value
    if path.startswith("/v1/messages"):
        assert value["type"] == "error", value
        assert isinstance(value.get("request_id"), str), value
    else:
        assert value.keys() == {"error"}, value
        assert error.keys() == _ENVELOPE, value


def _check_stream(path: str, content: bytes) -> None:
    for line in content.split(b"\n"):
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        event = orjson.loads(line[len(b"data: ") :])
        if path == "/v1/responses":
            CLASSES[event["type"]].model_validate(event)
        elif "error" not in event:
            for choice in event.get("choices", ()) if path == "/v1/completions" else ():
                choice["finish_reason"] = choice["finish_reason"] or "stop"  # null in OpenAI's own streams too
            TypeAdapter(_REPLIES[path][2]).validate_python(event)


def _check_listed(path: str, answer: Any, fuzzed: Fuzzed) -> None:
    fuzzed.statuses.setdefault("GET", Counter())[answer.status_code] += 1
    check: Callable[[Json], Any] = Model.model_validate
    try:
        if answer.status_code != 200:
            _check_error(path, answer.json())
        elif path == "/v1/models":
            assert answer.json()["object"] == "list"
            for model in answer.json()["data"]:
                check(model)
        else:
            check(answer.json())
    except (AssertionError, ValidationError, ValueError, KeyError) as error:
        fuzzed.wrong.append(f"{path} {answer.status_code}: {error}")
