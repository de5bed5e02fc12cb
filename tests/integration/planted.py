"""Where planted keys and prompts are found that must not be there.

Requests carry words that occur nowhere else: in their messages, tools and metadata, in the client's key and headers, in
the answers of the models, in the errors of backends that quote prompt and key, and in the deployment's own key of its
backend. Streams and JSON, hits, escalations, broken streams, refused and malformed requests take turns. Then everything
that telemetry leaves is searched for all of these words: each stored record and basis, each span at an OTLP collector,
the log, `/metrics`, `/docs`, `/openapi.json`, the health pages, each error reply, and the console: every route that it
has, as HTML and as JSON, for each of these requests. An error reply may quote what its own request said, as OpenAI's
do; it may not quote a key, or another request.

Capture is off, as by default. Where it is on, the prompts must be found, which shows that the search finds what is
there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import redis

from gateway.parts.recorder.decision_record import BASES
from gateway.telemetry.ledger import TRACES
from tests.parts.console.every_page import replies
from tests.parts.otlp.collector import Collector
from tests.support.ask import ask
from tests.support.gateway import Gateway, serve
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import until

_POLICY = """
surface: chat
slo: {deadline: 20s}
holdout: 0%
tiers: [local, hosted]
route: {classifier: default, start: {local: tokens_in < 5000, hosted: otherwise}}
escalate:
  when: {uncalibrated_below: 0.5}
  stream: {hold_tokens: 4, hold_max: 1s, on_break: error}
cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, audit: 0%}}
"""
OUR_KEY = "sk-plantedbackend-3f9c1e"
_MARK = "qzplanted"
_PAGES = ("/metrics", "/docs", "/openapi.json", "/healthz", "/readyz", "/v1/models")
_WAYS = 8
_LAST = 90_000
"""Numbers of the requests whose backends refuse the key."""


def word(kind: str, number: int) -> str:
    """A word that occurs nowhere else."""
    return f"{_MARK}{kind}{number:05d}x"


class _Echo(Upstream):
    """Models that repeat what they were sent."""

    def reply_to(self, request: Any) -> Reply:
        """See `_answer`."""
        return _answer(request) if request.path.endswith("/chat/completions") else super().reply_to(request)


def _answer(request: Any) -> Reply:
    """What the scripted models say: they repeat the prompt, doubtfully, with an error, or until they break off."""
    prompt = str(request.body["messages"][-1]["content"])
    number = int(prompt.split(_MARK)[1][6:11])
    key = request.headers.get("authorization", "")
    match number % _WAYS:
        case 1:
            small = request.body["model"] == "small"
            return Reply(text=f"You said {prompt} {word('answer', number)}", logprob=-4.0 if small else -0.1)
        case 3:
            return error_reply(400, f"Invalid value: {prompt} with {key}", kind="invalid_request_error")
        case 5 if number % 3 == 0:  # more of these, and the backends would be ejected
            return Reply(text=f"{prompt} " * 20, fault=Fault.RESET_MID_STREAM, fault_after=12)
        case 4 if number % 5 == 0:
            return Reply(status=500, body=f"<html>{key} {prompt}</html>".encode())
        case 2 if number >= _LAST:  # it ejects the backend for half a minute, so it comes last
            return error_reply(401, f"Incorrect API key provided: {key}. Prompt: {prompt}", code="invalid_api_key")
    return Reply(text=f"You said {prompt} {word('answer', number)}")


def _prompt(number: int) -> str:
    """The planted word of a prompt; some requests repeat an earlier one."""
    return word("prompt", number // 2 if number % _WAYS == 7 else number)


def _sent(gateway: Gateway, number: int) -> tuple[int, str]:
    """Send one request; return its number and its reply's text if that is an error."""
    prompt = f"Tell me about {_prompt(number)}"
    body: dict[str, Any] = {
        "model": "tier:hosted" if number % 16 in (2, 3) else "chat",  # the hosted tier has a key to quote
        "stream": number % 2 == 1,
        "messages": [
            {"role": "system", "content": f"Be brief, {word('system', number)}"},
            {"role": "user", "content": prompt},
        ],
        "user": word("user", number),
        "metadata": {word("key", number): word("value", number)},
    }
    if number % 5 == 0:
        body["tools"] = [{"type": "function", "function": {"name": word("tool", number), "parameters": {}}}]
    headers = {
        "authorization": f"Bearer sk-{word('client', number)}",
        "x-api-key": word("apikey", number),
        "cookie": f"session={word('cookie', number)}",
        "user-agent": word("agent", number),
    }
    if number % _WAYS == 6:
        body["temperature"] = word("wrong", number)
    try:
        reply = ask(gateway, headers=headers, timeout_s=30, **body)
    except httpx2.HTTPError:
        return number, ""
    return number, reply.text if reply.status_code >= 400 else ""


