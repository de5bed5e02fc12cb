"""Broken answers through the real gateway: none of them may be stored.

A backend answers as `tests.support.broken` has it, JSON and streams in turn, over real sockets; one request in twenty
gets a good answer instead. Afterwards the store itself is searched: it must hold an entry of every good answer, and no
other, but for those whose write met a store that was too slow just then, which the gateway counts.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import redis

from tests.support.broken import Answer, broken, good
from tests.support.gateway import serve
from tests.support.store import LocalStore, local_store
from tests.support.wait import until

POLICY: Final = """
surface: chat
slo: {deadline: 20s}
holdout: 0%
tiers: [local]
route: {classifier: none, start: {local: otherwise}}
escalate: {stream: {on_break: error}}
cache: {exact: {ttl: 1h}}
"""
_GOOD_EVERY: Final = 20
_AT_ONCE: Final = 6
_REST_S: Final = 0.01
"""Now and then, for the store's sake: on a busy machine it is late otherwise, and nothing is tried."""
_NUMBER: Final = re.compile(rb"number (\d+)")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_AWAY: Final = re.compile(
    r'^tierline_cache_writes_total\{.*reason="(?:open|timeout|lost|refused)"\} ([\d.]+)$', re.MULTILINE
)
_STORED: Final = re.compile(r'^tierline_cache_writes_total\{outcome="stored",.*\} ([\d.]+)$', re.MULTILINE)
_ENTRY: Final = b"TLC"
_ID: Final = re.compile(rb'"id":"chatcmpl-(\d+)"')


@dataclass(frozen=True, slots=True)
class Found:
    """`stored` of the broken answers by kind, `forgotten` of the good ones; `served` is what the backend sent. `away`:
    so many writes met a store that did not answer in time, so nothing is known of those.
    """

    injected: int
    good: int
    served: int
    stored: Counter[str]
    forgotten: int
    away: int

    @property
    def sound(self) -> bool:
        """Whether all of it went as it should."""
        return not self.stored and self.forgotten <= self.away and self.served >= self.injected + self.good


def answer_of(number: int) -> Answer:
    """The answer to request `number`."""
    round_, place = divmod(number, _GOOD_EVERY)
    if place == _GOOD_EVERY - 1:
        return good(number, stream=round_ % 2 == 1, done=round_ % 4 == 1)
    return broken(number)


class Backend:
    """A model server on a port of its own, which sends `answer_of` the number in the prompt."""

    def __init__(self) -> None:
        self.served = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Its base URL."""
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def stop(self) -> None:
        """Accepts nobody any more."""
        if self._server is not None:
            self._server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the gateway has ended the call, or the run is over
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        number = _NUMBER.search(body)
        answer = answer_of(int(number[1])) if number else Answer("probe", False, b"{}")
        self.served += number is not None
        # A body that is cut off promises more than comes; a stream that ends well ends as chunked encoding does.
        chunked = answer.content_type == "text/event-stream"
        framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(answer.body) + 9 * answer.cut}"
        status = f"HTTP/1.1 {answer.status} Scripted\r\ncontent-type: {answer.content_type}\r\n{framing}\r\n\r\n"
        data = b"%x\r\n%b\r\n" % (len(answer.body), answer.body) if chunked and answer.body else answer.body
        writer.write(status.encode() + data + (b"0\r\n\r\n" if chunked and not answer.cut else b""))
        await writer.drain()
        return not answer.cut


@pytest.mark.timeout(480)
async def test_no_broken_answer_is_stored(tmp_path: Path, times: float) -> None:
    """Whatever a backend sends that is not whole is in no entry of the store; the good answers among it are.

    Of 300; `--times 35` tries ten thousand.
    """
    count = _GOOD_EVERY * round(15 * times)
    with local_store() as store:
        found = await run(count, tmp_path, store)
    print(found)
    assert found.sound
    assert found.away < found.injected / 10
    assert found.good == count / _GOOD_EVERY


async def run(count: int, folder: Path, store: LocalStore) -> Found:
    """Ask for so many answers; return what the store then holds."""
    backend = Backend()
    url = await backend.start()
    with _gateway(folder, url, store.url) as origin:
        numbers = iter(range(count))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as client:
            await asyncio.gather(*(_ask_all(client, origin, numbers) for _ in range(_AT_ONCE)))
        wanted = {number for number in range(count) if answer_of(number).kind == "good"}
        kept = await asyncio.to_thread(_kept, store, origin, len(wanted))
        away = await asyncio.to_thread(_counted, _AWAY, origin)
    backend.stop()
    stored = Counter(answer_of(number).kind for number in kept - wanted)
    return Found(count - len(wanted), len(wanted), backend.served, stored, len(wanted - kept), away)


@contextmanager
def _gateway(folder: Path, backend: str, store: str) -> Iterator[str]:
    tiers = [{"name": "local", "backends": [{"base_url": backend, "model": "small", "max_in_flight": 64}]}]
    with serve(folder, backend, store_url=store, policies={"chat": POLICY}, settings={"tiers": tiers}) as gateway:
        yield gateway.url


async def _ask_all(client: aiohttp.ClientSession, origin: str, numbers: Iterator[int]) -> None:
    for number in numbers:
        answer = answer_of(number)
        body: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": f"number {number}"}]}
        body |= {"stream": answer.stream} | ({"n": answer.n} if answer.n > 1 else {})
        async with client.post(f"{origin}/chat/completions", json=body) as response:
            await response.read()
        if answer.kind == "good":
            await asyncio.sleep(_REST_S)


def _kept(store: LocalStore, origin: str, least: int) -> set[int]:
    """The requests whose answers the store holds, once as many writes have ended as there are good answers."""
    until(lambda: _counted(_STORED, origin) + _counted(_AWAY, origin) >= least, 10, "the cache writes")
    time.sleep(0.5)  # what is wrongly stored may come a little later than what is rightly so
    return _entries(store)


def _counted(pattern: re.Pattern[str], origin: str) -> int:
    """The cache writes that ended in this way so far."""
    with urllib.request.urlopen(origin.replace("/v1", "/metrics")) as response:
        return round(sum(float(count) for count in pattern.findall(response.read().decode())))


def _entries(store: LocalStore) -> set[int]:
    with redis.Redis.from_url(store.url) as client:
        found = set()
        for key in client.scan_iter(count=1000, _type="string"):
            value = client.get(key) or b""
            if value.startswith(_ENTRY) and (number := _ID.search(value)):
                found.add(int(number[1]))
            elif value.startswith(_ENTRY):
                found.add(-1)
        return found
