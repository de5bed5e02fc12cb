"""A provider's endpoints for what is not a chat, on a real socket: embeddings, moderations, audio, files, batches.

    with Account() as account:
        ...                                                  # talk to account.url
        assert account.calls[0].headers["authorization"] == "Bearer sk-service"

It runs an event loop in a thread of its own, so tests of any kind, and processes they start, can use it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.support.loop_thread import LoopThread
from tests.support.seeded import JSON, seeded
from tests.support.wait import until


@dataclass
class AccountCall:
    """One request, as it came. `gone` is set when the peer left before the reply was sent whole."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    size: int = 0
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def value(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Account:
    """See the module's docstring.

    While `refusal` is set, a (status, body, headers) of any status, every request gets it. Each reply comes after
    `delay_s` seconds.
    """

    def __init__(self) -> None:
        self.calls: list[AccountCall] = []
        self.refusal: tuple[int, bytes, dict[str, str]] | None = None
        self.delay_s = 0.0
        self.unknown = ""
        """A field that JSON requests may not have, as strict servers say it."""
        self.release = threading.Event()
        """Lets a stream at `/v1/audio/speech` go on after its first part."""
        self.port = 0
        self._thread = LoopThread("account")
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Account:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release.set()
        self._run(self._stop())
        self._thread.stop()

    @property
    def url(self) -> str:
        """The base URL, as an OpenAI client wants it."""
        return f"http://127.0.0.1:{self.port}/v1"

    def reset(self) -> None:
        """Forget the requests and the refusal."""
        self.calls.clear()
        self.refusal, self.unknown, self.delay_s = None, "", 0.0
        self.release.clear()

    def wait_for(self, count: int) -> list[AccountCall]:
        """The requests, once there are `count`."""
        until(lambda: len(self.calls) >= count, 5, f"{count} requests")
        return self.calls

    def _run(self, work: Any) -> None:
        self._thread.run(work)

    async def _listen(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        call = AccountCall(request.method, request.raw_path, headers)
        digest = hashlib.sha256()
        self.calls.append(call)
        try:
            async for part in request.content.iter_any():
                call.size += len(part)
                digest.update(part)
                if call.size < 1 << 20:
                    call.body += part
            await asyncio.sleep(self.delay_s)
            if self.refusal is not None:
                status, body, extra = self.refusal
                return web.Response(status=status, body=body, headers={"content-type": "application/json", **extra})
            if self.unknown and self.unknown in call.value:
                detail = {
                    "type": "extra_forbidden",
                    "loc": ["body", self.unknown],
                    "msg": "Extra inputs are not permitted",
                }
                return web.json_response({"detail": [detail]}, status=422)
            return await self._reply(request, call, digest.hexdigest())
        except (asyncio.CancelledError, ConnectionError):
            call.gone.set()
            raise

    async def _reply(self, request: web.Request, call: AccountCall, digest: str) -> web.StreamResponse:
        path = request.path
        if path.startswith("/v1/files/seed-"):
            return await _seeded(request, call)
        if path == "/v1/embeddings":
            return web.json_response(_embedded(call.value))
        if path == "/v1/moderations":
            value = {"id": "modr-1", "model": call.value["model"], "results": [{"flagged": False}]}
            return web.json_response(value, headers={"x-ratelimit-remaining-requests": "7", "set-cookie": "a=b"})
        if path.startswith("/v1/messages/batches"):
            return _batch(request)
        if path in ("/v1/audio/speech", "/v1/rerank/live"):
            reply = web.StreamResponse(headers={"content-type": "audio/mpeg", "connection": "close"})
            await reply.prepare(request)
            await reply.write(b"\xff\xfb first")
            while not self.release.is_set():
                await asyncio.sleep(0.005)
            await reply.write(b" second")
            await reply.write_eof()
            return reply
        if path == "/v1/audio/translations" or b'"broken"' in call.body:
            await asyncio.sleep(30 if call.body == b"slow" else 0)
            reply = web.StreamResponse(headers={"content-type": "text/plain"})
            reply.content_length = 1000
            await reply.prepare(request)
            await reply.write(b"broken")
            await asyncio.sleep(0.05)
            if request.transport is not None:
                request.transport.abort()
            return reply
        if path == "/v1/files" and request.method == "POST":
            return web.json_response(
                {
                    "id": "file-1", "object": "file", "bytes": call.size, "created_at": 1, "filename": digest,
                    "purpose": "batch", "status": "processed",
                }
            )  # fmt: skip
        if path == "/v1/images/generations":
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            await reply.write(b'event: image_generation.completed\ndata: {"b64_json":"AAAA"}\n\n')
            await reply.write_eof()
            return reply
        if path == "/v1/files/file-1/content":
            return web.Response(body=bytes(range(256)) * 512, content_type="application/octet-stream")
        return web.json_response({"path": request.raw_path, "object": "list", "data": []})


async def _seeded(request: web.Request, call: AccountCall) -> web.StreamResponse:
    """Reply to a random request, or say with status 409 what of it did not arrive as it was sent."""
    wanted = seeded(int(request.path.split("/")[3].removeprefix("seed-")))
    expected = {"method": wanted.method, "path": wanted.path, "body": wanted.body}
    got = {"method": call.method, "path": call.path, "body": call.body}
    if wanted.parts:
        expected["type"], got["type"] = wanted.content_type, call.headers.get("content-type", "")
    if wanted.parts and wanted.content_type != JSON:
        expected["length"] = str(len(wanted.body)) if wanted.announced else "chunked"
        got["length"] = call.headers.get("content-length", call.headers.get("transfer-encoding", ""))
    if differ := [name for name, value in expected.items() if got[name] != value]:
        message = f"differs in {', '.join(differ)}"
        return web.json_response({"error": {"message": message, "code": "differs"}}, status=409)
    reply = web.StreamResponse(headers={"content-type": wanted.reply_type})
    if wanted.reply_announced:
        reply.content_length = len(wanted.reply)
    await reply.prepare(request)
    for part in wanted.reply_parts:
        await reply.write(part)
        await asyncio.sleep(0)
    await reply.write_eof()
    return reply


def _batch(request: web.Request) -> web.Response:
    """A batch that has ended, its list or its results, as Anthropic's API returns them."""
    at = f"{request.url.origin()}/v1/messages/batches/msgbatch_1/results"
    if request.raw_path.endswith("/results"):
        line = {"custom_id": "a", "result": {"type": "canceled"}}
        return web.Response(text=f"{json.dumps(line)}\n", content_type="application/x-jsonl")
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    batch = {
        "id": "msgbatch_1", "type": "message_batch", "processing_status": "ended", "request_counts": counts,
        "created_at": "2026-11-01T00:00:00Z", "expires_at": "2026-11-02T00:00:00Z", "results_url": at,
    }  # fmt: skip
    if request.method == "GET" and request.path.endswith("/batches"):
        return web.json_response({"data": [batch], "has_more": False, "first_id": "msgbatch_1", "last_id": None})
    return web.json_response(batch)


def _embedded(body: Any) -> dict[str, Any]:
    """Vectors that differ by their text, as OpenAI's API returns them."""
    given = body["input"]
    inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    length = body.get("dimensions", 3)
    data = [
        {"object": "embedding", "index": i, "embedding": [float(len(one)), 0.5, -0.25, *[0.0] * length][:length]}
        for i, one in enumerate(inputs)
    ]
    tokens = 2 * len(inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data[::-1], "model": body["model"], "usage": usage}