def found(requests: int, *, capture: bool = False, folder: Path) -> Counter[str]:
    """Send that many requests, and count the planted words by where they were found."""
    with ExitStack() as stack:
        store: LocalStore = stack.enter_context(local_store())
        upstream, collector = stack.enter_context(_Echo()), stack.enter_context(Collector())
        gateway = stack.enter_context(
            serve(
                folder,
                upstream.url,
                upstream.url,
                store_url=store.url,
                policies={"chat": _POLICY},
                settings={
                    "telemetry": {"prompts": capture},
                    "log": {"format": "json", "requests": True, "level": "info"},
                },
                env={
                    "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                    "OTEL_BSP_SCHEDULE_DELAY": "100",
                    "HOSTED_KEY": OUR_KEY,
                },
            )
        )
        with ThreadPoolExecutor(8) as threads:
            errors = list(threads.map(lambda number: _sent(gateway, number), range(requests - 8)))
            errors += threads.map(lambda number: _sent(gateway, number), range(_LAST, _LAST + 16, 2))
        client = stack.enter_context(redis.Redis.from_url(store.url))
        until(lambda: client.xlen(TRACES) >= requests, 60)
        pages = {path: httpx2.get(gateway.origin + path).text for path in _PAGES}
        gateway.stop()
        roots = [span for span in collector.spans if span.name.startswith("POST ")]
        counts_of_pages = asyncio.run(_console(folder, store.url, requests))
        places = {
            "records": b"\n".join(value for _, fields in client.xrange(TRACES) for value in fields.values()),
            "bases": b"\n".join(client.hvals(BASES)),
            "spans": b"\n".join(span.SerializeToString() for span in collector.spans),
            "log": gateway.log().encode(),
            **{path: text.encode() for path, text in pages.items()},
        }
        planted = _MARK.encode(), OUR_KEY.encode()
        counts = Counter({place: sum(map(blob.count, planted)) for place, blob in places.items()})
        counts |= counts_of_pages
        counts["errors"] = 0
        for number, text in errors:
            others = text.replace(_prompt(number), "")
            for kind in ("wrong", "tool", "system", "user", "key", "value"):
                others = others.replace(word(kind, number), "")
            if _MARK in others or OUR_KEY in others:
                counts["errors"] += 1
                print(f"found in an error reply: {others[:300]}")
        print(
            f"{requests} requests, {sum(bool(text) for _, text in errors)} of them refused; searched "
            f"{client.xlen(TRACES)} records, {len(collector.spans)} spans of {len(roots)} requests, "
            f"{len(places['log'].splitlines())} lines of log, {len(_PAGES)} pages, and the console's"
        )
        return counts


async def _console(folder: Path, store_url: str, requests: int) -> Counter[str]:
    """Ask a console for all that it shows of these requests; count the planted words in it, and pages that failed."""
    counts: Counter[str] = Counter({"console": 0})
    asked: Counter[int] = Counter()
    async for path, status, body in replies(folder, folder / "tierline.yaml", store_url, requests):
        asked[status] += 1
        if status >= 500:
            counts["console pages that failed"] += 1
            print(f"{path}: {status}")
        found_here = body.count(_MARK.encode()) + body.count(OUR_KEY.encode())
        if found_here and not counts["console"]:
            print(f"found in the console, first by {path}")
        counts["console"] += found_here
    statuses = ", ".join(f"{count} with {status}" for status, count in sorted(asked.items()))
    print(f"asked the console for {asked.total()} pages: {statuses}")
    return counts
