"""`python -m tests.bench.bodies [--only NAME ...] [--no-store] [--json]`: how long does a large body hold the loop?

The gateway serves in this process, with the policies that ship; a task on its loop wakes every millisecond and notes by
how much it was late, or, where that is less, how much CPU this process took meanwhile: so other processes do not count.
The client only writes and reads, and the model server is a process of its own, so what makes the task late is the
gateway. Bodies are of 3.8 MB (small values by the million, texts in every script, long conversations, deep nesting,
large schemas), or of up to the limit, 32 MiB: pictures and one long text. The figures are the worst of `--rounds`. The
exit code is 1 where a body held the loop for longer than 20 ms. `own` is the CPU that the loop's own thread took at one
time; more than that was waiting for Python's lock, which the thread for large bodies held.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
import yaml

from gateway.config.launch import Launch
from gateway.server.listeners import bound
from gateway.server.server import built, server_of
from tests.bench.command import bench_parser
from tests.bench.rig import raw_model
from tests.support.gateway import ROOT, config
from tests.support.store import local_store

MB: Final = 1_000_000
SIZE: Final = 3_800_000
TARGET_MS: Final = 20.0
AIM_MS: Final = 5.0
_EVERY_S: Final = 0.001
_REST_S: Final = 0.3
"""Between two bodies, so that what one leaves to be done afterwards is not the next one's."""


def _chat(messages: str = '[{"role":"user","content":"hi"}]', **fields: str) -> bytes:
    """A body without white space, of values that are JSON already."""
    members = {"model": '"chat"', "messages": messages} | fields
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


