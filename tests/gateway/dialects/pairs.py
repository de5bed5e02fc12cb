"""Pairs of dialects: what the tests share that put clients of each dialect before backends of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.support.app import InProcess, in_process
from tests.support.plain_http import PlainReply, PlainServer

Json = dict[str, Any]

PATHS: Final = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completions": "/v1/completions",
}
"""The path that clients of each dialect use."""
WORDS: Final[Json] = {"role": "user", "content": "hello"}
USAGE: Final[Json] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


_Any = TypeVar("_Any")


def summed(counts: Iterable[Counter[str]]) -> Counter[str]:
    """Return the counts of all pairs together."""
    return sum(counts, Counter())


def headers_of(into: str) -> dict[str, str]:
    """Return the headers that clients of a dialect send."""
    return {"anthropic-version": "2023-06-01"} if into == "messages" else {}


def whole_message(content: Sequence[Json], **members: Any) -> Json:
    """Return a whole message of Anthropic's API with this content."""
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [*content]}
    message |= {"stop_reason": "end_turn", "stop_sequence": None}
    return {**message, "usage": {"input_tokens": 3, "output_tokens": 2}, **members}


def whole_response(output: Sequence[Json], **members: Any) -> Json:
    """Return a whole Response object of OpenAI's API with this output."""
    details: Json = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, **details}
    response: Json = {"id": "resp_1", "object": "response", "created_at": 1, "model": "small", "status": "completed"}
    response |= {"output": [*output], "usage": usage, "error": None, "incomplete_details": None, "instructions": None}
    return {**response, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}, **members}


def message_item(*parts: Json) -> Json:
    """Return the item of an assistant's message with these parts."""
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [*parts]}


def text_part(text: str) -> Json:
    """Return the part of a message's item that holds its text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


@asynccontextmanager
async def gateway_of(
    folder: Path, out: Mapping[str, Json], reply: Callable[[str, bytes], PlainReply]
) -> AsyncIterator[InProcess]:
    """A gateway in this process with a surface and a tier for each kind of backend, of the same name.

    `reply` returns what a backend replies, from the path, whose first part is the kind's name, and the request's body.
    """
    with PlainServer(reply) as server:
        tiers = [
            {"name": name, "backends": [{"base_url": f"http://127.0.0.1:{server.port}/{name}/v1", **backend}]}
            for name, backend in out.items()
        ]
        policies = {
            name: f"surface: {name}\nmatch: {{models: [{name}]}}\ntiers: [{name}]\nslo: {{deadline: 10m}}\n"
            f"holdout: 0%\nroute: {{classifier: none, start: {{{name}: otherwise}}}}\n"
            for name in out
        }
        settings = {"tiers": tiers, "default_surface": next(iter(out))}
        async with in_process(folder, server.url, policies=policies, settings=settings) as app:
            app.steps.gate.stop()  # on a machine that is busy otherwise, requests would be refused
            yield app


async def all_pairs(pair: Callable[[str, str], Awaitable[_Any]], into: Sequence[str], out: Sequence[str]) -> list[_Any]:
    """Return the results of all pairs: one at a time for each kind of backend, these beside each other."""

    async def column(one: str) -> list[_Any]:
        return [await pair(name, one) for name in into]

    return [result for results in await asyncio.gather(*map(column, out)) for result in results]
