"""Ask a running gateway for a chat completion, and read what it answers: the one way that tests share.

`ask` is for whole replies. A stream that may break off is read with `read_stream`, and `text_of` and `events_of` read
both: the bytes of a JSON reply, or those of server-sent events. `record_of` waits for a request's trace.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from cache.store.base import Store
from cache.store.redis_store import RedisStore
from gateway.parts.measures import reader
from tests.support.gateway import Gateway
from tests.support.store import UNHURRIED
from tests.support.wait import SLACK

Json = dict[str, Any]


def chat_body(text: str = "hello", model: str = "chat", **more: Any) -> Json:
    """Return the body of a chat completion whose only message is `text`; `more` are further members."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def ask(
    gateway: Gateway,
    text: str = "hello",
    *,
    model: str = "chat",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 20.0,
    **more: Any,
) -> httpx2.Response:
    """Ask for one chat completion, and return the whole reply; `more` are further members of the body."""
    body = chat_body(text, model, **more)
    return httpx2.post(f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=timeout_s)


@dataclass(frozen=True)
class StreamRead:
    """A stream as it came. `ended`: the body came to its end; `head_s`: seconds until its head was there."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    ended: bool
    head_s: float

    @property
    def lines(self) -> list[str]:
        """The lines of the body."""
        return self.body.decode().split("\n")

    @property
    def comments(self) -> list[str]:
        """The lines that are comments."""
        return [line for line in self.lines if line.startswith(":")]

    @property
    def done(self) -> bool:
        """Whether its last event is [DONE]."""
        return data_of(self.body)[-1:] == ["[DONE]"]

    @property
    def error(self) -> Json | None:
        """The error among its events, if there is one."""
        return next((event["error"] for event in events_of(self.body) if "error" in event), None)

    @property
    def chunks(self) -> list[Json]:
        """Its events that hold choices."""
        return [event for event in events_of(self.body) if "choices" in event]

    @property
    def text(self) -> str:
        """What it says."""
        return text_of(self.body)


def read_stream(
    gateway: Gateway, body: Mapping[str, Any], timeout_s: float = 20.0, *, path: str = "/chat/completions"
) -> StreamRead:
    """Ask for a streamed completion, of a chat by default, and read it to its end, even if it breaks off."""
    raw, ended, began = b"", True, time.monotonic()
    sent = {**body, "stream": True}
    with httpx2.stream("POST", f"{gateway.url}{path}", json=sent, timeout=timeout_s) as response:
        head_s = time.monotonic() - began
        try:
            for part in response.iter_raw():
                raw += part
        except httpx2.RemoteProtocolError:
            ended = False
    return StreamRead(response.status_code, response.headers, raw, ended, head_s)


def data_of(body: bytes) -> list[str]:
    """Return the data of each event of a stream, `[DONE]` included; comments and other lines are left out."""
    return [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]


def events_of(body: bytes) -> list[Json]:
    """Return the events of a stream of any dialect, parsed, without `[DONE]`."""
    return [json.loads(data) for data in data_of(body) if data != "[DONE]"]


def text_of(body: bytes) -> str:
    """Return what a chat completion says, whole or streamed; '' if it is an error."""
    if body.startswith(b"{"):
        choices = json.loads(body).get("choices")
        return str(choices[0]["message"]["content"]) if choices else ""
    choices = [choice for event in events_of(body) for choice in event.get("choices") or ()]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def record_of(store: Store, request_id: str) -> Json:
    """Return the trace record of a request as soon as it is in the store, which is after the reply."""
    async with asyncio.timeout(5 * SLACK):
        while (record := await reader.find(store, request_id)) is None:
            await asyncio.sleep(0.005)
    found: Json = orjson.loads(record)
    return found


async def record_at(url: str, request_id: str) -> Json:
    """Return the trace record of a request as soon as it is in the store at this URL."""
    store = RedisStore.from_url(url, slack=UNHURRIED)
    try:
        return await record_of(store, request_id)
    finally:
        await store.aclose()