def _many(value: str) -> bytes:
    return _chat(x="[" + ",".join([value] * (SIZE // (len(value) + 1))) + "]")


def _asked(text: str) -> bytes:
    """One question of so many bytes; `text` is a JSON string's inside."""
    times = SIZE // len(text.encode())
    return _chat(f'[{{"role":"user","content":"{text * times}"}}]')


def _talk(count: int) -> bytes:
    text = "word " * (SIZE // count // 5 - 8)
    pair = f'{{"role":"user","content":"{text}"}},{{"role":"assistant","content":"{text}"}}'
    return _chat("[" + ",".join([pair] * (count // 2)) + ',{"role":"user","content":"hi"}]')


def _image(size: int) -> str:
    """A message with a picture of so many bytes in base64."""
    url = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * (size // 24)
    return f'{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}'


def _schema(properties: int) -> str:
    one = '{"type":"string","description":"what it is, in a few words"}'
    inner = ",".join(f'"p{number}":{one}' for number in range(properties))
    return f'{{"type":"object","properties":{{{inner}}}}}'


def _tools(count: int, properties: int) -> str:
    schema = _schema(properties)
    return "[" + ",".join(
        f'{{"type":"function","function":{{"name":"f{number}","parameters":{schema}}}}}' for number in range(count)
    ) + "]"  # fmt: skip


def _spaced(raw: bytes) -> bytes:
    """The same in a form that is not its own re-serialisation, so that its pairs are read too."""
    return json.dumps(json.loads(raw), ensure_ascii=False, separators=(", ", ": ")).encode()[:-1] + b" }"


KINDS: Final[dict[str, Callable[[], bytes]]] = {
    "objects": lambda: _many("{}"),
    "arrays": lambda: _many("[]"),
    "numbers": lambda: _many("1"),
    "floats": lambda: _many("1.2345678901234567e-5"),
    "strings": lambda: _many('"a"'),
    "keys": lambda: _chat(x="{" + ",".join(f'"k{number}":1' for number in range(SIZE // 11)) + "}"),
    "nested": lambda: _many("[" * 60 + "]" * 60),
    "stops": lambda: _chat(stop="[" + ",".join(['"a"'] * 100_000) + "]"),
    "tools": lambda: _chat(tools=_tools(40_000, 0)),
    "repeated": lambda: _chat(x="{" + ",".join(['"k":1'] * (SIZE // 6)) + "}"),
    "repeated_deep": lambda: _chat(x='{"a":' * 60 + "{" + ",".join(['"k":1'] * (SIZE // 7)) + "}" * 61),
    "long_key": lambda: _chat(x='{"' + "k" * SIZE + '":1}'),
    "too_deep": lambda: _chat(x="[" * (SIZE // 2) + "]" * (SIZE // 2)),
    "cut_off": lambda: _asked("word ")[:-9],
    "images": lambda: _chat("[" + ",".join([_image(SIZE // 4 - 200)] * 4) + "]"),
    "picture_12": lambda: _chat(f"[{_image(12 * MB)}]"),
    "pictures_30": lambda: _chat("[" + ",".join([_image(5 * MB)] * 6) + "]"),
    "text_30": lambda: _chat(f'[{{"role":"user","content":"{"word " * (6 * MB)}"}}]'),
    "thumbnails": lambda: _chat("[" + ",".join([_image(4_000)] * 900) + "]"),
    "parts": lambda: _chat('[{"role":"user","content":[' + ",".join(['{"type":"text","text":"hi"}'] * 40_000) + "]}]"),
    "messages": lambda: _chat("[" + ",".join(['{"role":"user","content":"hi"}'] * 120_000) + "]"),
    "values": lambda: _chat(x="[" + ",".join([f'{{"k":"{"v" * 60}"}}'] * 45_000) + "]"),
    "values_spaced": lambda: _spaced(_chat(x="[" + ",".join([f'{{"k":"{"v" * 60}"}}'] * 45_000) + "]")),
    "english": lambda: _asked("How do I bake bread at home, and how long does it take? "),
    "table": lambda: _asked("12,34,56,[7],{8}\\n"),
    "quotes": lambda: _asked('a \\"b\\", \\\\ '),
    "newlines": lambda: _asked("\\n"),
    "escapes": lambda: _asked("\\u4e2d\\u6587"),
    "chinese": lambda: _asked("今天天气很好。"),
    "emoji": lambda: _asked("\U0001f600"),
    "decomposed": lambda: _asked("e\u0301a\u0300 "),
    "marks": lambda: _asked("\u0301\u0316"),
    "one_word": lambda: _asked("a"),
    "digits": lambda: _asked("1"),
    "spaces": lambda: _asked(" "),
    "english_spaced": lambda: _spaced(_asked("How do I bake bread at home, and how long does it take? ")),
    "conversation": lambda: _talk(2_000),
    "short_turns": lambda: _talk(9_000),
    "schema": lambda: _chat(
        response_format='{"type":"json_schema","json_schema":{"name":"s","schema":' + _schema(24_000) + "}}"
    ),
    "toolbox": lambda: _chat(tools=_tools(500, 45)),
}


@dataclass(frozen=True, slots=True)
class Held:
    """What one kind of body did: the longest stop of the loop and the most CPU of its own thread in ms, the reply's
    status and the whole time in ms.
    """

    kind: str
    bytes: int
    held_ms: float
    own_ms: float
    status: int
    total_ms: float


class LoopLag:
    """The longest stop of the running loop since `begin`, and the most CPU of its thread between two turns, in s."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self.own_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()

    def begin(self) -> None:
        """Forgets what was."""
        self.worst_s = self.own_s = 0.0

    async def _tick(self) -> None:
        while True:
            due, cpu, own = time.perf_counter() + _EVERY_S, time.process_time(), time.thread_time()
            await asyncio.sleep(_EVERY_S)
            self.worst_s = max(self.worst_s, min(time.perf_counter() - due, time.process_time() - cpu))
            self.own_s = max(self.own_s, time.thread_time() - own)


@contextlib.asynccontextmanager
async def gateway(upstream: str, folder: Path, store_url: str | None = None, **settings: Any) -> AsyncIterator[int]:
    """A gateway on the running loop, with the policies that ship; its port."""
    file = folder / "tierline.yaml"
    file.write_text(yaml.safe_dump(config(upstream, upstream, store_url, **settings)))
    launch = Launch(config=file, policies=ROOT / "policies")
    steps = built(launch, launch.deployment({"HOSTED_KEY": "sk-scripted"}))
    listening = bound("127.0.0.1", 0)
    server = server_of(steps)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        port = listening.getsockname()[1]
        await asyncio.to_thread(_sent, port, _chat())  # what is done once, at the first request
        yield port
    finally:
        server.should_exit = True
        await serving


async def measured(port: int, kind: str, rounds: int = 1) -> Held:
    """Sends one kind of body so many times over, each a little different: nothing is a hit. The worst of it."""
    raw = KINDS[kind]()
    worst, own, total, status = 0.0, 0.0, 0.0, 0
    async with LoopLag() as lag:
        for number in range(rounds):
            body = raw[:-1] + b',"seed":%d}' % number
            await asyncio.sleep(_REST_S)
            lag.begin()
            started = time.perf_counter()
            status = await asyncio.to_thread(_sent, port, body)
            total = max(total, time.perf_counter() - started)
            await asyncio.sleep(_REST_S)
            worst, own = max(worst, lag.worst_s), max(own, lag.own_s)
    return Held(kind, len(raw), round(worst * 1000, 1), round(own * 1000, 1), status, round(total * 1000, 1))


def _sent(port: int, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


async def _run(upstream: str, kinds: Sequence[str], rounds: int, store_url: str | None) -> list[Held]:
    with tempfile.TemporaryDirectory(prefix="tierline-bodies-") as folder:
        async with gateway(upstream, Path(folder), store_url) as port:
            return [await measured(port, kind, rounds) for kind in kinds]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; 0 when nothing held the loop for longer than TARGET_MS, else 1."""
    parser = bench_parser("bodies", __doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="these kinds only")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is sent (default 3)")
    parser.add_argument("--no-store", action="store_true", help="without a cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        store_url = None if asked.no_store else stack.enter_context(local_store()).url
        upstream = f"http://127.0.0.1:{stack.enter_context(raw_model()).port}/v1"
        rows = uvloop.run(_run(upstream, asked.only, asked.rounds, store_url))
    if asked.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print("kind              bytes  held ms  own ms  status  total ms")
        for row in rows:
            print(
                f"{row.kind:<15}{row.bytes:>8,}{row.held_ms:>9.1f}{row.own_ms:>8.1f}{row.status:>8}{row.total_ms:>10.1f}"
            )
        worst = max(rows, key=lambda row: row.held_ms)
        state = "met" if worst.held_ms <= TARGET_MS else "OVER"
        figure = f"{worst.held_ms:.1f} ({worst.kind})"
        print(f"loop held by one body, ms: {figure}; target {TARGET_MS:g}, aim {AIM_MS:g}: {state}")
    return 0 if all(row.held_ms <= TARGET_MS for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
