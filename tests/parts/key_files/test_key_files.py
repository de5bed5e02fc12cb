"""Files of keys that change while the gateway runs: of tenants, backends of every kind, and services."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest

from tests.support.app import in_process
from tests.support.gateway import serve
from tests.support.upstream import Upstream, error_reply
from tests.support.wait import until as within


def written(file: Path, *keys: str) -> Path:
    """Write keys as a secret that is mounted: another file takes the place of the old one."""
    new = file.with_name(f"{file.name}.new")
    new.touch(0o600)
    new.write_text("".join(f"{key}\n" for key in keys))
    return new.replace(file)


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.05)


async def test_a_tenants_keys_are_taken_from_its_file_again(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new key lets in and one that is gone does not; a file that cannot be used changes nothing, and is said."""
    file = written(tmp_path / "acme.keys", "first-key-of-acme")
    other = written(tmp_path / "other.keys", "key-of-other")
    tenants = {"acme": {"key_file": "acme.keys"}, "other": {"key_file": str(other)}}
    async with in_process(tmp_path, upstream.url, settings={"tenants": tenants}) as app:

        async def status(key: str) -> int:
            return int((await app.ask(headers={"authorization": f"Bearer {key}"})).status_code)

        async def moved() -> bool:
            return (await status("first-key-of-acme"), await status("second-key-of-acme")) == (401, 200)

        assert await status("first-key-of-acme") == 200
        written(file, "second-key-of-acme")
        await until(moved)
        for bad in ((), ("short",), ("key-of-other",)):
            caplog.clear()
            written(file, *bad)

            async def said() -> bool:
                return "was not taken" in caplog.text

            await until(said)
            assert await status("second-key-of-acme") == 200
            assert await status("key-of-other") == 200
        assert "second-key" not in caplog.text


_REPLIES: dict[str, dict[str, Any]] = {
    "openai": {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": {"prompt_tokens": 1},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    },
    "responses": {
        "id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
    },
    "anthropic": {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}  # fmt: skip


@contextmanager
def model_of(kind: str) -> Iterator[tuple[str, list[str]]]:
    """A model of a dialect: its URL, and the key of each request."""
    keys: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            keys.append(self.headers.get("x-api-key") or self.headers.get("authorization") or "")
            body = json.dumps(_REPLIES[kind]).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", keys
        server.shutdown()


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
async def test_a_backends_key_is_taken_from_its_file_again(tmp_path: Path, kind: str) -> None:
    """Calls that begin afterwards are sent it, in the header of their dialect."""
    file = written(tmp_path / "backend.key", "sk-old")
    policy = (
        "surface: chat\nslo: {deadline: 20s}\ntiers: [local]\nroute: {classifier: none, start: {local: otherwise}}\n"
    )
    with model_of(kind) as (url, keys):
        backend = {"base_url": url, "model": "m", "kind": kind, "key_file": str(file), "rename": {"top_k": "k"}}
        settings = {"tiers": [{"name": "local", "backends": [backend]}]}
        async with in_process(tmp_path, url, settings=settings, policies={"chat": policy}) as app:

            async def sent() -> str:
                reply = await app.ask(headers={"x-tierline-cache": "no-store"})
                assert reply.status_code == 200, reply.text
                return keys[-1]

            assert (await sent()).endswith("sk-old")
            written(file, "sk-new")

            async def is_new() -> bool:
                return (await sent()).endswith("sk-new")

            await until(is_new)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_that_has_changed_is_tried_at_once(upstream: Upstream, tmp_path: Path, stream: bool) -> None:
    """A provider that refuses the old key while the new one is in its file already is sent that: nobody notices."""
    file = written(tmp_path / "backend.key", "sk-old")
    good = ["sk-old"]
    upstream.on(lambda received: received.headers["authorization"] != f"Bearer {good[0]}").reply(error_reply(401, "no"))
    backend = {"base_url": upstream.url, "model": "m", "kind": "openai", "key_file": str(file)}
    policy = (
        "surface: chat\nslo: {deadline: 20s}\ntiers: [local]\nroute: {classifier: none, start: {local: otherwise}}\n"
    )
    settings = {"tiers": [{"name": "local", "backends": [backend]}]}
    async with in_process(tmp_path, upstream.url, settings=settings, policies={"chat": policy}) as app:

        async def status() -> int:
            reply = await app.ask(stream=stream, headers={"x-tierline-cache": "no-store"})
            return int(reply.status_code)

        assert await status() == 200
        for number in range(3):
            good[0] = f"sk-{number}"
            written(file, good[0])
            assert await asyncio.gather(*(status() for _ in range(8))) == [200] * 8
        good[0] = "sk-later"
        assert await status() == 502
        assert await status() == 502, "it rests for a while"
        written(file, good[0])

        async def well() -> bool:
            return await status() == 200

        await until(well)


async def test_the_log_says_that_keys_were_read_again(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the file's name, and never a key."""
    caplog.set_level(logging.WARNING)
    file = written(tmp_path / "service.key", "sk-service-old")
    services = {"audio": {"base_url": upstream.url, "key_file": str(file)}}
    async with in_process(tmp_path, upstream.url, settings={"services": services}) as app:
        written(file, "sk-service-new")

        async def said() -> bool:
            return "was read again" in caplog.text

        await until(said)
        assert app.service("audio")._auth == {"Authorization": "Bearer sk-service-new"}
        assert "sk-service" not in caplog.text


def test_a_gateway_without_a_terminal_survives_sighup_and_reads_its_files(upstream: Upstream, tmp_path: Path) -> None:
    """It answers by the new key afterwards."""
    file = written(tmp_path / "acme.keys", "first-key-of-acme")
    settings = {"tenants": {"acme": {"key_file": str(file)}}}
    with serve(tmp_path, upstream.url, settings=settings, env={"OF_ITS_OWN": "process"}) as gateway:

        def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx2.get(f"{gateway.url}/models", headers=headers).status_code

        assert status("first-key-of-acme") == 200
        written(file, "second-key-of-acme")
        gateway.process.send_signal(signal.SIGHUP)
        within(lambda: status("second-key-of-acme") == 200, 5, "the new key")
        assert status("first-key-of-acme") == 401
